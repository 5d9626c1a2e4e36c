"""What a predictor is, and the part that all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from crossknn.linalg import mask, top_k
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Observed, Queries

State = TypeVar("State")


class Prediction(NamedTuple):
    """Approximate scores: `mean` (m, p), and `std` (m, p) from predictors that know it."""

    mean: FloatArray
    std: FloatArray | None = None


class Predictor(ABC, Generic[State]):
    """Approximate scores of unscored items, given the exact scores so far.

    A predictor holds the item side only; what belongs to a batch of queries is its state, a value
    that `update` replaces, never changes.
    """

    has_std: ClassVar[bool] = False
    """Whether it knows how far its predictions may be off."""

    @abstractmethod
    def start(self, queries: Queries) -> State:
        """The state before any exact score is known."""

    @abstractmethod
    def update(self, state: State, observed: Observed) -> State:
        """The state once the scores in `observed` (all so far) are known."""

    @abstractmethod
    def predict(self, state: State, items: IntArray | None = None) -> Prediction:
        """Approximate scores of `items` (m, p), or of all n items: (m, n)."""

    def posterior(self, state: State, items: IntArray | None = None) -> Prediction:
        """As `predict`, with deviations wherever the predictor knows them, whatever they cost."""
        return self.predict(state, items)

    def acquisition(self, prediction: Prediction) -> FloatArray:
        """What `top` ranks unscored items by, (m, p): their approximate scores.

        Override to count on what is not known well, too.
        """
        return prediction.mean

    def shortlist(self, state: State, pool: IntArray, allowed: BoolArray | None = None) -> IntArray:
        """What a query is restricted to after its first scores, (m, s) padded with `NO_ITEM`.

        `pool` (m, s) is the retriever's best. Override to put in what promises more.
        """
        return pool

    def top(
        self,
        state: State,
        count: int,
        exclude: IntArray,
        allowed: BoolArray | None = None,
        pool: IntArray | None = None,
    ) -> Candidates:
        """The `count` items of each query that promise most, ties by position, and their means.

        `exclude` (m, e) and `pool` (m, s) are rows of positions padded with `NO_ITEM`; a pool
        restricts its query to the items in it. Override where an index can do this faster.
        """
        if pool is None:
            prediction = self.predict(state)
            best = top_k(mask(self.acquisition(prediction), exclude, allowed), count).items
            return _with_means(best, best, prediction)
        pool = np.sort(pool, axis=1)
        prediction = self.predict(state, np.maximum(pool, 0))
        promise = np.array(self.acquisition(prediction))
        promise[pool == NO_ITEM] = -np.inf
        for row, out in enumerate(exclude):
            promise[row, np.isin(pool[row], out)] = -np.inf
        if allowed is not None:
            promise[~allowed[pool]] = -np.inf
        best = top_k(promise, count).items
        items = np.take_along_axis(pool, np.maximum(best, 0), axis=1)
        return _with_means(items, best, prediction)


def _with_means(items: IntArray, where: IntArray, prediction: Prediction) -> Candidates:
    """`items` (m, c) as predicted; `where` (m, c) they stand, `NO_ITEM` for none."""
    none, place = where == NO_ITEM, np.maximum(where, 0)
    means = np.take_along_axis(prediction.mean, place, axis=1)
    std = None if prediction.std is None else np.take_along_axis(prediction.std, place, axis=1)
    return Candidates(np.where(none, NO_ITEM, items), np.where(none, -np.inf, means), std)
