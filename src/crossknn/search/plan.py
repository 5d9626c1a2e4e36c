"""What a method decides before a search: who picks first, who predicts, what each round costs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import mask, top_k
from crossknn.retrievers.base import Retriever
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Observed, Queries

State = TypeVar("State")

KnownPart: TypeAlias = Callable[[Queries], FloatArray]
"""What fusion adds to the exact scores of all items: (m, n)."""


FAR = 5.0
"""Standard deviations from which on an item is taken to be no rival of the top k."""
SMALLEST = np.finfo(np.float32).tiny


class Prediction(NamedTuple):
    """Approximate scores of p items of each of m queries.

    Args:
        mean: The scores (m, p).
        std: Their standard deviations (m, p), from predictors that know them; NaN where nothing can
            be said.
    """

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
        """Begin with a batch of queries.

        Args:
            queries: m queries.

        Returns:
            The state before any exact score is known.
        """

    @abstractmethod
    def update(self, state: State, observed: Observed) -> State:
        """Take new exact scores in.

        Args:
            state: The state of before; it must not be changed.
            observed: All exact scores so far, not only the new ones.

        Returns:
            The next state.
        """

    @abstractmethod
    def predict(self, state: State, items: IntArray | None = None) -> Prediction:
        """Predict scores.

        Args:
            state: The current state.
            items: Positions (m, p) of p items of each query; what is predicted for `NO_ITEM` (-1)
                does not matter. None: all n items.

        Returns:
            Approximate scores (m, p), or (m, n).
        """

    def acquisition(self, prediction: Prediction) -> FloatArray:
        """What `top` ranks unscored items by; by default their approximate scores.

        Args:
            prediction: What `predict` returned.

        Returns:
            Acquisition values (m, p); the highest are scored next.
        """
        return prediction.mean

    def joining(
        self, state: State, count: int, exclude: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        """Items that join a query's shortlist before a round; by default none.

        Args:
            state: The current state.
            count: About how many items of each query are wanted.
            exclude: Positions (m, e) of the items scored so far, padded with `NO_ITEM` (-1).
            allowed: Mask (n,) of the items that may be scored; None: all.

        Returns:
            Positions (m, c), padded with `NO_ITEM`.
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
        """The items of each query with the highest acquisition values.

        Override it where an index finds them faster than by predicting all items.

        Args:
            state: The current state.
            count: How many items of each query.
            exclude: Positions (m, e) of items that are left out, padded with `NO_ITEM` (-1).
            allowed: Mask (n,) of the items that may be scored; None: all.
            pool: Positions (m, s) of the only items that are searched for each query, padded with
                `NO_ITEM`; None: all.

        Returns:
            Candidates (m, at most `count`), the highest value first; their scores are the means.
        """
        prediction = self.predict(state, pool)
        promise = self.acquisition(prediction)
        if pool is None:
            promise = mask(promise, exclude, allowed)
            self._check(prediction, promise)
            best = items = top_k(promise, count).items
        else:
            out = np.stack([np.isin(row, seen) for row, seen in zip(pool, exclude, strict=True)])
            out |= pool == NO_ITEM
            if allowed is not None:
                out |= ~allowed[pool]
            order = np.argsort(pool, axis=1)  # ties by position
            promise = np.where(out, -np.inf, promise)
            self._check(prediction, promise)
            promise = np.take_along_axis(promise, order, axis=1)
            best = top_k(promise, count).items
            ended, best = best, np.take_along_axis(order, np.maximum(best, 0), axis=1)
            items = np.take_along_axis(pool, best, axis=1)
            best = np.where(ended == NO_ITEM, NO_ITEM, best)
        none, place = best == NO_ITEM, np.maximum(best, 0)
        means = np.take_along_axis(prediction.mean, place, axis=1)
        std = None if prediction.std is None else np.take_along_axis(prediction.std, place, axis=1)
        return Candidates(np.where(none, NO_ITEM, items), np.where(none, -np.inf, means), std)

    def _check(self, prediction: Prediction, promise: FloatArray) -> None:
        """Refuse a mean that is NaN, of an item that may be chosen."""
        if np.isnan(prediction.mean).any():
            bad = np.isnan(prediction.mean) & (promise != -np.inf)
            if bad.any():
                raise InputError(
                    f"{type(self).__name__} predicts NaN for {bad.sum()} items that may be scored: "
                    "`predict` must give a number for each"
                )


def expected_recall(best: FloatArray, mean: FloatArray, std: FloatArray) -> float:
    """Of the k best scores known (k,), the share that no unscored item will push out.

    `mean` and `std` (c,) are the predictions of the unscored items, taken as independent. The
    j-th best stays if at most k - j of them are above it; their number is about Poisson, its mean
    the sum of their chances.

    >>> expected_recall(np.array([2.0, 1.0]), np.array([0.0]), np.array([1e-9]))
    1.0
    """
    from scipy.special import ndtr, pdtr

    k, best = len(best), np.sort(best)[::-1]
    near = mean + FAR * std > best[-1]
    chances = ndtr((mean[near] - best[:, None]) / np.maximum(std[near], SMALLEST))
    return float(pdtr(np.arange(k)[::-1], chances.sum(axis=1)).mean())


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """A query is done when it expects to have found `expected` (0-1) of its true top `k`."""

    k: int
    expected: float

    def value(self, known: FloatArray, mean: FloatArray, std: FloatArray) -> float:
        """The share that it expects.

        Args:
            known: Exact scores (b,), k at least.
            mean: Predictions (c,) of the unscored items.
            std: Their standard deviations (c,).

        Returns:
            What must be `expected` or more.
        """
        return expected_recall(np.sort(known)[-self.k :], mean, std)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a method does in a search: who picks the first items, who predicts, how many each round.

    Args:
        retriever: Picks the items of the first round.
        predictor: Picks the items of all later rounds.
        batches: How many items of each query every round scores; they sum to the budget. Without
            any, the answer is the retriever's ranking.
        shortlist: Search only so many items of the retriever, and of each of `stages`, and those
            that the predictor lets join them; for very large corpora (AXN, section 3). None: all.
        stages: Further retrievers of a shortlist.
        stop: Ends a query before its budget is spent. Needs standard deviations (`has_std`).
        known: What fusion adds to exact scores; the predictor then predicts the sum.
    """

    retriever: Retriever
    predictor: Predictor[Any]
    batches: tuple[int, ...]
    shortlist: int | None = None
    stages: Sequence[Retriever] = ()
    stop: Stop | None = None
    known: KnownPart | None = None
