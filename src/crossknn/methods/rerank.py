"""Methods without fits: retrieve and rerank, retrieve only, and exact search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn.index.base import Index
from crossknn.methods.base import Method, Plan, Prediction, Predictor
from crossknn.retrievers.base import Retriever, fixed_order
from crossknn.retrievers.specs import AUTO, open_retriever
from crossknn.spec import Spec
from crossknn.types import FloatArray, IntArray, Observed, Queries


@dataclass(frozen=True, kw_only=True)
class Rerank(Method):
    """Score the retriever's best items, up to the budget: standard reranking.

    Args:
        retriever: Specification of the retriever, such as `bm25`; by default the best available.
    """

    name = "rerank"
    retriever: Spec = AUTO

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        return _one_round(open_retriever(index, self.retriever, seed), (budget,))


@dataclass(frozen=True, kw_only=True)
class Retrieve(Method):
    """Return the best items of `retriever` by its own scores, without scoring pairs (CMC 3.3).

    `cmc(...)` and other late-interaction models are short for `retrieve(retriever=cmc(...))`.

    Args:
        retriever: Specification of the retriever; by default the best available.
    """

    name = "retrieve"
    calls = False
    retriever: Spec = AUTO

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        return _one_round(open_retriever(index, self.retriever, seed), ())


@dataclass(frozen=True, kw_only=True)
class Exact(Method):
    """Score all allowed items, in item order; the budget is ignored."""

    name = "exact"
    bounded = False

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        return _one_round(fixed_order(np.arange(index.n), index.n), (index.n,))


class FirstStageScores(Predictor[FloatArray]):
    """Predicts the retriever's scores, whatever has been observed."""

    predicts_scores = False

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever

    def start(self, queries: Queries) -> FloatArray:
        return self.retriever.scores(queries)

    def update(self, state: FloatArray, observed: Observed) -> FloatArray:
        return state

    def predict(self, state: FloatArray, items: IntArray | None = None) -> Prediction:
        if items is None:
            return Prediction(state.copy())
        return Prediction(np.take_along_axis(state, items, axis=1))


def _one_round(retriever: Retriever, batches: tuple[int, ...]) -> Plan:
    return Plan(retriever=retriever, predictor=FirstStageScores(retriever), batches=batches)
