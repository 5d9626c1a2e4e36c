"""What a score matrix is like, and how well methods approximate it, over all items and by rank.

The analyses of ANNCUR (Yadav et al. 2022: figures 1b, 3a, 6, 8 and 9, table 3b) and ADACUR
(figures 1 and 6 to 8) that need nothing but exact scores (m, n), queries by items.

paper                       here
C pinv(A) R                 `_cur`: C (m, k_i) of tests and A (k_q, k_i) at anchor items, R (k_q, n)
Top-k-Recall@k_r            `retrieved` with the k_r best, and `recall`
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from crossknn.evaluation.measures import recall
from crossknn.evaluation.outcome import QueryBatch
from crossknn.index.base import Index
from crossknn.linalg import least_squares, top_k
from crossknn.methods import Method
from crossknn.methods.base import part
from crossknn.search.loop import simulate
from crossknn.types import FloatArray, IntArray, Queries
from crossknn_lab.rivals.oracles import WithOracles

BANDS = (10, 100, 1000)
"""Where the bands of ranks end."""

NO_CUT = 1e-15
"""The relative cut of the paper's pseudo-inverses: nothing is dropped, so k_q = k_i collapses."""

# ------------------------------------------------------------------------------ the matrix


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


def effective_rank(values: FloatArray) -> float:
    """Exponential of the entropy of singular values that sum to 1 (Roy & Vetterli 2007).

    Between 1 (rank one) and their number (all alike); 0 for a matrix of zeros.
    """
    if not values.size or not (total := values.sum()):
        return 0.0
    p = values[values > 0] / total
    return float(np.exp(-(p * np.log(p)).sum()))


def components(values: FloatArray, share: float) -> int:
    """How many singular values, largest first, hold `share` (0-1) of the squared norm."""
    held = np.cumsum(values**2)
    if not held.size or not held[-1]:
        return 0
    return int(np.searchsorted(held, share * held[-1] * (1 - 1e-12))) + 1


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreDensity:
    """Distribution of scores: `density` (b,) between `edges` (b + 1,).

    `skewness` is 0 for a symmetric one, above 0 for a long tail of high scores.
    """

    edges: FloatArray
    density: FloatArray
    skewness: float

    @classmethod
    def of(cls, values: FloatArray, *, bins: int = 120) -> ScoreDensity:
        """The density of all values, whatever their shape."""
        centred = values.ravel() - values.mean(dtype=np.float64)
        std = float(centred.std())
        density, edges = np.histogram(values, bins=bins, density=True)
        skewness = float((centred**3).mean() / std**3) if std > 0 else 0.0
        return cls(edges=edges, density=density, skewness=skewness)


def score_density(scores: FloatArray) -> ScoreDensity:
    """Density of the scores of every query with all items (m, n), pooled (figure 1b).

    Each query's mean is at zero, the unit is the pooled standard deviation: matrices on different
    scales can be compared.
    """
    values = _prepared(scores, center=True)
    return ScoreDensity.of(values / (values.std() or 1.0))


def _prepared(scores: FloatArray, center: bool) -> FloatArray:
    matrix = np.asarray(scores, np.float64)
    return matrix - matrix.mean(axis=1, keepdims=True) if center else matrix


# ------------------------------------------------------------------------------------- CUR


def oracle_cur(scores: FloatArray, rows: IntArray, columns: IntArray) -> FloatArray:
    """CUR with U = pinv(C) M pinv(R), which reads all of M: (m, n) -> (m, n) (B.2, figure 9).

    The best approximation in the Frobenius norm from these rows and columns, and stable where
    k_q = k_i. Computed as two projections: C pinv(C) and pinv(R) R.
    """
    from scipy.linalg import orth

    matrix = np.asarray(scores, np.float64)
    left, right = (orth(part, rcond=1e-10) for part in (matrix[:, columns], matrix[rows].T))
    return left @ ((left.T @ matrix) @ right) @ right.T


@dataclass(frozen=True, kw_only=True)
class CurCell:
    """ANNCUR with `k_q` anchor queries and `k_i` anchor items, on the remaining queries.

    `error` is relative (`cur_error`), `recall` 0-1, both means over the draws; `n_queries`
    remained in each draw.
    """

    k_q: int
    k_i: int
    error: float
    recall: float
    n_queries: int


def cur_grid(
    scores: FloatArray,
    k_qs: Sequence[int],
    k_is: Sequence[int],
    *,
    k: int = 10,
    retrieved: int = 500,
    oracle: bool = False,
    draws: int = 3,
) -> list[CurCell]:
    """Top-k-Recall@`retrieved` and error of ANNCUR over anchors drawn at random (figures 6, 8).

    Recall: how many of the k best items are among the `retrieved` best approximate scores; the
    anchor items are not kept out, and their scores are approximate too. Draws are nested: more
    anchors contain fewer, and cells of one draw are comparable.

    Args:
        scores: Exact scores (m, n), used as they are, without a centre.
        oracle: Take U from the whole matrix (figure 9).
    """
    m, n = scores.shape
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for draw in range(draws):
        rng = np.random.default_rng([0, draw])
        queries, items = rng.permutation(m), rng.permutation(n)
        for k_q in k_qs:
            rows, tests = queries[:k_q], queries[k_q:]
            exact = scores[tests].astype(np.float64)
            anchors = scores[rows].astype(np.float64)
            truth = top_k(exact, k).items
            for k_i in k_is:
                if oracle:
                    together, known = np.concatenate([anchors, exact]), np.arange(k_q)
                    approx = oracle_cur(together, known, items[:k_i])[k_q:]
                else:
                    approx = _cur(exact, anchors, items[:k_i])
                hits = float(recall(top_k(approx, retrieved).items, truth).mean())
                found.setdefault((k_q, k_i), []).append((cur_error(exact, approx), hits))
    return [
        CurCell(
            k_q=k_q,
            k_i=k_i,
            error=float(np.mean([error for error, _ in cells])),
            recall=float(np.mean([hits for _, hits in cells])),
            n_queries=m - k_q,
        )
        for (k_q, k_i), cells in found.items()
    ]


def _cur(exact: FloatArray, anchors: FloatArray, columns: IntArray) -> FloatArray:
    """Rows of C pinv(A) R: C is of `exact` (m, n), A and R are of `anchors` (k_q, n).

    Least squares on the columns of R gives pinv(A)' C' for all queries at once (2.2, eq. 5).
    """
    weights = least_squares(anchors[:, columns].T, exact[:, columns].T, NO_CUT)
    return weights.T @ anchors


# ------------------------------------------------------------------- errors of approximations


def cur_error(scores: FloatArray, approx: FloatArray) -> float:
    """Relative error in the Frobenius norm: |M - M~| / |M| (ANNCUR B.1, figure 8)."""
    exact = np.asarray(scores, np.float64)
    norm = float(np.linalg.norm(exact))
    return float(np.linalg.norm(exact - approx)) / norm if norm else 0.0


def approximation_error(
    scores: FloatArray, approx: FloatArray, bands: Sequence[int] = BANDS
) -> dict[str, FloatArray]:
    """Mean absolute error of each query (m,) by exact rank, and over `all` (ADACUR, figure 7).

    `scores` and `approx` are (m, n); the bands are named `1-10`, `11-100`, ...
    """
    exact, n = np.asarray(scores, np.float64), scores.shape[1]
    distance = np.abs(exact - approx)
    order = np.argsort(-exact, axis=1, kind="stable")
    by_rank = np.take_along_axis(distance, order, axis=1)
    ends = [end for end in bands if end < n] + [n]
    found = {
        f"{start + 1}-{end}": by_rank[:, start:end].mean(axis=1)
        for start, end in zip([0, *ends], ends, strict=False)
    }
    return found | {"all": distance.mean(axis=1)}


# ---------------------------------------------------------------- what methods approximate


def approximate(
    method: Method, index: Index, queries: Queries, scores: FloatArray, *, budget: int, seed: int
) -> tuple[FloatArray, IntArray]:
    """What a method predicts for every item once it has spent `budget`: (m, n), and what it scored.

    `scores` (m, n) are exact. The scored items (m, b) keep their approximate scores (ADACUR,
    figures 6 to 8). For the approximation from k_i anchor items: `anncur(anchor_share=1)` with the
    budget k_i. A method that learns nothing answers with its retriever's scores.
    """
    plan = method.plan(cast(Index, WithOracles(index, scores)), budget, seed)
    search = simulate(plan, queries, scores)
    state = search._learn(search._state)
    return plan.predictor.predict(state).mean, search.observed().items


def retrieved(
    method: Method, parts: Sequence[QueryBatch], *, calls: int, depth: int, seed: int = 0
) -> IntArray:
    """The `depth` best approximate scores of each query after `calls` exact ones: (m, depth).

    Scored items are not kept out. With `recall` this is Top-k-Recall@k_r of ANNCUR with k_i
    anchor items (ANNCUR, figure 3a), the method being `anncur(anchor_share=1)` and `calls` k_i.
    """
    found = []
    for each in parts:
        assert each.exact is not None
        known = each.index, each.queries, each.exact
        approx, _ = approximate(method, *known, budget=calls, seed=seed)
        found.append(top_k(approx, depth).items)
    return np.concatenate(found)


def recall_by_split(
    method: Method,
    parts: Sequence[QueryBatch],
    truth: IntArray,
    *,
    budget: int,
    ks: Sequence[int],
    shares: Sequence[float],
) -> dict[int, dict[float, FloatArray]]:
    """Recall of every division of a budget into k_i + k_r calls: `{k: {share: (m,)}}`.

    As the paper counts: the k_r best approximate scores of all items are reranked and those alone,
    so that an anchor item that is retrieved again costs another call, and one that is not is lost.

    Args:
        method: Spends its whole budget on anchor items: `anncur(anchor_share=1)`.
        truth: The exact top items (m, max(ks)).
        shares: Of the budget, for anchor items: each between 0 and 1.
    """
    found: dict[int, dict[float, FloatArray]] = {k: {} for k in ks}
    for share in shares:
        if (reranked := budget - part(budget, share)) > 0:
            ranked = retrieved(method, parts, calls=budget - reranked, depth=reranked)
        for k in ks:
            nothing = np.zeros(len(truth))
            found[k][share] = recall(ranked, truth[:, :k]) if reranked > 0 else nothing
    return found
