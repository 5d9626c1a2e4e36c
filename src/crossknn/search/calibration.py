"""Convert scores to probabilities of relevance, by parameters that `fitting.calibration` fits to
judgements.

A cross-encoder's scores shift from query to query. So the probability of an item depends on a
weighted sum of three features: its score, the mean of its query's best scores, and its lead over
the best other score. Axes: m queries, k hits of a query, c best scores of a query.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn.index.base import Index
from crossknn.search.fusion import Fusion
from crossknn.types import FloatArray

CALIBRATION = "calibration"
"""Name under which an index stores a fitted calibration."""

CONTEXT = 10
"""Number of a query's best scores whose mean is the second feature."""


def features(scores: FloatArray, best: FloatArray) -> FloatArray:
    """Compute the features (m, k, 3) of scores (m, k), given each query's best scores in descending
    order (m, c): the score, the mean of the best scores, and the lead over the best other score.
    Rows are padded with NaN.

    >>> features(np.array([[5.0, 2.0]]), np.array([[5.0, 2.0]]))[0].tolist()
    [[5.0, 3.5, 3.0], [2.0, 3.5, -3.0]]
    """
    scored = ~np.isnan(best)
    mean = np.where(scored, best, 0).sum(axis=1) / np.maximum(scored.sum(axis=1), 1)
    first = best[:, :1]
    second = best[:, 1:2] if best.shape[1] > 1 else np.full_like(first, np.nan)
    lead = scores - np.where(scores >= first, np.where(np.isnan(second), first, second), first)
    return np.stack([scores, np.broadcast_to(mean[:, None], scores.shape), lead], axis=2)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Tables from which probabilities are interpolated linearly.

    `weights` (3,) give the weighted sum of an item's features; a sum in `at` (b,) means the
    probability at the same place in `chance` (b,). If a query's best item has a probability in
    `top` (d,), one of its 10 best items is relevant with the probability in `found` (d,).
    """

    weights: FloatArray
    at: FloatArray
    chance: FloatArray
    top: FloatArray
    found: FloatArray

    def probabilities(self, scores: FloatArray, best: FloatArray) -> FloatArray:
        """Compute the probabilities (m, k) that items with these final scores (m, k) are
        relevant."""
        return np.interp(features(scores, best) @ self.weights, self.at, self.chance)

    def none_relevant(self, best: FloatArray) -> FloatArray:
        """Compute the probabilities (m,) that none of a query's 10 best items is relevant; NaN if
        nothing was scored."""
        if not best.shape[1]:
            return np.full(len(best), np.nan)
        return 1 - np.interp(self.probabilities(best[:, :1], best)[:, 0], self.top, self.found)


def open_calibration(
    index: Index, fusion: Fusion | None, fingerprint: str | None
) -> Calibration | None:
    """Return the index's calibration, if it was fitted to this cross-encoder's scores with the same
    fusion."""
    kept = index.artifacts.get(CALIBRATION)
    if kept is None or kept.meta["fingerprint"] != fingerprint:
        return None
    if not np.array_equal(kept.meta["fusion"], weights_of(fusion)):
        return None
    return Calibration(**{name: np.asarray(values) for name, values in kept.arrays.items()})


def weights_of(fusion: Fusion | None) -> list[float]:
    """Return the weights by which fusion multiplies retrievers' scores; [] without fusion."""
    return [] if fusion is None else [float(weight) for weight in fusion.retriever.weights]
