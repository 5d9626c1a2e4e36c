"""What a retriever and a vector store are, and the retrievers that know a score of every item.

Axes: m queries, n items, c items asked for each query, d dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol, runtime_checkable

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import mask, top_k
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Queries


@runtime_checkable
class Retriever(Protocol):
    """Cheap candidates, and cheap scores of given items."""

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The `count` best items of each query, best first, ties by position.

        Args:
            allowed: (n,) restricts the items.

        Returns:
            Candidates (m, <= count); a row may be shorter than `count`.
        """
        ...

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Scores of given items.

        Args:
            items: Positions (m, c), any score for `NO_ITEM`. None for all n items, which is asked
                only of a corpus that fits into memory.

        Returns:
            Scores (m, c), or (m, n), float32.
        """
        ...


@runtime_checkable
class VectorStore(Protocol):
    """Item vectors that are searched by inner product: in memory, or in a vector database."""

    def top(
        self,
        vectors: FloatArray,
        count: int,
        exclude: IntArray | None = None,
        allowed: BoolArray | None = None,
    ) -> Candidates:
        """The `count` items of the largest inner products with query vectors (m, d).

        Args:
            exclude: Positions (m, e) that are left out, padded with `NO_ITEM`.
            allowed: (n,) restricts the items.
        """
        ...

    def vectors(self, ids: IntArray) -> FloatArray:
        """Vectors (..., d) of the items at positions (...)."""
        ...


class AllScores(ABC):
    """A retriever that scores all n items at once; subclasses say how."""

    @abstractmethod
    def of_all(self, queries: Queries) -> FloatArray:
        """Scores of all items: a new array (m, n) float32."""

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Scores (m, c) of given items, or of all: (m, n)."""
        scores = self.of_all(queries)
        return scores if items is None else np.take_along_axis(scores, items, axis=1)

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The best allowed items of each query; see `Retriever.top`."""
        return top_k(mask(self.of_all(queries), None, allowed), count)


class RandomItems(AllScores):
    """Items uniformly at random, drawn anew for each query (by its text and the seed)."""

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed

    def of_all(self, queries: Queries) -> FloatArray:
        """Random numbers (m, n) between 0 and 1."""
        rows = [queries.generator(q, self.seed).random(self.n) for q in range(len(queries))]
        return np.array(rows, dtype=np.float32)


class ItemPriors(AllScores):
    """One number for each item, the same for every query: how often it is read, how new it is.

    On its own it is a poor retriever; it is meant for what `kriging` predicts from:
    `index.add_retriever("views", ItemPriors(views))`, `kriging(mean=hybrid(bm25, dense, views))`.
    """

    def __init__(self, values: FloatArray) -> None:
        """`values` (n,), in the order of the items; `InputError` for one that is no number."""
        try:
            self.values = np.asarray(values, np.float32)
        except (TypeError, ValueError):
            self.values = np.full(1, np.nan, np.float32)
        if self.values.ndim != 1 or not np.isfinite(self.values).all():
            raise InputError("priors of items are an array of finite numbers, one for each item")

    def of_all(self, queries: Queries) -> FloatArray:
        """The priors, for every query: (m, n)."""
        return np.tile(self.values, (len(queries), 1))


def scores_of(found: Candidates, items: IntArray, missing: FloatArray | float) -> FloatArray:
    """Scores (m, c) of items (m, c) that may be among the `found`; `missing` (m,) of the others."""
    scores = np.empty(items.shape, np.float32)
    scores[:] = np.asarray(missing)[..., None]
    for row, (wanted, known) in enumerate(zip(items, found.items, strict=True)):
        order = np.argsort(known)
        where = order[np.searchsorted(known, wanted, sorter=order).clip(max=len(known) - 1)]
        here = (known[where] == wanted) & (wanted != NO_ITEM)
        scores[row, here] = found.scores[row, where[here]]
    return scores


def fixed_order(order: IntArray, n: int) -> ItemPriors:
    """The items of `order`, then the others, for every query: ANNCUR's anchor items."""
    values = np.empty(n, np.float32)
    values[np.concatenate([order, np.setdiff1d(np.arange(n), order)])] = -np.arange(n)
    return ItemPriors(values)
