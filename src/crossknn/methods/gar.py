"""GAR: adaptive reranking with a corpus graph (MacAvaney et al. 2022, algorithm 1).

paper            here
R_0              `retriever`, as deep as it is
G, k             index.graph(`graph`, `neighbours`)
b                `batch`
F                Frontier; SetFrontier with `affinity=set`
c                the budget
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.index.graphs import NEIGHBOURS, default_graph
from crossknn.index.stages import open_retriever, unaligned
from crossknn.methods.base import HYBRID, Method, fraction, part, positive
from crossknn.methods.graph import in_batches
from crossknn.predictors.graph_pools import Frontier, SetFrontier
from crossknn.retrievers.base import Retriever
from crossknn.search.plan import Plan
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class GAR(Method):
    """Take turns between the retriever's best items and neighbours of what scored best.

    `affinity=set` is the loop of Quam (2410.20286): a neighbour counts by its cosine to all of the
    best scored items, which are `best` of the budget. With `softmax=raw` their weights are a
    softmax of exact scores, as in Quam; with `scaled`, of these over their standard deviation.
    """

    name = "gar"
    retriever: Spec = HYBRID
    graph: str = "auto"
    neighbours: int = NEIGHBOURS
    batch: int = 16
    affinity: Literal["score", "set"] = "score"
    best: float = 0.3
    softmax: Literal["scaled", "raw"] = "scaled"

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, neighbours=self.neighbours, batch=self.batch)
        fraction(self.name, best=self.best)
        retriever = open_retriever(index, self.retriever, seed)
        return Plan(
            retriever=retriever,
            predictor=self._frontier(index, retriever, budget),
            batches=in_batches(budget, self.batch),
        )

    def _frontier(self, index: Index, retriever: Retriever, budget: int) -> Frontier:
        name = default_graph(index, self.graph, self.name)
        graph = index.graph(name, self.neighbours)
        if self.affinity == "score":
            return Frontier(retriever, graph, depth=budget)
        vectors = name if name in index.vector_names else unaligned(index)
        if vectors is None:
            raise InputError(f"{self}: affinity=set needs item vectors, and there are none here")
        return SetFrontier(
            retriever,
            graph,
            depth=budget,
            vectors=index.vectors(vectors),
            best=part(budget, self.best),
            raw=self.softmax == "raw",
        )
