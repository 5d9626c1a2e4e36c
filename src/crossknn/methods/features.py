"""Basis functions of kriging's trends, and search for the items with the best linear predictions.

A search that predicts over a pool computes nothing for all n items. A feature is a function of an
item's point, or is looked up; its mean and standard deviation over all items follow from the
covariance of the vectors.

Axes: m queries, n items, c requested items, p coordinates of a point, r factors, d dimensions.
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
"""Number of items, at most, from which the mean and covariance of all vectors are estimated."""

_BLOCK = 16_384

Values: TypeAlias = Callable[[int, IntArray, FloatArray], FloatArray]
"""Computes a basis function (c,) of a query at items (c,) with their points (c, p)."""


class Affine(NamedTuple):
    """An affine function of items' points x (p,) for m queries: `weights` (m, p) . x + `offsets`
    (m,)."""

    weights: FloatArray
    offsets: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Feature:
    """A basis function, with a value for each query and item.

    Args:
        of_all: Computes its values (m, n).
        linear: The same as an affine function of points, if it is one.
        given: Computes the values of given items, if there is no affine function.
        fixed: The values (n,), if they are the same for all queries.
        best: Finds the largest values (m,) without computing all, if possible.
    """

    of_all: Callable[[Queries], FloatArray]
    linear: Callable[[Queries], Affine] | None = None
    given: Callable[[Queries], Values] | None = None
    fixed: FloatArray | None = None
    best: Callable[[Queries], FloatArray] | None = None

    def of_some(self, queries: Queries) -> Values:
        """Compute the values of given items."""
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
    """The mean (d,) and covariance (d, d) of vectors (n, d)."""

    mean: FloatArray
    covariance: FloatArray

    @staticmethod
    def of(take: Callable[[IntArray], FloatArray], n: int) -> Spread:
        """Compute them from n vectors, read by `take` at positions; from 50,000 of them if there
        are more."""
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
        """Standardise the inner products with `directions` (m, d) to mean 0 and deviation 1 over
        the vectors; 0 if the deviation is 0."""
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
    """Make a feature from a retriever's scores: standardised over all items if `spread`, the
    covariance of its vectors, is given. An item's point is `rank` factors followed by its vector in
    `points`."""

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
    """Searches items' points: factors (n, r), then vectors (n, d), then a column (n,); a
    `VectorStore`.

    It uses `lists`, an approximate index of these points, if given. Otherwise it multiplies all
    points, or, if the vectors are in a store without an array, takes the best by vector and the
    best by the other coordinates.
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
        """Return the points of items, by positions or a slice."""
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
