"""The base class of methods, and the plan of a search that a method makes for an index and a
budget: the retriever, the predictor and the number of items per round.

Axes: m queries, n items, p predicted items, b scored items of a query, c unscored ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.linalg import mask, top_k
from crossknn.retrievers.base import WHOLE, Retriever
from crossknn.spec import check_options, text_of
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Observed, Queries

State = TypeVar("State")

AddedScores: TypeAlias = Callable[[Queries], FloatArray]
"""Computes the weighted retrievers' scores of all items: (m, n)."""

FAR = 5.0
"""An item predicted this many standard deviations below the k-th best score is taken to have no
chance of the top k."""
SMALLEST = np.finfo(np.float32).tiny

POOLED = 4_000
"""Up to this many items, each round predicts all of them; above, a pool is as good and faster."""
POOL, PER_CALL = 400, 3
"""Minimum number of items that each retriever adds to a pool, in all and per scored pair."""


class Prediction(NamedTuple):
    """Predicted scores (m, p), and their standard deviations (m, p) from predictors that know them;
    NaN if unknown."""

    mean: FloatArray
    std: FloatArray | None = None


class Predictor(ABC, Generic[State]):
    """Predicts the scores of unscored items from the exact scores so far. It holds only data about
    items; data about a batch of queries is its state, an immutable value that `update` replaces."""

    predicts_scores: ClassVar[bool] = True
    """Whether its means approximate exact scores, rather than being other numbers that rank
    items."""

    @abstractmethod
    def start(self, queries: Queries) -> State:
        """The state of m queries before any exact score is known."""

    @abstractmethod
    def update(self, state: State, observed: Observed) -> State:
        """Return the next state, given all exact scores so far, not only the new ones. The old
        state must not be changed."""

    @abstractmethod
    def predict(self, state: State, items: IntArray | None = None) -> Prediction:
        """Predict scores of `items` (m, p), given by position, or of all n items; values for
        `NO_ITEM` (-1) are ignored."""

    def acquisition(self, prediction: Prediction) -> FloatArray:
        """Return the values, of shape (m, p), by which `top` ranks p unscored items of m queries,
        highest first; by default the predicted scores."""
        return prediction.mean

    def taught(self, state: State) -> int:
        """Return how many queries of the batch have learned from each other; by default none."""
        return 0

    def joining(
        self, state: State, count: int, exclude: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        """Return the positions (m, c) of items that join a query's shortlist before a round, padded
        with `NO_ITEM` (-1); by default none.

        Args:
            state, count: The current state, and about how many items to return per query.
            exclude: Positions (m, e) of the items scored so far, padded with `NO_ITEM`.
            allowed: Mask (n,) of the items that may be scored; None: all.
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
        """Return the items of each query with the highest acquisition values, and their means; ties
        go to the lower position. Override it if an index finds them faster.

        Args:
            state, count: The current state, and the number of items per query.
            exclude: Positions (m, e) of items that are left out, padded with `NO_ITEM` (-1).
            allowed: Mask (n,) of the items that may be scored; None: all.
            pool: Positions (m, s) of the items to choose from, padded with `NO_ITEM`; None: all.
        """
        prediction = self.predict(state, pool)
        value = self.acquisition(prediction)
        if pool is None:
            value = mask(value, exclude, allowed)
        else:
            out = np.empty(pool.shape, np.bool_)
            for row, items, seen in zip(out, pool, exclude, strict=True):
                marks = np.zeros(2 + max(items.max(initial=0), seen.max(initial=0)), np.bool_)
                marks[seen] = marks[NO_ITEM] = True
                row[:] = marks[items]
            if allowed is not None:
                out |= ~allowed[pool]
            value = np.where(out, -np.inf, value)
        wrong = np.isnan(prediction.mean)
        if wrong.any() and (wrong := wrong & (value != -np.inf)).any():
            raise InputError(
                f"{type(self).__name__} predicts NaN for {wrong.sum()} items that may be scored: "
                "`predict` must give a number for each"
            )
        columns = items = top_k(value, count, pool).items
        if pool is not None:
            items = np.take_along_axis(pool, np.maximum(columns, 0), axis=1)
        none, place = columns == NO_ITEM, np.maximum(columns, 0)
        means = np.take_along_axis(prediction.mean, place, axis=1)
        std = None if prediction.std is None else np.take_along_axis(prediction.std, place, axis=1)
        return Candidates(np.where(none, NO_ITEM, items), np.where(none, -np.inf, means), std)


def expected_recall(best: FloatArray, mean: FloatArray, std: FloatArray) -> float:
    """Estimate the share of the k best scores so far that stays in the top k, given predictions
    (c,) of the unscored items, taken as independent.

    The j-th best stays if at most k - j unscored items are above it. Their number is approximately
    Poisson, with the sum of their probabilities as its mean.

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
    """Stops a query when its expected recall of its true top `k` reaches `expected` (0-1)."""

    k: int
    expected: float

    def value(self, scores: FloatArray, mean: FloatArray, std: FloatArray) -> float:
        """A query's expected recall, given its exact scores (b,), at least k, and the predictions
        (c,) of its unscored items; see `expected_recall`."""
        return expected_recall(np.sort(scores)[-self.k :], mean, std)


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A method's plan of a search.

    Args:
        retriever, predictor: Pick the items of the first round, and those of all later rounds.
        batches: Number of items per query that each round scores; they sum to the budget. Without
            batches, the answer is the retriever's ranking.
        shortlist, stages: Search only this many items of the retriever and of each of these further
            ones, and items that the predictor adds (AXN, section 3). None: all items.
        stop: Ends a query before its budget is spent. Needs predictions with `std`.
        added: Computes the retrievers' weighted scores that fusion adds; the predictor then
            predicts the sum.
    """

    retriever: Retriever
    predictor: Predictor[Any]
    batches: tuple[int, ...]
    shortlist: int | None = None
    stages: Sequence[Retriever] = ()
    stop: Stop | None = None
    added: AddedScores | None = None


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A configuration of a search; `str(method)` is its spec.

    Subclasses are frozen keyword-only dataclasses. An option that takes a specification may be
    given as text, `AXN(retriever="bm25")`; a wrong value raises SpecError.
    """

    name: ClassVar[str]
    calls: ClassVar[bool] = True
    """Whether the method calls the cross-encoder."""
    bounded: ClassVar[bool] = True
    """Whether the method's plans keep to the budget."""
    reads: ClassVar[Collection[str]] = ()
    """The method's `required_artifacts`, if they are the same for every index."""

    def __post_init__(self) -> None:
        check_options(self.name, self)

    @abstractmethod
    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        """Make the plan of a search; `InputError` if the index lacks what the method needs.

        Args:
            index: The index to search.
            budget: Maximum number of pairs scored per query.
            seed: Seed of all randomness.
        """

    def required_artifacts(self, index: Index) -> Collection[str]:
        """Names of artifacts, and of item vectors with a fitted scale, that the plan needs; they
        must belong to the scoring cross-encoder."""
        return self.reads

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return text_of(self.name, self)


def planned(method: Method, index: Index, budget: int, seed: int) -> Plan:
    """Return `method.plan`; `InputError` if the plan scores more pairs per query than the
    budget."""
    plan = method.plan(index, budget, seed)
    if method.bounded and sum(plan.batches) > budget:
        raise InputError(
            f"the plan of {method.name!r} scores {sum(plan.batches)} pairs of a query, more "
            f"than the budget of {budget}: its batches must sum to the budget"
        )
    return plan


def pool_size(index: Index, budget: int, shortlist: int | None) -> int | None:
    """Return the size of the shortlist, None for all items: by default at least `POOL` if there are
    more than `POOLED` items. From a database up to `WHOLE` vectors are read into memory,
    because a shortlist would send requests to the database in every round."""
    if shortlist is not None:
        return shortlist if shortlist < index.n else None
    in_database = getattr(index, "database", None) is not None
    many = index.n > (WHOLE if in_database else POOLED)
    return max(POOL, PER_CALL * budget) if many else None


def part(budget: int, share: float) -> int:
    """Return `share` of the budget as an integer of at least one."""
    return min(budget, max(1, round(budget * share)))


def equal_rounds(budget: int, rounds: int) -> tuple[int, ...]:
    """Split a budget into equal batches of at least one pair; the last also takes the remainder.

    >>> equal_rounds(23, 5)
    (4, 4, 4, 4, 7)
    """
    rounds = max(1, min(rounds, budget))
    batch = budget // rounds
    return (batch,) * (rounds - 1) + (budget - batch * (rounds - 1),)
