"""A retriever whose scores are stored."""

from __future__ import annotations

from crossknn.linalg import mask, top_k
from crossknn.types import BoolArray, Candidates, FloatArray, Queries


class StoredFirst:
    """Stored cheap scores (m, n): row r belongs to the r-th query of the batch."""

    def __init__(self, stored: FloatArray) -> None:
        self.stored = stored

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        return top_k(mask(self.scores(queries), None, allowed), count)

    def scores(self, queries: Queries) -> FloatArray:
        return self.stored.astype("float32")
