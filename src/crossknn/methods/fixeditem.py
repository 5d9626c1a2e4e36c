"""fixedITEM: vectors of scores with fixed items (Yadav et al. 2022, section 3.2, figure 7)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from crossknn.index.base import Index
from crossknn.methods.base import Method, fraction, part
from crossknn.methods.needs import item_scores
from crossknn.predictors.fixed_items import FixedItemScores
from crossknn.retrievers.chance import FixedFirst
from crossknn.search.plan import Plan


@dataclass(frozen=True, kw_only=True)
class FixedItem(Method):
    """Score fixed items, then the items whose scores with the same fixed items point alike.

    `anchors` of the budget goes to the first of the index's fixed items.
    """

    name = "fixeditem"
    anchors: float = 0.5

    def reads(self, index: Index) -> Collection[str]:
        return ("item_scores",)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        fraction(self.name, anchors=self.anchors)
        known = item_scores(index, self.name)
        k_i = part(budget, self.anchors)
        return Plan(
            retriever=FixedFirst(known.items, index.n),
            predictor=FixedItemScores(known),
            batches=(k_i, budget - k_i),
        )
