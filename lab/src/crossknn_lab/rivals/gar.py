"""GAR: adaptive reranking with a corpus graph (MacAvaney et al. 2022, algorithm 1).

paper            here
R_0              `retriever`, as deep as it is
G, k             index.graphs[`graph`][:, :`neighbours`]
b                `batch`
F                the frontier: `by_best_source`, or `by_affinity` with `affinity=set` (Quam)
c                the budget
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from scipy.special import softmax

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.methods.base import Plan, part
from crossknn.retrievers.specs import open_retriever, unfitted
from crossknn.spec import option
from crossknn.types import NO_ITEM, FloatArray, IntArray
from crossknn_lab.rivals.graph_methods import (
    Expand,
    Frontier,
    GraphMethod,
    GraphPredictor,
    alike,
    best_first,
    in_batches,
    reach,
)
from crossknn_lab.rivals.graphs import Neighbours, cosines, default_graph


@dataclass(frozen=True, kw_only=True)
class GAR(GraphMethod):
    """Alternate between the retriever's best items and neighbours of the best scored items.

    Args:
        affinity: A neighbour counts by its best source's `score` (GAR), or by its cosine to the
            `set` of the best scored items (the loop of Quam, 2410.20286).
        set_share: Size of that set, as a share of the budget.
        softmax: Weights in the set are a softmax of exact scores (`raw`, as in Quam), or of these
            over their standard deviation (`scaled`).
        retriever, graph, neighbours, batch: See `GraphMethod`.
    """

    name = "gar"
    affinity: Literal["score", "set"] = "score"
    set_share: float = option(0.3, least=0, most=1)
    softmax: Literal["scaled", "raw"] = "scaled"

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        retriever = open_retriever(index, self.retriever, seed)
        expand = self._expand(index, budget)
        return Plan(
            retriever=retriever,
            predictor=GraphPredictor(retriever, index.n, budget, alike(expand), alternate=True),
            batches=in_batches(budget, self.batch),
        )

    def _expand(self, index: Index, budget: int) -> Expand:
        graph = self.walked(index)
        if self.affinity == "score":
            return partial(by_best_source, graph)
        name = default_graph(index, self.graph)
        vectors = name if name in index.vectors else unfitted(index)
        if vectors is None:
            raise InputError(f"{self}: affinity=set needs item vectors, and there are none")
        best, raw = part(budget, self.set_share), self.softmax == "raw"
        return partial(by_affinity, graph, index.vectors[vectors], best, raw)


def by_best_source(
    graph: Neighbours, before: Frontier, items: IntArray, scores: FloatArray, n_seen: int
) -> Frontier:
    """A neighbour is worth the score of its best scored source (algorithm 1).

    The paper stops adding sources of low score once the frontier holds as many items as the budget
    has left: those items would come after all that are left, so it changes nothing.
    """
    return reach(graph, items, scores, best_first(items, scores))


def by_affinity(
    graph: Neighbours,
    vectors: FloatArray,
    count: int,
    raw: bool,
    before: Frontier,
    items: IntArray,
    scores: FloatArray,
    n_seen: int,
) -> Frontier:
    """A neighbour is worth the sum of its affinities to the best scored items (Quam, algorithm 1).

    After each batch, every source in it that is among the `count` best scored so far adds to its
    neighbours: the cosine of their `vectors` (n, d), times the source's share in the softmax of
    these scores.
    """
    best = best_first(items, scores)[:count]
    shares = softmax(scores[best] / (1.0 if raw else scores.std() or 1.0))
    latest = best >= n_seen
    sources = items[best[latest]]
    neighbours = graph[sources]
    gains = cosines(vectors, sources, neighbours) * shares[latest][:, None]
    reached = np.concatenate([before.items, neighbours.ravel().astype(np.int64)])
    values = np.concatenate([before.values, gains.ravel()])
    # Unscored items by the sum of their values, ties in the order of arrival.
    new = ~np.isin(reached, np.append(items, NO_ITEM))
    found, first, where = np.unique(reached[new], return_index=True, return_inverse=True)
    sums = np.bincount(where, values[new], minlength=len(found)).astype(np.float64)
    order = np.lexsort((first, -sums))
    return Frontier(found[order], sums[order], np.zeros(len(order), np.int64))
