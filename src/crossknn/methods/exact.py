"""Exact search: score every item."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn.first.chance import FixedFirst
from crossknn.indexes.base import Index
from crossknn.methods.base import Method
from crossknn.plan import Plan
from crossknn.predictors.keep import Keep


@dataclass(frozen=True, kw_only=True)
class Exact(Method):
    """Brute force over all allowed items, in item order; the budget is ignored."""

    name = "exact"

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        first = FixedFirst(np.arange(index.n), index.n)
        return Plan(first=first, predictor=Keep(first), batches=(index.n,))
