"""itemCUR: ANNCUR with items in the place of anchor queries (Yadav et al. 2022, section 3.2)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from crossknn.index.base import Anchors, Index
from crossknn.index.stages import open_retriever
from crossknn.methods.base import Method, fraction, part
from crossknn.methods.needs import Center, cur, item_scores
from crossknn.search.plan import Plan
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class ItemCUR(Method):
    """CUR of the item x item matrix; the test-time anchor items are others than its rows.

    `center=none` is CUR as published; `auto` subtracts the mean of the matrix first.
    """

    name = "itemcur"
    anchors: float = 0.5
    center: Center = "auto"
    rcond: float = 1e-6

    def reads(self, index: Index) -> Collection[str]:
        return ("item_scores",)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        fraction(self.name, anchors=self.anchors, rcond=self.rcond)
        scores = item_scores(index, self.name).scores
        rows = Anchors(scores, center=float(scores.mean(dtype=np.float64)))
        k_i = part(budget, self.anchors)
        return Plan(
            retriever=open_retriever(index, Spec("fixed"), seed),
            predictor=cur(rows, self.center, self.rcond),
            batches=(k_i, budget - k_i),
        )
