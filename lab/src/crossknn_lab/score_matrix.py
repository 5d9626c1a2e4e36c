"""What a score matrix is like: its rank, its distribution, and how well CUR approximates it.

The analyses of Yadav et al. 2022 (ANNCUR) that need nothing but a matrix (m, n) of exact scores,
queries by items: figures 1b, 6, 8 and 9 and table 3b.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossknn.errors import InputError
from crossknn.evaluation.measures import exact_top, recall
from crossknn.linalg import least_squares, top_k
from crossknn.types import FloatArray, IntArray
from crossknn_lab.approximation import cur_error, error_by_rank

NO_CUT = 1e-15
"""The relative cut of the paper's pseudo-inverses: nothing is dropped, so k_q = k_i collapses."""


def singular_values(scores: FloatArray, *, center: bool = False) -> FloatArray:
    """Singular values, largest first: (m, n) -> (min(m, n),) float64.

    `center` subtracts each query's mean: it moves no item past another, but adds a dimension.
    """
    return np.linalg.svd(_prepared(scores, center), compute_uv=False)


def rank(scores: FloatArray) -> int:
    """Rank at NumPy's tolerance in float32: values above max(m, n) * eps * the largest (3.3).

    >>> rank(np.outer([1.0, 2.0], [3.0, 4.0, 5.0]))
    1
    """
    return int(np.linalg.matrix_rank(np.asarray(scores, np.float32)))


def effective_rank(scores: FloatArray, *, center: bool = False) -> float:
    """Exponential of the entropy of the singular values that sum to 1 (Roy & Vetterli 2007).

    Between 1 (rank one) and min(m, n) (all alike); 0 for a matrix of zeros.
    """
    return spectrum_rank(singular_values(scores, center=center))


def components(scores: FloatArray, share: float, *, center: bool = False) -> int:
    """How many singular values hold `share` (0-1) of the squared norm, e.g. 0.99."""
    return spectrum_components(singular_values(scores, center=center), share)


def spectrum_rank(values: FloatArray) -> float:
    """`effective_rank` from singular values."""
    if not values.size or not (total := values.sum()):
        return 0.0
    p = values[values > 0] / total
    return float(np.exp(-(p * np.log(p)).sum()))


def spectrum_components(values: FloatArray, share: float) -> int:
    """`components` from singular values, largest first."""
    if not 0 < share <= 1:
        raise InputError(f"share is {share}; it must lie above 0 and be at most 1")
    held = np.cumsum(values**2)
    if not held.size or not held[-1]:
        return 0
    return int(np.searchsorted(held, share * held[-1] * (1 - 1e-12))) + 1


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreDensity:
    """Distribution of scores about their query's mean: `density` (b,) between `edges` (b + 1,).

    `skewness` is 0 for a symmetric one, above 0 for a long tail of high scores.
    """

    edges: FloatArray
    density: FloatArray
    skewness: float
    unit: float


def score_density(
    scores: FloatArray, *, bins: int = 120, standardize: bool = False
) -> ScoreDensity:
    """Pooled density of the scores of every query with all items, means at zero (figure 1b).

    `standardize` measures in standard deviations (pooled), so that matrices on different scales
    can be compared; `unit` is what one stands for.
    """
    values = _prepared(scores, center=True)
    deviation = float(values.std())
    unit = deviation if standardize and deviation > 0 else 1.0
    skewness = float((values**3).mean() / deviation**3) if deviation > 0 else 0.0
    density, edges = np.histogram(values / unit, bins=bins, density=True)
    return ScoreDensity(edges=edges, density=density, skewness=skewness, unit=unit)


@dataclass(frozen=True, kw_only=True, eq=False)
class MatrixSummary:
    """What `summarize` finds; `rank` is of the raw matrix, the other spectral figures are centred.

    `components` has the shares 90 and 99 (%), `singular_values` (min(m, n),) are centred too.
    """

    n_queries: int
    n_items: int
    mean: float
    std: float
    rank: int
    effective_rank: float
    components: dict[int, int]
    singular_values: FloatArray
    density: ScoreDensity


def summarize(scores: FloatArray) -> MatrixSummary:
    """The matrix (m, n) in a few numbers. Each query's mean is subtracted, but for the rank."""
    values = singular_values(scores, center=True)
    return MatrixSummary(
        n_queries=scores.shape[0],
        n_items=scores.shape[1],
        mean=float(scores.mean(dtype=np.float64)),
        std=float(scores.std(dtype=np.float64)),
        rank=rank(scores),
        effective_rank=spectrum_rank(values),
        components={share: spectrum_components(values, share / 100) for share in (90, 99)},
        singular_values=values,
        density=score_density(scores, standardize=True),
    )


def cur(
    scores: FloatArray, rows: IntArray, columns: IntArray, *, rcond: float = NO_CUT
) -> FloatArray:
    """ANNCUR's C pinv(scores[rows, columns]) R for all queries: (m, n) -> (m, n) (2.2).

    `rows` (k_q,) are the anchor queries, `columns` (k_i,) the anchor items.
    """
    anchors = np.asarray(scores[rows], np.float64)
    return _cur_of(np.asarray(scores, np.float64), anchors, columns, rcond)


def oracle_cur(
    scores: FloatArray, rows: IntArray, columns: IntArray, *, rcond: float = 1e-10
) -> FloatArray:
    """CUR with U = pinv(C) M pinv(R), which reads all of M: (m, n) -> (m, n) (B.2, figure 9).

    The best approximation in the Frobenius norm from these rows and columns, and stable where
    k_q = k_i. Computed as two projections: C pinv(C) and pinv(R) R.
    """
    matrix = np.asarray(scores, np.float64)
    left, right = _basis(matrix[:, columns], rcond), _basis(matrix[rows].T, rcond)
    return left @ ((left.T @ matrix) @ right) @ right.T


@dataclass(frozen=True, kw_only=True)
class CurCell:
    """ANNCUR with `k_q` anchor queries and `k_i` anchor items, on the remaining queries.

    `error` is relative (`cur_error`), `recall` 0-1, both means over the draws; `rmse` by exact
    rank; `n_queries` remained in each draw.
    """

    k_q: int
    k_i: int
    error: float
    recall: float
    rmse: dict[str, float]
    n_queries: int


def cur_grid(
    scores: FloatArray,
    k_qs: Sequence[int],
    k_is: Sequence[int],
    *,
    k: int = 10,
    retrieved: int = 500,
    center: bool = False,
    oracle: bool = False,
    rcond: float = NO_CUT,
    draws: int = 3,
    seed: int = 0,
) -> list[CurCell]:
    """Top-k-Recall@`retrieved` and error of ANNCUR over anchors drawn at random (figures 6, 8).

    Recall: how many of the k best items are among the `retrieved` best approximate scores; the
    anchor items are not kept out, and their scores are approximate too. `center` subtracts the
    anchor queries' mean score first, as the library's methods do and the paper does not; the
    error is then relative to what remains. `oracle` takes U from the whole matrix (figure 9).
    Draws are nested: more anchors contain fewer, and cells of one draw are comparable.

    Raises `InputError` where the matrix (m, n) is too small for the grid.
    """
    m, n = scores.shape
    _check_grid(scores.shape, k_qs, k_is, k, retrieved, draws)
    found: dict[tuple[int, int], list[tuple[float, float, dict[str, float]]]] = {}
    for draw in range(draws):
        rng = np.random.default_rng([seed, draw])
        queries, items = rng.permutation(m), rng.permutation(n)
        for k_q in k_qs:
            rows, tests = queries[:k_q], queries[k_q:]
            shift = float(scores[rows].mean(dtype=np.float64)) if center else 0.0
            exact = scores[tests].astype(np.float64) - shift
            anchors = scores[rows].astype(np.float64) - shift
            truth = exact_top(exact, k)
            for k_i in k_is:
                if oracle:
                    together, known = np.concatenate([anchors, exact]), np.arange(k_q)
                    approx = oracle_cur(together, known, items[:k_i])[k_q:]
                else:
                    approx = _cur_of(exact, anchors, items[:k_i], rcond)
                hits = float(recall(top_k(approx, retrieved).items, truth).mean())
                cell = (cur_error(exact, approx), hits, error_by_rank(exact, approx))
                found.setdefault((k_q, k_i), []).append(cell)
    return [
        CurCell(
            k_q=k_q,
            k_i=k_i,
            error=float(np.mean([error for error, _, _ in cells])),
            recall=float(np.mean([hits for _, hits, _ in cells])),
            rmse={b: float(np.mean([rmse[b] for _, _, rmse in cells])) for b in cells[0][2]},
            n_queries=m - k_q,
        )
        for (k_q, k_i), cells in found.items()
    ]


def _check_grid(
    shape: tuple[int, ...], k_qs: Sequence[int], k_is: Sequence[int], k: int, depth: int, draws: int
) -> None:
    m, n = shape
    for name, value in (("k", k), ("retrieved", depth), ("draws", draws)):
        if value < 1:
            raise InputError(f"{name} is {value}; it must be 1 or more")
    if not k_qs or not k_is:
        raise InputError("a grid needs at least one number of anchor queries and of anchor items")
    if m < 2:
        raise InputError("one query is not enough: some are anchors, and the rest are the tests")
    if min(k_qs) < 1 or max(k_qs) >= m:
        raise InputError(
            f"anchor queries must be 1 to {m - 1} of the {m} queries; the rest are the tests"
        )
    if min(k_is) < 1 or max(k_is) > n:
        raise InputError(f"anchor items must be 1 to {n}, the number of items")
    if k > n:
        raise InputError(f"k is {k}, above the number of items, {n}")


def _cur_of(exact: FloatArray, anchors: FloatArray, columns: IntArray, rcond: float) -> FloatArray:
    """Rows of C pinv(A) R: C is of `exact` (m, n), A and R are of `anchors` (k_q, n).

    Least squares on the columns of R gives pinv(A)' C' for all queries at once (2.2, eq. 5).
    """
    weights = least_squares(anchors[:, columns].T, exact[:, columns].T, rcond)
    return weights.T @ anchors


def _basis(matrix: FloatArray, rcond: float) -> FloatArray:
    """Orthonormal columns that span those of `matrix`: (a, b) -> (a, <=b)."""
    left, values, _ = np.linalg.svd(matrix, full_matrices=False)
    return left[:, values > rcond * (values[0] if values.size else 0.0)]


def _prepared(scores: FloatArray, center: bool) -> FloatArray:
    matrix = np.asarray(scores, np.float64)
    if matrix.ndim != 2 or not matrix.size:
        raise InputError(f"a score matrix has the shape (queries, items), not {matrix.shape}")
    return matrix - matrix.mean(axis=1, keepdims=True) if center else matrix
