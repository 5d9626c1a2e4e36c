"""Retrieval by vectors: where the items' vectors are kept, and who searches them.

Axes: m queries, n items, c items asked for each query, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from crossknn.columns import check_mapped
from crossknn.errors import InputError
from crossknn.linalg import inner, mask, top_k
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Queries

WHOLE = 50_000
"""Items up to which a round may multiply all vectors."""


@runtime_checkable
class VectorStore(Protocol):
    """Item vectors that are searched by inner product, in memory or in a vector database."""

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)"""

    @property
    def values(self) -> FloatArray | None:
        """All vectors (n, d), if a round of a search may multiply them all; None if `top` is the
        way to find the best of them."""

    def top(
        self,
        vectors: FloatArray,
        count: int,
        exclude: IntArray | None = None,
        allowed: BoolArray | None = None,
    ) -> Candidates:
        """The items of each query with the largest inner products.

        Args:
            vectors: Query vectors (m, d).
            count: How many items of each query.
            exclude: Positions (m, e) of items that are left out, padded with `NO_ITEM` (-1).
            allowed: Mask (n,) of the items that may be returned; None: all.

        Returns:
            Candidates (m, at most `count`), best first.
        """

    def vectors(self, items: IntArray) -> FloatArray:
        """Vectors of given items.

        Args:
            items: Positions, an array of any shape (...).

        Returns:
            Vectors (..., d), float32 or float16.
        """


@dataclass(frozen=True, eq=False)
class ArrayStore:
    """Item vectors in an array, searched exactly; a `VectorStore`.

    Args:
        values: The vectors (n, d), float32 or float16; may be memory-mapped.
    """

    values: FloatArray

    @property
    def shape(self) -> tuple[int, int]:
        """(n, d)"""
        n, d = self.values.shape
        return n, d

    def top(
        self,
        vectors: FloatArray,
        count: int,
        exclude: IntArray | None = None,
        allowed: BoolArray | None = None,
    ) -> Candidates:
        """See `VectorStore.top`; ties by position."""
        check_mapped(self.values)
        return top_k(mask(inner(vectors, self.values), exclude, allowed), count)

    def vectors(self, items: IntArray) -> FloatArray:
        """See `VectorStore.vectors`."""
        check_mapped(self.values)
        return self.values[items]


@dataclass(eq=False)
class DenseRetriever:
    """Retrieves items by the inner product of their vectors with the query's; a `Retriever`.

    Args:
        items: Where the item vectors (n, d) are, such as `ArrayStore(vectors)`.
        encode: Function from queries (m) to their vectors (m, d).
    """

    items: VectorStore
    encode: Callable[[Queries], FloatArray]

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The items of the largest inner products; see `Retriever.top`."""
        return self.items.top(self.encode(queries), count, allowed=allowed)

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Inner products with given items, or with all; see `Retriever.scores`.

        Raises:
            InputError: All items are asked for, and the store does not give all vectors at once.
        """
        vectors, values = self.encode(queries), self.items.values
        if items is not None:
            products = np.empty(items.shape, np.float32)
            for row, vector, chosen in zip(products, vectors, items, strict=True):
                row[:] = inner(vector[None], self.items.vectors(chosen))[0]
            return products
        if values is None:
            raise InputError("scores of all items need their vectors as an array, not a store")
        check_mapped(values)
        return inner(vectors, values)
