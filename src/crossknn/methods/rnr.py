"""RNR, retrieve and rerank: one round, the first stage's best items."""

from __future__ import annotations

from dataclasses import dataclass

from crossknn.indexes.base import Index
from crossknn.indexes.stages import first_stage
from crossknn.methods.base import HYBRID, Method
from crossknn.plan import Plan
from crossknn.predictors.keep import Keep
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Rnr(Method):
    """Score the `budget` best items of `first`."""

    name = "rnr"
    first: Spec = HYBRID

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        first = first_stage(index, self.first, seed)
        return Plan(first=first, predictor=Keep(first), batches=(budget,))
