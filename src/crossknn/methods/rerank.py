"""RNR, retrieve and rerank: one round, the retriever's best items."""

from __future__ import annotations

from dataclasses import dataclass

from crossknn.index.base import Index
from crossknn.index.stages import open_retriever
from crossknn.methods.base import HYBRID, Method
from crossknn.predictors.keep import FirstStageScores
from crossknn.search.plan import Plan
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Rerank(Method):
    """Score the `budget` best items of `retriever`."""

    name = "rerank"
    retriever: Spec = HYBRID

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        retriever = open_retriever(index, self.retriever, seed)
        return Plan(retriever=retriever, predictor=FirstStageScores(retriever), batches=(budget,))
