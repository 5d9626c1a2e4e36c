"""LADR: candidates from a retriever, and their neighbours (Kulkarni et al. 2023, 2307.16779).

paper            here
lexical seeds    `retriever`, `seeds` of the budget
corpus graph, k  index.graph(`graph`, `neighbours`)
c                `depth`, in the adaptive mode
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crossknn.index.base import Index
from crossknn.index.graphs import NEIGHBOURS
from crossknn.index.stages import open_retriever
from crossknn.methods.base import HYBRID, Method, fraction, part, positive
from crossknn.methods.graph import in_batches, neighbours_of
from crossknn.predictors.graph_hops import SeedNeighbours, TopNeighbours
from crossknn.search.plan import Plan
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class LADR(Method):
    """Score seeds, then neighbours: of the `depth` best scored so far, again and again (adaptive),
    or of the seeds once, in the retriever's order (proactive).
    """

    name = "ladr"
    retriever: Spec = HYBRID
    graph: str = "auto"
    neighbours: int = NEIGHBOURS
    seeds: float = 0.5
    depth: int = 50
    mode: Literal["adaptive", "proactive"] = "adaptive"
    batch: int = 16

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, neighbours=self.neighbours, depth=self.depth, batch=self.batch)
        fraction(self.name, seeds=self.seeds)
        retriever = open_retriever(index, self.retriever, seed)
        graph = neighbours_of(index, self.graph, self.neighbours, self.name)
        seeds = part(budget, self.seeds)
        if self.mode == "proactive":
            predictor = SeedNeighbours(retriever, graph, depth=budget)
            return Plan(retriever=retriever, predictor=predictor, batches=(seeds, budget - seeds))
        return Plan(
            retriever=retriever,
            predictor=TopNeighbours(retriever, graph, depth=budget, top=self.depth),
            batches=(seeds, *in_batches(budget - seeds, self.batch)),
        )
