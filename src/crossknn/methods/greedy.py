"""Greedy search on the item graph (bi-metric search, 2406.02891; RGS, 2509.07163).

paper            here
d, D             what the graph is made of; the cross-encoder
Q, Q / 2         the budget; `seeds` of it
graph, degree    index.graph(`graph`, `neighbours`)
"""

from __future__ import annotations

from dataclasses import dataclass

from crossknn.index.base import Index
from crossknn.index.graphs import NEIGHBOURS
from crossknn.index.stages import open_retriever
from crossknn.methods.base import HYBRID, Method, fraction, part, positive
from crossknn.methods.graph import in_batches, neighbours_of
from crossknn.predictors.graph_hops import BestNeighbours
from crossknn.search.plan import Plan
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Greedy(Method):
    """Score the retriever's best, then again and again the neighbours of the best item scored.

    `batch` pairs are scored at once, which may take the neighbours of several items; with 1 the
    search goes item by item, as published. `seeds=0` starts from a single one (RGS).
    """

    name = "greedy"
    retriever: Spec = HYBRID
    graph: str = "auto"
    neighbours: int = NEIGHBOURS
    seeds: float = 0.5
    batch: int = 16

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, neighbours=self.neighbours, batch=self.batch)
        fraction(self.name, seeds=self.seeds)
        retriever = open_retriever(index, self.retriever, seed)
        graph = neighbours_of(index, self.graph, self.neighbours, self.name)
        seeds = part(budget, self.seeds)
        return Plan(
            retriever=retriever,
            predictor=BestNeighbours(retriever, graph, depth=budget),
            batches=(seeds, *in_batches(budget - seeds, self.batch)),
        )
