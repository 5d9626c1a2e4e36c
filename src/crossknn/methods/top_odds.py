"""What to score next where k is large: of the best predictions those likeliest to be in the top k.

The posterior mean is the best guess of a score. How likely an item is among the hundred best
depends on more, on what its prediction is made of:

    log odds = w . [mean, columns of the trend, strength of the factors, std, rank of the nearest]

The weights w are those of logistic regression on searches of the anchor queries, each with what
the others teach. An item is chosen by the odds and half by its mean.

Axes: b scored items, c candidates, f features, e examples.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from crossknn.methods.gp import GaussianProcess, Posteriors
from crossknn.methods.posterior import LowRankPlusResidual
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray

LARGE = 50
"""From this k on the odds choose."""

AMONG = 300
"""Items of the highest means that the odds choose from."""

NEAREST = 5
"""Scored items whose ranks tell of a candidate."""

RIDGE = 10.0
"""Penalty of squared weights, of features of variance 1."""

Records: TypeAlias = list[tuple[int, IntArray, FloatArray]]
"""Of every round and query: the query, candidates (c,) and their features (c, f)."""


def features(
    process: GaussianProcess, state: Posteriors, q: int, best: Candidates
) -> tuple[IntArray, FloatArray]:
    """The candidates (c,) of query `q` and their features (c, f).

    These are the predicted mean, standardised over the candidates; the values of the basis
    functions but 1; the length of the factors, and the standard deviation, both in deviations of
    the query's scores; the mean rank, from 0 for the best to 1, of the five scored items with the
    highest correlations.
    """
    items, kernel, known = best.items[q], process.model.kernel, state.known[q]
    assert isinstance(kernel, LowRankPlusResidual)
    assert best.std is not None
    kept = items != NO_ITEM
    items, mean, std = items[kept], best.scores[q, kept], best.std[q, kept]
    points = process.points(items) if state.points is None else state.points[items]
    size = float(known.scores.std())
    # A candidate's own variance does not change which scored items it correlates with most.
    likeness = kernel(known.points, points)
    likeness /= np.sqrt(kernel.variance(known.points))[:, None]
    near, b = _highest(likeness, NEAREST), len(known.scores)
    rank = np.argsort(np.argsort(-known.scores, kind="stable")).astype(np.float32)
    found = [
        _standard(mean),
        *process.basis(state, q, items, points).T[1:],
        np.sqrt(np.square(points[:, : kernel.rank]).sum(axis=1)) / size,
        std / size,
        (rank @ near).astype(np.float64) / (min(NEAREST, b) * max(b - 1, 1)),
    ]
    return items, np.stack(found, axis=1).astype(np.float64)


class Reordered(GaussianProcess):
    """A process that orders the items of the highest means anew before it chooses."""

    def top(
        self,
        state: Posteriors,
        count: int,
        exclude: IntArray,
        allowed: BoolArray | None = None,
        pool: IntArray | None = None,
    ) -> Candidates:
        best = super().top(state, max(count, AMONG), exclude, allowed, pool)
        places = np.tile(np.arange(best.items.shape[1]), (len(best.items), 1))
        for q in state.known:
            order = self.order(q, *features(self, state, q, best))
            places[q, : len(order)] = order
        rows, places = np.arange(len(places))[:, None], places[:, :count]
        std = None if best.std is None else best.std[rows, places]
        return Candidates(best.items[rows, places], best.scores[rows, places], std)

    @abstractmethod
    def order(self, q: int, items: IntArray, values: FloatArray) -> IntArray:
        """The new order of the candidates `items` (c,) of query `q`, by their features (c, f)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TopOdds(Reordered):
    """Chooses by the odds that `weights` (f,) give, and half by the mean."""

    weights: FloatArray

    def order(self, q: int, items: IntArray, values: FloatArray) -> IntArray:
        chance = values[:, 0] / 2 + _standard(values @ self.weights)
        return np.argsort(-chance, kind="stable")


@dataclass(frozen=True, kw_only=True, eq=False)
class Recorder(Reordered):
    """Chooses by the mean, and keeps the features of its candidates."""

    records: Records = field(default_factory=list)

    def order(self, q: int, items: IntArray, values: FloatArray) -> IntArray:
        self.records.append((q, items, values))
        return np.arange(len(items))


def _highest(values: FloatArray, count: int) -> FloatArray:
    """1 at the `count` highest of each column, the first of equals, else 0: (b, c) -> (b, c)."""
    if count >= len(values):
        return np.ones_like(values)
    least = np.partition(values, len(values) - count, axis=0)[len(values) - count]
    chosen = values >= least
    for column in np.flatnonzero(np.count_nonzero(chosen, axis=0) > count):
        ties = np.flatnonzero(values[:, column] == least[column])
        above = np.count_nonzero(values[:, column] > least[column])
        chosen[ties[count - above :], column] = False
    return chosen.astype(values.dtype)


def _standard(values: FloatArray) -> FloatArray:
    spread = float(values.std())
    return (values - values.mean()) / (spread or 1.0)
