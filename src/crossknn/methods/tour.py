"""TOUR, test-time optimization of the query vector (Sung et al. 2023), as AXN runs it (AXN B.2).

AXN's variant: one gradient step a round on the batch of top B / R items, all of them new.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from crossknn.indexes.base import Index
from crossknn.indexes.stages import default_vectors, first_stage, need_query_vectors
from crossknn.methods.base import HYBRID, Method, positive
from crossknn.methods.needs import scale
from crossknn.plan import Plan, equal_rounds
from crossknn.predictors.gradient import GradientStep, Loss
from crossknn.predictors.scaled import Normalize
from crossknn.spec import Spec

LEARNING_RATES: dict[Loss, float] = {"kl": 0.1, "mse": 1e-3}
"""What AXN B.2 chose, from {0.1, 0.5, 1.0} and {1e-2, 1e-3, 1e-4}."""


@dataclass(frozen=True, kw_only=True)
class Tour(Method):
    """One gradient step on the query's vector a round; `lr` defaults to the paper's."""

    name = "tour"
    loss: Loss = "kl"
    first: Spec = HYBRID
    rounds: int = 5
    lr: float | None = None
    vectors: str = "auto"
    normalize: Normalize = "none"

    def reads(self, index: Index) -> Collection[str]:
        return scale(index, self.vectors, self.normalize)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, rounds=self.rounds)
        return Plan(
            first=first_stage(index, self.first, seed),
            predictor=GradientStep(
                index,
                need_query_vectors(index, default_vectors(index, self.vectors), self.name),
                loss=self.loss,
                lr=LEARNING_RATES[self.loss] if self.lr is None else self.lr,
                normalize=self.normalize,
            ),
            batches=equal_rounds(budget, self.rounds),
        )
