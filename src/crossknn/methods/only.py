"""A first stage alone: no cross-encoder is called. CMC as the final reranker (CMC 3.3)."""

from __future__ import annotations

from dataclasses import dataclass

from crossknn.indexes.base import Index
from crossknn.indexes.stages import first_stage
from crossknn.methods.base import HYBRID, Method
from crossknn.plan import Plan
from crossknn.predictors.keep import Keep
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Only(Method):
    """The best of `first`, by its own scores; the budget is not touched.

    `cmc(...)` and its rivals by name are short for `only(first=cmc(...))`.
    """

    name = "only"
    calls = False
    first: Spec = HYBRID

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        first = first_stage(index, self.first, seed)
        return Plan(first=first, predictor=Keep(first), batches=())
