"""CUR with a rank: dense scores of anchor queries as a truncated SVD (ANNCUR 2.2).

R_anc less its centre, over the mean length of its columns, is X = U S V' (a, n). Item vectors are
V S, cut to `rank`, and an anchor's query vector is its row of U. Least squares on V S is ADACUR on
the best approximation of R_anc of that rank: ANNCUR and ADACUR on these vectors are AXN with a
blend of 0. Axes: a anchor queries, n items, r the rank, c columns, d dimensions of the encoder's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from crossknn.fitting.factors import Fit
from crossknn.index.vectors import Linear
from crossknn.types import FloatArray, IntArray, Scale

_COLUMNS = 4_096
_SAMPLE = 4_096
_DRAWS = 4
_HELD_OUT = 0.1
_WORTH = 0.002
_KNOWN = 100
_RIDGES = (1e-6, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.3)
PENALTIES = 10.0 ** np.arange(-4, 5)


def cur(
    rows: FloatArray,
    *,
    rank: int | None = None,
    center: float,
    queries: FloatArray | None = None,
    seed: int = 0,
) -> Fit:
    """Item vectors (n, rank), float16, from exact scores `rows` (a, n), which may be memory-mapped.

    Without a `rank` the smallest is taken of those with the lowest error (within 0.2%) on a tenth
    of the anchors, held out: each is reconstructed from its scores of 100 random items by ridge
    regression (plain least squares has its worst error at rank 100, whatever the scores).
    With the encoder's vectors `queries` (a, d) of the anchors, `map` predicts a query's vector from
    its own. No second copy of `rows` is made.
    """
    a, n = rows.shape
    columns = np.sort(np.random.default_rng(seed).permutation(n)[:_SAMPLE])
    gram, sample = _gram(rows, center, columns)
    length = math.sqrt(np.trace(gram) / n) or 1.0
    gram, sample = gram / length**2, sample / length
    ranks = _ranks(min(a, n)) if rank is None else [rank]
    errors, initial = held_out_errors(gram, sample, ranks, seed)
    rank = _smallest(errors) if rank is None else rank
    held_out_error, ridge = errors.get(rank, (math.nan, None))
    left = _left_vectors(gram)[:, :rank]
    items = np.empty((n, rank), np.float16)
    for part, scores in _centred(rows, center):
        items[part] = scores.T @ (left / length)
    return Fit(
        items=items,
        queries=left.astype(np.float32),
        map=None if queries is None else ridge_map(queries, left),
        scale=Scale(alpha=center, beta=1.0 / length),
        held_out=held_out_error,
        initial=initial,
        details={
            "rank": rank,
            "explained": float(np.trace(left.T @ gram @ left) / (np.trace(gram) or 1.0)),
            "ridge": ridge,
            "errors": {r: error for r, (error, _) in errors.items()},
        },
    )


def held_out_errors(
    gram: FloatArray, sample: FloatArray, ranks: Sequence[int], seed: int
) -> tuple[dict[int, tuple[float, float]], float]:
    """Lowest root mean squared error of each rank and its ridge penalty, on anchors held out; and
    the error of no vectors.

    `gram` (a, a) is X X', `sample` (a, c) some columns of X. Ranks that the other anchors do not
    have are left out; with one anchor there is nothing to hold out.
    """
    a, c = sample.shape
    generator = np.random.default_rng(seed)
    order = generator.permutation(a)
    held, kept = np.split(order, [min(math.ceil(_HELD_OUT * a), a - 1)])
    if not len(held) or c < 2:
        return {}, math.nan
    items = sample[kept].T @ _left_vectors(gram[np.ix_(kept, kept)])
    ranks = [r for r in ranks if r <= len(kept)]
    squares, nothing = np.zeros((len(ranks), len(_RIDGES))), 0.0
    for _ in range(_DRAWS):
        seen, rest = np.split(generator.permutation(c), [min(_KNOWN, c // 2)])
        scores, wanted = sample[np.ix_(held, seen)], sample[np.ix_(held, rest)]
        nothing += float(np.mean(wanted**2))
        for i, r in enumerate(ranks):
            left, values, right = np.linalg.svd(items[seen, :r], full_matrices=False)
            for j, ridge in enumerate(_RIDGES):
                fitted = (scores @ left * (values / (values**2 + ridge))) @ right
                squares[i, j] += np.mean((fitted @ items[rest, :r].T - wanted) ** 2)
    best = squares.argmin(axis=1)
    errors = {
        r: (math.sqrt(squares[i, j] / _DRAWS), _RIDGES[j])
        for i, (r, j) in enumerate(zip(ranks, best, strict=True))
    }
    return errors, math.sqrt(nothing / _DRAWS)


def _gram(rows: FloatArray, center: float, columns: IntArray) -> tuple[FloatArray, FloatArray]:
    """(rows - center) (rows - center)' (a, a), and the chosen columns (a, c), in one pass."""
    gram = np.zeros((len(rows), len(rows)))
    sample = np.empty((len(rows), len(columns)))
    for part, scores in _centred(rows, center):
        gram += scores @ scores.T
        first, last = np.searchsorted(columns, (part.start, part.stop))
        sample[:, first:last] = scores[:, columns[first:last] - part.start]
    return gram, sample


def _centred(rows: FloatArray, center: float) -> Iterator[tuple[slice, FloatArray]]:
    """Columns in parts, less the centre, in float64."""
    for start in range(0, rows.shape[1], _COLUMNS):
        part = slice(start, start + _COLUMNS)
        yield part, rows[:, part].astype(np.float64) - center


def _left_vectors(gram: FloatArray) -> FloatArray:
    """Left singular vectors of X from X X', that of the largest singular value first."""
    return np.linalg.eigh(gram)[1][:, ::-1]


def _ranks(largest: int) -> list[int]:
    """1, 2, 3, 4, 6, 8, 11, ... by half an octave, and the largest."""
    steps = 2.0 ** np.arange(0, math.log2(largest) + 0.5, 0.5)
    return sorted({*(r for r in steps.round().astype(int).tolist() if r <= largest), largest})


def _smallest(errors: dict[int, tuple[float, float]]) -> int:
    """The smallest rank whose error is about the lowest; 1 if nothing was held out."""
    worth = min((error for error, _ in errors.values()), default=math.inf) * (1 + _WORTH)
    return min((r for r, (error, _) in errors.items() if error <= worth), default=1)


def ridge_map(queries: FloatArray, wanted: FloatArray) -> Linear:
    """Ridge regression (a, d) -> (a, r), the penalty of each dimension by leave-one-out error."""
    known, wanted = queries.astype(np.float64), wanted.astype(np.float64)
    penalties = PENALTIES * (float(np.mean(np.sum(known**2, axis=1))) or 1.0)
    center, mean = known.mean(axis=0), wanted.mean(axis=0)
    left, values, right = np.linalg.svd(known - center, full_matrices=False)
    target, squares = left.T @ (wanted - mean), np.square(values)[:, None]
    errors = []
    for penalty in penalties:
        kept = squares / (squares + penalty)
        rest = np.maximum(1 - 1 / len(known) - left**2 @ kept, 1e-9)  # 1 - leverage, (a, 1)
        left_out = (wanted - mean - left @ (kept * target)) / rest
        errors.append(np.square(left_out).mean(axis=0))
    best = penalties[np.argmin(errors, axis=0)]
    weight = right.T @ (values[:, None] / (squares + best) * target)
    return Linear(weight.astype(np.float32), (mean - center @ weight).astype(np.float32))
