"""A retriever alone: no cross-encoder is called. CMC as the final reranker (CMC 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from crossknn.index.base import Index
from crossknn.index.stages import open_retriever
from crossknn.methods.base import HYBRID, Method
from crossknn.predictors.keep import FirstStageScores
from crossknn.search.plan import Plan
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Retrieve(Method):
    """The best of `retriever`, by its own scores; the budget is not touched.

    `cmc(...)` and its rivals by name are short for `retrieve(retriever=cmc(...))`.
    """

    name = "retrieve"
    calls = False
    retriever: Spec = HYBRID

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        retriever = open_retriever(index, self.retriever, seed)
        return Plan(retriever=retriever, predictor=FirstStageScores(retriever), batches=())
