"""Exact search: score every item."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn.index.base import Index
from crossknn.methods.base import Method
from crossknn.predictors.keep import FirstStageScores
from crossknn.retrievers.chance import FixedFirst
from crossknn.search.plan import Plan


@dataclass(frozen=True, kw_only=True)
class Exact(Method):
    """Brute force over all allowed items, in item order; the budget is ignored."""

    name = "exact"

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        retriever = FixedFirst(np.arange(index.n), index.n)
        return Plan(retriever=retriever, predictor=FirstStageScores(retriever), batches=(index.n,))
