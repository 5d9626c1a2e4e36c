"""What a retriever is."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from crossknn.types import BoolArray, Candidates, FloatArray, Queries


@runtime_checkable
class Retriever(Protocol):
    """Cheap candidates and cheap scores of items."""

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The `count` best items of each query, best first, ties by position.

        `allowed` (n,) restricts the items. A row may be shorter than `count`.
        """
        ...

    def scores(self, queries: Queries) -> FloatArray:
        """Scores of all items: (m, n) float32."""
        ...
