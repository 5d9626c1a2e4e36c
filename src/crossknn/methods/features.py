"""Basis functions of a trend, and where the items are that a linear prediction ranks first.

Where a search predicts over a pool, nothing is computed of all n items: a feature is a function of
an item's point, or is looked up, and its mean and deviation over all items follow from the spread
of their vectors.

Axes: m queries, n items, c items asked for, p coordinates of a point, r factors, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from crossknn.linalg import inner, mask, standardised, top_k
from crossknn.retrievers.base import DenseRetriever, Retriever, VectorStore
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Queries

SAMPLE = 50_000
"""Items, at most, whose spread stand for those of all."""

_BLOCK = 16_384

Values: TypeAlias = Callable[[int, IntArray, FloatArray], FloatArray]
"""Of a basis function, for (query, items (c,), their points (c, p)): (c,)."""


class Affine(NamedTuple):
    """Of m queries, a function of items' points x (p,): `weights` (m, p) . x + `offsets` (m,)."""

    weights: FloatArray
    offsets: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Feature:
    """A basis function: a number for each query and item.

    Args:
        of_all: Its values (m, n).
        linear: The same as a function of points, where it is one.
        given: The same of some items, where that is neither.
        fixed: The values (n,), where they are the same for all queries.
        best: The largest values (m,), where they are found without all.
    """

    of_all: Callable[[Queries], FloatArray]
    linear: Callable[[Queries], Affine] | None = None
    given: Callable[[Queries], Values] | None = None
    fixed: FloatArray | None = None
    best: Callable[[Queries], FloatArray] | None = None

    def of_some(self, queries: Queries) -> Values:
        """The values of given items."""
        if (fixed := self.fixed) is not None:
            return lambda q, items, points: fixed[items]
        if self.linear is not None:
            weights, offsets = self.linear(queries)
            return lambda q, items, points: points @ weights[q] + offsets[q]
        if self.given is not None:
            return self.given(queries)
        values = self.of_all(queries)
        return lambda q, items, points: values[q, items]


class Spread(NamedTuple):
    """Of vectors (n, d): their mean (d,) and covariance (d, d)."""

    mean: FloatArray
    covariance: FloatArray

    @staticmethod
    def of(take: Callable[[IntArray], FloatArray], n: int) -> Spread:
        """Of n vectors, which `take` gives by positions; of 50,000 of them if there are more."""
        items = np.arange(n)
        if n > SAMPLE:
            items = np.sort(np.random.default_rng(0).choice(n, SAMPLE, replace=False))
        d = take(items[:1]).shape[1]
        mean, products = np.zeros(d), np.zeros((d, d))
        for start in range(0, len(items), _BLOCK):
            vectors = take(items[start : start + _BLOCK]).astype(np.float64)
            mean += vectors.sum(axis=0) / len(items)
            products += vectors.T @ vectors
        return Spread(mean, products / len(items) - np.outer(mean, mean))

    def standardised(self, directions: FloatArray) -> Affine:
        """The inner products with `directions` (m, d), about their mean over the vectors and in
        their deviations; 0 where these are 0."""
        means = directions @ self.mean
        squares = np.einsum("md,de,me->m", directions, self.covariance, directions)
        sizes = np.sqrt(np.maximum(squares, 0))
        some = sizes > 1e-6 * np.maximum(np.abs(means), np.abs(directions).max(axis=1))
        scale = np.where(some, 1 / np.where(some, sizes, 1), 0)
        single = (directions * scale[:, None]).astype(np.float32)
        return Affine(single, (-means * scale).astype(np.float32))


def of_retriever(
    retriever: Retriever,
    points: VectorStore,
    rank: int = 0,
    spread: Callable[[VectorStore], Spread] | None = None,
) -> Feature:
    """A retriever's scores: standardised over all items by the `spread` of its vectors, or as they
    are. Items' points are `rank` factors, then their vectors in `points`."""

    def of_all(queries: Queries) -> FloatArray:
        scores = retriever.scores(queries)
        return scores if spread is None else standardised(scores)

    if not isinstance(retriever, DenseRetriever):
        return Feature(of_all=of_all)
    store, encode = retriever.items, retriever.encode

    def affine(queries: Queries) -> Affine:
        vectors = encode(queries)
        if spread is None:
            return Affine(vectors, np.zeros(len(vectors), np.float32))
        return spread(store).standardised(vectors)

    def linear(queries: Queries) -> Affine:
        weights, offsets = affine(queries)
        return Affine(np.pad(weights, ((0, 0), (rank, 0))), offsets)

    def given(queries: Queries) -> Values:
        weights, offsets = affine(queries)
        return lambda q, items, _: store.vectors(items) @ weights[q] + offsets[q]

    def best(queries: Queries) -> FloatArray:
        weights, offsets = affine(queries)
        return store.top(weights, 1).scores[:, 0] + offsets

    if store is points:
        return Feature(of_all=of_all, linear=linear, best=best)
    return Feature(of_all=of_all, given=given, best=best)


@dataclass(frozen=True, eq=False)
class PointStore:
    """Items' points as vectors that are searched: factors (n, r), then vectors (n, d), then a
    column (n,); a `VectorStore`.

    With `lists`, an approximate index of these points, it is asked. Without, all points are
    multiplied; or, where the vectors are in a store that is no array, the best by their part are
    taken, and the best by the rest.
    """

    factor: FloatArray
    items: VectorStore
    column: FloatArray
    lists: VectorStore | None = None

    values = None

    @property
    def shape(self) -> tuple[int, int]:
        """(n, r + d + 1)"""
        return len(self.column), self.factor.shape[1] + self.items.shape[1] + 1

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, items: Any) -> FloatArray:
        """Points of the items at positions or in a slice."""
        where = np.arange(*items.indices(len(self))) if isinstance(items, slice) else items
        return self.vectors(where)

    def vectors(self, items: IntArray) -> FloatArray:
        """See `VectorStore.vectors`."""
        parts = self.factor[items], self.items.vectors(items), self.column[items][..., None]
        return np.concatenate([part.astype(np.float32, copy=False) for part in parts], axis=-1)

    def top(
        self,
        vectors: FloatArray,
        count: int,
        exclude: IntArray | None = None,
        allowed: BoolArray | None = None,
    ) -> Candidates:
        """See `VectorStore.top`."""
        if self.lists is not None:
            return self.lists.top(vectors, count, exclude, allowed)
        r = self.factor.shape[1]
        rest = inner(vectors[:, :r], self.factor) + np.outer(vectors[:, -1], self.column)
        own = vectors[:, r:-1]
        if self.items.values is not None:
            return top_k(mask(rest + inner(own, self.items.values), exclude, allowed), count)
        found = self.items.top(own, count, exclude, allowed).items
        others = top_k(mask(rest, exclude, allowed), count).items
        rows = []
        for vector, *both in zip(vectors, found, others, strict=True):
            items = np.unique(np.concatenate(both))
            items = items[items >= 0]
            best = top_k((self.vectors(items) @ vector)[None], count)
            rows.append((items[best.items[0]], best.scores[0]))
        return Candidates.from_rows(rows)
