"""From scored items to their neighbours, step by step: LADR and greedy search on the graph."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace

import numpy as np

from crossknn.index.base import Neighbours
from crossknn.predictors.graph import GraphWalk, Offer, best_first, reach
from crossknn.retrievers.base import Retriever
from crossknn.types import FloatArray, IntArray


class SeedNeighbours(GraphWalk):
    """The neighbours of the first batch, in the order of that batch (LADR, proactive)."""

    def offer(self, before: Offer, items: IntArray, scores: FloatArray, seen: int) -> Offer:
        if seen:
            return before.take(~np.isin(before.items, items))
        return reach(self.graph, items, scores, items)


class Hops(GraphWalk):
    """Step after step, a step once begun is finished; the next are settled by all scores known.

    So a batch that a step does not fill takes the first of the next, as the scores before the
    batch have it.
    """

    @abstractmethod
    def ahead(self, items: IntArray, scores: FloatArray) -> Offer:
        """The next steps, from scored items (b,) and their scores (b,), best first."""

    def offer(self, before: Offer, items: IntArray, scores: FloatArray, seen: int) -> Offer:
        order = best_first(items, scores)
        ahead = self.ahead(items[order], scores[order])
        rest = self._begun(before, items[seen:])
        more = ahead.take(~np.isin(ahead.items, rest.items))
        return Offer(
            np.concatenate([rest.items, more.items]),
            np.concatenate([rest.values, more.values]),
            np.concatenate([np.zeros_like(rest.steps), 1 + more.steps]),
        )

    def _begun(self, before: Offer, latest: IntArray) -> Offer:
        """What is left of the step that the last of the `latest` items (c,) was taken from."""
        taken = np.flatnonzero(np.isin(before.items, latest))
        if not len(taken):
            return Offer()
        same = before.steps == before.steps[taken[-1]]
        return before.take(same & (np.arange(len(same)) > taken[-1]))


class TopNeighbours(Hops):
    """All neighbours of the `top` best scored items, until nothing is new (LADR, adaptive)."""

    def __init__(self, retriever: Retriever, graph: Neighbours, *, depth: int, top: int) -> None:
        super().__init__(retriever, graph, depth=depth)
        self.top_sources = top

    def ahead(self, items: IntArray, scores: FloatArray) -> Offer:
        sources = slice(self.top_sources)
        reached = reach(self.graph, items[sources], scores[sources], items)
        return replace(reached, steps=np.zeros_like(reached.steps))


class BestNeighbours(Hops):
    """The neighbours of the best scored item that has any left (greedy search)."""

    def ahead(self, items: IntArray, scores: FloatArray) -> Offer:
        return reach(self.graph, items, scores, items)
