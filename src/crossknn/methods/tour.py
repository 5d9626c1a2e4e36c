"""TOUR, test-time optimization of the query vector (Sung et al. 2023), as AXN runs it (AXN B.2).

AXN's variant: one gradient step a round on the batch of top B / R items, all of them new.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from crossknn.index.base import Index
from crossknn.index.stages import default_vectors, need_query_vectors, open_retriever
from crossknn.methods.base import HYBRID, Method, positive
from crossknn.methods.needs import scale
from crossknn.predictors.gradient import GradientStep, Loss
from crossknn.predictors.scaled import Normalize
from crossknn.search.plan import Plan, equal_rounds
from crossknn.spec import Spec

LEARNING_RATES: dict[Loss, float] = {"kl": 0.1, "mse": 1e-3}
"""What AXN B.2 chose, from {0.1, 0.5, 1.0} and {1e-2, 1e-3, 1e-4}."""


@dataclass(frozen=True, kw_only=True)
class TOUR(Method):
    """One gradient step on the query's vector a round; `lr` defaults to the paper's."""

    name = "tour"
    loss: Loss = "kl"
    retriever: Spec = HYBRID
    rounds: int = 5
    lr: float | None = None
    vectors: str = "auto"
    normalize: Normalize = "none"

    def reads(self, index: Index) -> Collection[str]:
        return scale(index, self.vectors, self.normalize)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, rounds=self.rounds)
        return Plan(
            retriever=open_retriever(index, self.retriever, seed),
            predictor=GradientStep(
                index,
                need_query_vectors(index, default_vectors(index, self.vectors), self.name),
                loss=self.loss,
                lr=LEARNING_RATES[self.loss] if self.lr is None else self.lr,
                normalize=self.normalize,
            ),
            batches=equal_rounds(budget, self.rounds),
        )
