"""G, the sparse score matrix: exact scores of some pairs of train queries and items (AXN 2.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from crossknn.errors import InputError
from crossknn.types import BoolArray, FloatArray, IntArray, Pairs


@dataclass(frozen=True, eq=False)
class SparseScores:
    """Scores of e pairs of q queries and n items, sorted by query, then item, each pair once.

    `queries` are texts (q,), some perhaps without a score; `query` (e,) and `item` (e,) are
    positions, `score` (e,) raw logits (float32). `fingerprint` names the cross-encoder.
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
        """From pairs in any order; InputError if one occurs twice, or a score is no number."""
        order = np.lexsort((pairs.item, pairs.query))
        query, item = pairs.query[order], pairs.item[order]
        values = np.asarray(score, np.float32)[order]
        if ((query[1:] == query[:-1]) & (item[1:] == item[:-1])).any():
            raise InputError("a pair of a train query and an item is scored twice")
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise InputError(
                f"the score of train query {query[row]} and item {item[row]} is {values[row]}"
            )
        return SparseScores(queries, n, query, item, values, fingerprint)

    def __len__(self) -> int:
        return len(self.score)

    @cached_property
    def by_query(self) -> IntArray:
        """Query r has the entries `by_query[r]:by_query[r + 1]`: (q + 1,)."""
        return np.searchsorted(self.query, np.arange(len(self.queries) + 1)).astype(np.int64)

    @property
    def scored_queries(self) -> IntArray:
        """Queries that have a score, in order."""
        return np.unique(self.query)

    @property
    def scored_items(self) -> IntArray:
        """Items that have a score, in order."""
        return np.unique(self.item)

    def take(self, entries: IntArray | BoolArray) -> SparseScores:
        """The entries at ascending positions, or where a mask (e,) is true."""
        return replace(
            self, query=self.query[entries], item=self.item[entries], score=self.score[entries]
        )

    def split(self, share: float, seed: int) -> tuple[SparseScores, SparseScores]:
        """Two parts of the entries, the second (held out) a random `share` of them."""
        held = np.random.default_rng(seed).random(len(self)) < share
        return self.take(~held), self.take(held)
