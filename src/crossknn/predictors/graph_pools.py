"""GAR's frontier, which takes turns with the retriever (MacAvaney et al. 2022, algorithm 1)."""

from __future__ import annotations

import numpy as np

from crossknn.index.base import Neighbours
from crossknn.index.graphs import cosines
from crossknn.predictors.graph import GraphWalk, Offer, Walk, best_first, reach
from crossknn.retrievers.base import Retriever
from crossknn.types import NO_ITEM, FloatArray, IntArray


class Frontier(GraphWalk):
    """A neighbour is worth the score of its best scored source.

    One batch is taken from the retriever's ranking, the next from the frontier. The paper stops
    adding sources of low score once the frontier holds as many items as the budget has left: those
    items would come after all that are left, so it changes nothing and is left out.
    """

    def offer(self, before: Offer, items: IntArray, scores: FloatArray, seen: int) -> Offer:
        order = best_first(items, scores)
        return reach(self.graph, items[order], scores[order], items)

    def graph_first(self, state: Walk) -> bool:
        return state.batches % 2 == 1


class SetFrontier(Frontier):
    """A neighbour is worth the sum of its affinities to the best scored items (Quam, algorithm 1).

    After each batch, every source in it that is among the `best` scored so far adds to its
    neighbours: affinity times its share in the softmax of these scores. Affinity is the cosine of
    the `vectors` (n, d). `raw` takes the softmax of the scores as they are (Quam); else of scores
    in units of their deviation over the query's scored items.
    """

    def __init__(
        self,
        retriever: Retriever,
        graph: Neighbours,
        *,
        depth: int,
        vectors: FloatArray,
        best: int,
        raw: bool,
    ) -> None:
        super().__init__(retriever, graph, depth=depth)
        self.vectors, self.best, self.raw = vectors, best, raw

    def offer(self, before: Offer, items: IntArray, scores: FloatArray, seen: int) -> Offer:
        best = best_first(items, scores)[: self.best]
        deviation = 1.0 if self.raw else scores.std() or 1.0
        shares = np.exp((scores[best] - scores[best[0]]) / deviation)
        shares /= shares.sum()
        latest = best >= seen
        sources = items[best[latest]]
        neighbours = self.graph[sources]
        gains = cosines(self.vectors, sources, neighbours) * shares[latest][:, None]
        reached = neighbours.ravel().astype(np.int64)
        return _summed(
            np.concatenate([before.items, reached]),
            np.concatenate([before.values, gains.ravel()]),
            np.append(items, NO_ITEM),
        )


def _summed(items: IntArray, values: FloatArray, scored: IntArray) -> Offer:
    """Items that are not `scored`, by the sum of their values, ties in the order of arrival."""
    new = ~np.isin(items, scored)
    found, first, where = np.unique(items[new], return_index=True, return_inverse=True)
    sums = np.asarray(np.bincount(where, values[new], minlength=len(found)), np.float64)
    order = np.lexsort((first, -sums))
    return Offer(found[order], sums[order], np.zeros(len(order), np.int64))
