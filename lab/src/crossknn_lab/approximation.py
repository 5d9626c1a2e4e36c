"""How near approximate scores are to the exact ones, over all items and by rank.

The best items are few and far from the rest, so an error over all items hides theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from crossknn.evaluation.oracle import OracleIndex
from crossknn.index.base import Index
from crossknn.methods import Method
from crossknn.search.loop import simulate
from crossknn.types import FloatArray, IntArray, Observed, Queries

BANDS = (10, 100, 1000)
"""Where the bands of ranks end."""


def cur_error(scores: FloatArray, approx: FloatArray) -> float:
    """Relative error in the Frobenius norm: |M - M~| / |M| (ANNCUR B.1, figure 8)."""
    exact = np.asarray(scores, np.float64)
    norm = float(np.linalg.norm(exact))
    return float(np.linalg.norm(exact - approx)) / norm if norm else 0.0


def error_by_rank(
    scores: FloatArray, approx: FloatArray, bands: Sequence[int] = BANDS
) -> dict[str, float]:
    """Root mean squared error by exact rank: `{"1-10": ..., "11-100": ..., ...}`."""
    squares = (np.asarray(scores, np.float64) - approx) ** 2
    return {band: float(np.sqrt(values.mean())) for band, values in _bands(scores, squares, bands)}


def approximation_error(
    scores: FloatArray, approx: FloatArray, bands: Sequence[int] = BANDS
) -> dict[str, FloatArray]:
    """Mean absolute error of each query (m,) by exact rank, and over `all` (ADACUR, figure 7).

    `scores` and `approx` are (m, n); the bands are named `1-10`, `11-100`, ...
    """
    distance = np.abs(np.asarray(scores, np.float64) - approx)
    found = {band: values.mean(axis=1) for band, values in _bands(scores, distance, bands)}
    return found | {"all": distance.mean(axis=1)}


def _bands(
    scores: FloatArray, errors: FloatArray, bands: Sequence[int]
) -> list[tuple[str, FloatArray]]:
    """The errors (m, n) of the items of each band, (m, b) each."""
    order = np.argsort(-np.asarray(scores, np.float64), axis=1, kind="stable")
    sorted_errors = np.take_along_axis(errors, order, axis=1)
    n = scores.shape[1]
    ends = [end for end in bands if end < n] + [n]
    return [
        (f"{start + 1}-{end}", sorted_errors[:, start:end])
        for start, end in zip([0, *ends], ends, strict=False)
    ]


def approximate(
    method: Method, index: Index, queries: Queries, scores: FloatArray, *, budget: int, seed: int
) -> tuple[FloatArray, IntArray]:
    """What a method thinks of every item once it has spent `budget`: (m, n), and what it scored.

    `scores` (m, n) are exact. The scored items (m, b) keep their approximate scores (ADACUR,
    figures 6 to 8). For the approximation from k_i anchor items: `anncur(anchors=1)` with the
    budget k_i. A method that learns nothing answers with its retriever's scores.
    """
    plan = method.plan(OracleIndex(index, scores), budget, seed)
    watched: Any = _Watched(plan.predictor)
    search = simulate(replace(plan, predictor=watched), queries, scores)
    state = watched.start(queries) if watched.state is None else watched.state
    state = watched.update(state, search.observed())
    return watched.predict(state).mean, search.observed().items


class Wrapped:
    """A predictor around another one; a subclass defines only what it adds."""

    def __init__(self, predictor: Any) -> None:
        self.predictor = predictor

    def __getattr__(self, name: str) -> Any:
        return getattr(self.predictor, name)


class _Watched(Wrapped):
    """A predictor whose latest state can be seen from outside the search."""

    state: Any = None

    def update(self, state: Any, observed: Observed) -> Any:
        self.state = self.predictor.update(state, observed)
        return self.state
