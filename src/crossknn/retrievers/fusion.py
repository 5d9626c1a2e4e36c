"""Reciprocal rank fusion of several retrievers (Cormack et al. 2009)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossknn.linalg import top_k
from crossknn.retrievers.base import Retriever
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Queries


def stages_of(retriever: Retriever) -> Sequence[Retriever]:
    """The stages of a fusion, or the one stage."""
    return retriever.stages if isinstance(retriever, HybridFirst) else (retriever,)


class HybridFirst:
    """Items by the sum of 1 / (60 + rank) over the stages' rankings, ranks from 1.

    An item that a stage does not find gets nothing from it. `top` reads the stages' first 10,000
    items, or `count` if that is more; `scores` reads all.
    """

    constant = 60
    depth = 10_000

    def __init__(self, stages: Sequence[Retriever]) -> None:
        self.stages = tuple(stages)

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        depth = max(count, self.depth)
        rankings = [stage.top(queries, depth, allowed) for stage in self.stages]
        return Candidates.from_rows([self._fuse(rankings, q, count) for q in range(len(queries))])

    def scores(self, queries: Queries) -> FloatArray:
        return np.sum([self._reciprocal_ranks(s.scores(queries)) for s in self.stages], axis=0)

    def _reciprocal_ranks(self, scores: FloatArray) -> FloatArray:
        fused = np.zeros(scores.shape, np.float32)
        for row, items in enumerate(top_k(scores, scores.shape[1]).items):
            found = items[items != NO_ITEM]
            fused[row, found] = self._values(len(found))
        return fused

    def _fuse(
        self, rankings: Sequence[Candidates], query: int, count: int
    ) -> tuple[IntArray, FloatArray]:
        rows = [ranking.items[query] for ranking in rankings]
        rows = [row[row != NO_ITEM] for row in rows]
        items, where = np.unique(np.concatenate(rows), return_inverse=True)
        fused = np.zeros(len(items), np.float32)
        np.add.at(fused, where, np.concatenate([self._values(len(row)) for row in rows]))
        best = np.lexsort((items, -fused))[:count]
        return items[best], fused[best]

    def _values(self, count: int) -> FloatArray:
        return (1 / (self.constant + 1 + np.arange(count))).astype(np.float32)
