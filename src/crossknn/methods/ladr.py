"""LADR: candidates from a first stage, and their neighbours (Kulkarni et al. 2023, 2307.16779).

paper            here
lexical seeds    `first`, `seeds` of the budget
corpus graph, k  index.graph(`graph`, `neighbours`)
c                `depth`, in the adaptive mode
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crossknn.indexes.base import Index
from crossknn.indexes.graphs import NEIGHBOURS
from crossknn.indexes.stages import first_stage
from crossknn.methods.base import HYBRID, Method, fraction, part, positive
from crossknn.methods.graph import in_batches, neighbours_of
from crossknn.plan import Plan
from crossknn.predictors.graph_hops import SeedNeighbours, TopNeighbours
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Ladr(Method):
    """Score seeds, then neighbours: of the `depth` best scored so far, again and again (adaptive),
    or of the seeds once, in the first stage's order (proactive).
    """

    name = "ladr"
    first: Spec = HYBRID
    graph: str = "auto"
    neighbours: int = NEIGHBOURS
    seeds: float = 0.5
    depth: int = 50
    mode: Literal["adaptive", "proactive"] = "adaptive"
    batch: int = 16

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, neighbours=self.neighbours, depth=self.depth, batch=self.batch)
        fraction(self.name, seeds=self.seeds)
        first = first_stage(index, self.first, seed)
        graph = neighbours_of(index, self.graph, self.neighbours, self.name)
        seeds = part(budget, self.seeds)
        if self.mode == "proactive":
            predictor = SeedNeighbours(first, graph, depth=budget)
            return Plan(first=first, predictor=predictor, batches=(seeds, budget - seeds))
        return Plan(
            first=first,
            predictor=TopNeighbours(first, graph, depth=budget, top=self.depth),
            batches=(seeds, *in_batches(budget - seeds, self.batch)),
        )
