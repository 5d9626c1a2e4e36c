"""What a retriever and a vector store are, and the retrievers that read no texts: at random, by
priors of items, by inner products with vectors, and the fusion of several.

Axes: m queries, n items, c items asked for each query, d dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import inner, mask, top_k
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

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Scores of given items.

        Args:
            items: Positions (m, c), any score for `NO_ITEM`. None for all n items, which is asked
                only of a corpus that fits into memory.

        Returns:
            Scores (m, c), or (m, n), float32.
        """


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

    def vectors(self, ids: IntArray) -> FloatArray:
        """Vectors (..., d) of the items at positions (...)."""


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


class VectorArray:
    """A `VectorStore` over an array (n, d), float32 or float16, possibly memory-mapped."""

    def __init__(self, values: FloatArray) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def top(
        self,
        vectors: FloatArray,
        count: int,
        exclude: IntArray | None = None,
        allowed: BoolArray | None = None,
    ) -> Candidates:
        """The `count` items of the largest inner products, exactly; see `VectorStore.top`."""
        return top_k(mask(inner(vectors, np.asarray(self.values)), exclude, allowed), count)

    def vectors(self, ids: IntArray) -> FloatArray:
        """Vectors (..., d) of the items at positions (...)."""
        return self.values[ids]


class DenseRetriever:
    """Items by inner product with the queries' vectors.

    Args:
        store: Item vectors (n, d) as an array, or a vector store.
        encode: Gives query vectors (m, d).
    """

    def __init__(
        self, store: VectorStore | FloatArray, encode: Callable[[Queries], FloatArray]
    ) -> None:
        self.store: VectorStore = store if isinstance(store, VectorStore) else VectorArray(store)
        self.encode = encode

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The items of the largest inner products; see `Retriever.top`."""
        return self.store.top(self.encode(queries), count, None, allowed)

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Inner products with given items, (m, c), or with those of an array, (m, n)."""
        vectors = self.encode(queries)
        if items is None:
            return inner(vectors, np.asarray(self.store.values))  # type: ignore[attr-defined]
        products = np.empty(items.shape, np.float32)
        for row, (vector, chosen) in enumerate(zip(vectors, items, strict=True)):
            products[row] = inner(vector[None], self.store.vectors(chosen))[0]
        return products


class RankFusion:
    """Reciprocal rank fusion (Cormack et al. 2009): items by the sum of 1 / (60 + rank) over the
    rankings of `stages`, ranks from 1.

    An item that a stage does not find gets nothing from it. The stages' first 10,000 items are
    read, or `count` if that is more; all of them for scores of all items.
    """

    constant = 60
    depth = 10_000

    def __init__(self, stages: Sequence[Retriever]) -> None:
        self.stages = tuple(stages)

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The items of the largest sums; see `Retriever.top`."""
        depth = max(count, self.depth)
        rankings = [stage.top(queries, depth, allowed).items for stage in self.stages]
        rows = []
        for ranked in zip(*rankings, strict=True):
            items, sums = self._fused([row[row != NO_ITEM] for row in ranked])
            best = np.lexsort((items, -sums))[:count]
            rows.append((items[best], sums[best]))
        return Candidates.from_rows(rows)

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Sums (m, c) for given items, or for all: (m, n)."""
        if items is None:
            return np.sum([self._all(stage.scores(queries)) for stage in self.stages], axis=0)
        return scores_of(self.top(queries, self.depth * len(self.stages)), items, 0)

    def _fused(self, rows: Sequence[IntArray]) -> tuple[IntArray, FloatArray]:
        """The items in any of the stages' rankings, in order, and their sums."""
        items, where = np.unique(np.concatenate(rows), return_inverse=True)
        sums = np.zeros(len(items), np.float32)
        np.add.at(sums, where, np.concatenate([self._values(len(row)) for row in rows]))
        return items, sums

    def _all(self, scores: FloatArray) -> FloatArray:
        """Reciprocal ranks of all items in a stage's scores: (m, n) -> (m, n)."""
        ranks = np.zeros(scores.shape, np.float32)
        for row, items in enumerate(top_k(scores, scores.shape[1]).items):
            found = items[items != NO_ITEM]
            ranks[row, found] = self._values(len(found))
        return ranks

    def _values(self, count: int) -> FloatArray:
        return (1 / (self.constant + 1 + np.arange(count))).astype(np.float32)


def stages_of(retriever: Retriever) -> Sequence[Retriever]:
    """The stages of a fusion, or the one retriever."""
    return retriever.stages if isinstance(retriever, RankFusion) else (retriever,)
