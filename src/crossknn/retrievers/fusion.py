"""Reciprocal rank fusion of several retrievers (Cormack et al. 2009)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossknn.linalg import top_k
from crossknn.retrievers.base import Retriever, scores_of
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Queries


class RankFusion:
    """Items by the sum of 1 / (60 + rank) over the rankings of `stages`, ranks from 1.

    An item that a stage does not find gets nothing from it. The stages' first 10,000 items are
    read, or `count` if that is more; all of them for scores of all items.
    """

    constant = 60
    depth = 10_000

    def __init__(self, stages: Sequence[Retriever]) -> None:
        self.stages = tuple(stages)

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The items of the largest sums; see `Retriever.top`."""
        depth = max(count, self.depth)
        rankings = [stage.top(queries, depth, allowed).items for stage in self.stages]
        rows = []
        for ranked in zip(*rankings, strict=True):
            items, sums = self._fused([row[row != NO_ITEM] for row in ranked])
            best = np.lexsort((items, -sums))[:count]
            rows.append((items[best], sums[best]))
        return Candidates.from_rows(rows)

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Sums (m, c) for given items, or for all: (m, n)."""
        if items is None:
            return np.sum([self._all(stage.scores(queries)) for stage in self.stages], axis=0)
        return scores_of(self.top(queries, self.depth * len(self.stages)), items, 0)

    def _fused(self, rows: Sequence[IntArray]) -> tuple[IntArray, FloatArray]:
        """The items in any of the stages' rankings, in order, and their sums."""
        items, where = np.unique(np.concatenate(rows), return_inverse=True)
        sums = np.zeros(len(items), np.float32)
        np.add.at(sums, where, np.concatenate([self._values(len(row)) for row in rows]))
        return items, sums

    def _all(self, scores: FloatArray) -> FloatArray:
        """Reciprocal ranks of all items in a stage's scores: (m, n) -> (m, n)."""
        ranks = np.zeros(scores.shape, np.float32)
        for row, items in enumerate(top_k(scores, scores.shape[1]).items):
            found = items[items != NO_ITEM]
            ranks[row, found] = self._values(len(found))
        return ranks

    def _values(self, count: int) -> FloatArray:
        return (1 / (self.constant + 1 + np.arange(count))).astype(np.float32)


def stages_of(retriever: Retriever) -> Sequence[Retriever]:
    """The stages of a fusion, or the one retriever."""
    return retriever.stages if isinstance(retriever, RankFusion) else (retriever,)
