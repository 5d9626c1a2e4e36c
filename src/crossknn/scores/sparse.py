"""Exact scores of some pairs of queries and items, as fits read them from the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from crossknn.types import BoolArray, FloatArray, IntArray, Pairs


@dataclass(frozen=True, eq=False)
class SparseScores:
    """Scores of e distinct pairs of q queries and n items, sorted by query, then item.

    This is G, the sparse score matrix of AXN 2.1. `queries` are texts (q,), perhaps some without
    scores; `query` (e,) and `item` (e,) are positions, `score` (e,) raw logits (float32).
    `fingerprint` identifies the cross-encoder.
    """

    queries: Sequence[str]
    n: int
    query: IntArray
    item: IntArray
    score: FloatArray
    fingerprint: str | None = None

    @staticmethod
    def of(
        queries: Sequence[str],
        n: int,
        pairs: Pairs,
        score: FloatArray,
        fingerprint: str | None = None,
    ) -> SparseScores:
        """Make the matrix from distinct pairs in any order."""
        order = np.lexsort((pairs.item, pairs.query))
        values = np.asarray(score, np.float32)[order]
        return SparseScores(queries, n, pairs.query[order], pairs.item[order], values, fingerprint)

    def __len__(self) -> int:
        return len(self.score)

    @cached_property
    def by_query(self) -> IntArray:
        """Offsets (q + 1,): query r has the entries `by_query[r]:by_query[r + 1]`."""
        return np.searchsorted(self.query, np.arange(len(self.queries) + 1)).astype(np.int64)

    @property
    def scored_queries(self) -> IntArray:
        """The queries that have a score, in order."""
        return np.unique(self.query)

    def take(self, entries: IntArray | BoolArray) -> SparseScores:
        """Select entries by ascending positions, or by a mask (e,)."""
        return replace(
            self, query=self.query[entries], item=self.item[entries], score=self.score[entries]
        )
