"""Greedy search on the item graph (bi-metric search, 2406.02891; RGS, 2509.07163).

paper            here
d, D             what the graph is made of; the cross-encoder
Q, Q / 2         the budget; `seeds` of it
graph, degree    index.graph(`graph`, `neighbours`)
"""

from __future__ import annotations

from dataclasses import dataclass

from crossknn.indexes.base import Index
from crossknn.indexes.graphs import NEIGHBOURS
from crossknn.indexes.stages import first_stage
from crossknn.methods.base import HYBRID, Method, fraction, part, positive
from crossknn.methods.graph import in_batches, neighbours_of
from crossknn.plan import Plan
from crossknn.predictors.graph_hops import BestNeighbours
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Greedy(Method):
    """Score the first stage's best, then again and again the neighbours of the best item scored.

    `batch` pairs are scored at once, which may take the neighbours of several items; with 1 the
    search goes item by item, as published. `seeds=0` starts from a single one (RGS).
    """

    name = "greedy"
    first: Spec = HYBRID
    graph: str = "auto"
    neighbours: int = NEIGHBOURS
    seeds: float = 0.5
    batch: int = 16

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, neighbours=self.neighbours, batch=self.batch)
        fraction(self.name, seeds=self.seeds)
        first = first_stage(index, self.first, seed)
        graph = neighbours_of(index, self.graph, self.neighbours, self.name)
        seeds = part(budget, self.seeds)
        return Plan(
            first=first,
            predictor=BestNeighbours(first, graph, depth=budget),
            batches=(seeds, *in_batches(budget - seeds, self.batch)),
        )
