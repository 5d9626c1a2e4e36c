"""What a method decides before a search: who picks first, who predicts, what each round costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from crossknn.linalg import mask, top_k
from crossknn.retrievers.base import Retriever
from crossknn.search.sharing import SharedBudget
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Observed, Queries

State = TypeVar("State")

KnownPart: TypeAlias = Callable[[Queries], FloatArray]
"""What fusion adds to the exact scores of all items: (m, n)."""


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
    predicts_scores: ClassVar[bool] = True
    """Whether its means are approximate exact scores, not other numbers that rank items."""

    @abstractmethod
    def start(self, queries: Queries) -> State:
        """The state before any exact score is known."""

    @abstractmethod
    def update(self, state: State, observed: Observed) -> State:
        """The next state, once the scores in `observed` (all so far) are known."""

    @abstractmethod
    def predict(self, state: State, items: IntArray | None = None) -> Prediction:
        """Approximate scores of `items` (m, p), any for `NO_ITEM`, or of all n items: (m, n)."""

    def acquisition(self, prediction: Prediction) -> FloatArray:
        """What `top` ranks unscored items by, (m, p): by default their approximate scores."""
        return prediction.mean

    def joining(
        self, state: State, count: int, exclude: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        """Items (m, c) that join those a query is restricted to, before a round: by default none.

        `exclude` (m, e) are the items scored so far; about `count` are asked for.
        """
        return np.empty((len(exclude), 0), np.int64)

    def top(
        self,
        state: State,
        count: int,
        exclude: IntArray,
        allowed: BoolArray | None = None,
        pool: IntArray | None = None,
    ) -> Candidates:
        """The `count` items of each query of the highest acquisition value, and their means.

        `exclude` (m, e) and `pool` (m, s) are rows of positions padded with `NO_ITEM`; a pool
        restricts its query to the items in it. Override where an index can do this faster.
        """
        return self.top_by(self.acquisition, state, count, exclude, allowed, pool)

    def top_by(
        self,
        acquisition: Callable[[Prediction], FloatArray],
        state: State,
        count: int,
        exclude: IntArray,
        allowed: BoolArray | None = None,
        pool: IntArray | None = None,
    ) -> Candidates:
        """`top` by another acquisition value than its own."""
        prediction = self.predict(state, pool)
        promise = acquisition(prediction)
        if pool is None:
            best = items = top_k(mask(promise, exclude, allowed), count).items
        else:
            out = np.stack([np.isin(row, seen) for row, seen in zip(pool, exclude, strict=True)])
            out |= pool == NO_ITEM
            if allowed is not None:
                out |= ~allowed[pool]
            order = np.argsort(pool, axis=1)  # ties by position
            promise = np.take_along_axis(np.where(out, -np.inf, promise), order, axis=1)
            best = top_k(promise, count).items
            ended, best = best, np.take_along_axis(order, np.maximum(best, 0), axis=1)
            items = np.take_along_axis(pool, best, axis=1)
            best = np.where(ended == NO_ITEM, NO_ITEM, best)
        none, place = best == NO_ITEM, np.maximum(best, 0)
        means = np.take_along_axis(prediction.mean, place, axis=1)
        std = None if prediction.std is None else np.take_along_axis(prediction.std, place, axis=1)
        return Candidates(np.where(none, NO_ITEM, items), np.where(none, -np.inf, means), std)


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """A query is done when it expects to have found `expected` (0-1) of its true top `k`."""

    k: int
    expected: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a method does: its retriever, its predictor, and how many items each round scores.

    `batches` sum to the budget; if there are none, the retriever's ranking is the answer.
    `shortlist` restricts every query to that many items of the retriever, and of each of `stages`
    (AXN 3: very large corpora), and those that the predictor lets join them. `stop` ends a query
    before its budget does; with `share`, queries spend a budget together, and `batches` sum to an
    equal part of it. Both need a predictor with standard deviations (`has_std`). `known` is what
    fusion adds to exact scores; the predictor then predicts the sum. `last` gives the acquisition
    values of the last round in the place of the predictor.
    """

    retriever: Retriever
    predictor: Predictor[Any]
    batches: tuple[int, ...]
    shortlist: int | None = None
    stages: Sequence[Retriever] = ()
    stop: Stop | None = None
    share: SharedBudget | None = None
    known: KnownPart | None = None
    last: Callable[[Prediction], FloatArray] | None = None
