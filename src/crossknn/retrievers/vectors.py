"""Inner products with item vectors as a retriever: the dual encoder, LSA, the user's vectors."""

from __future__ import annotations

from collections.abc import Callable

from crossknn.linalg import inner, mask, top_k
from crossknn.types import BoolArray, Candidates, FloatArray, Queries


class VectorFirst:
    """Items by inner product: item vectors (n, d), and a function giving query vectors (m, d)."""

    def __init__(self, items: FloatArray, encode: Callable[[Queries], FloatArray]) -> None:
        self.items, self.encode = items, encode

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        return top_k(mask(self.scores(queries), None, allowed), count)

    def scores(self, queries: Queries) -> FloatArray:
        return inner(self.encode(queries), self.items)
