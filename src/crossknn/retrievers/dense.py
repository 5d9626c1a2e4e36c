"""Inner products with item vectors: the dual encoder, LSA, your own vectors.

Axes: m queries, n items, c items asked for each query, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from crossknn.linalg import inner, mask, top_k
from crossknn.retrievers.base import VectorStore
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Queries


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
