"""ANNCUR's rivals that read the scores of items with items (Yadav et al. 2022).

paper            here
itemCUR          `ItemCUR` (section 3.2)
fixedITEM        `FixedItem` (section 3.2, figure 7)
k_i              the first batch: `anchor_share` of the budget
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.methods.base import Method, Plan, part
from crossknn.methods.cur import FIXED, Center, cur_predictor
from crossknn.methods.vectors import Scored, VectorPredictor
from crossknn.retrievers.base import ArrayStore, Retriever, fixed_order
from crossknn.retrievers.specs import open_retriever
from crossknn.spec import option
from crossknn.types import Anchors, Artifact, FloatArray, IntArray

ITEM_SCORES = "item_scores"
"""The artifact of an index with them: `items` (a,) put in the query's place, `scores` (a, n)."""


def item_scores_artifact(items: IntArray, scores: FloatArray) -> Artifact:
    """Exact scores (a, n) of `items` (a,), each put in the query's place, with every item."""
    return Artifact({"pairs": scores.size}, {"items": items, "scores": scores})


@dataclass(frozen=True, kw_only=True)
class ItemCUR(Method):
    """CUR of the item x item matrix: items, others than the anchor items, in the place of queries.

    Args:
        anchor_share: Share of the budget for anchor items, 0 to 1.
        center: `none` is CUR as published; `auto` subtracts the mean of the matrix first.
        rcond: Cut of the pseudo-inverse, by default that of `RCOND`.
    """

    name = "itemcur"
    reads = ("item_scores",)
    anchor_share: float = option(0.5, least=0, most=1)
    center: Center = "auto"
    rcond: float | None = None

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        _, scores = _item_scores(index, self.name)
        rows = Anchors(scores, center=float(scores.mean(dtype=np.float64)))
        predictor = cur_predictor(rows, self.center, self.rcond)
        return _plan(open_retriever(index, FIXED, seed), predictor, budget, self.anchor_share)


@dataclass(frozen=True, kw_only=True)
class FixedItem(Method):
    """Represent items and query by their exact scores with fixed items, and rank by dot product
    (ANNCUR, section 3.2).

    Args:
        anchor_share: Share of the budget for anchor items, 0 to 1.
    """

    name = "fixeditem"
    reads = ("item_scores",)
    anchor_share: float = option(0.5, least=0, most=1)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        items, scores = _item_scores(index, self.name)

        def fit(scored: Scored) -> tuple[FloatArray, float]:
            vector = np.zeros(index.n)  # 0 where the query is not scored yet
            vector[scored.items] = scored.scores
            return vector[items], 0.0

        predictor = VectorPredictor(ArrayStore(scores.T), fit)
        return _plan(fixed_order(items, index.n), predictor, budget, self.anchor_share)


def _plan(retriever: Retriever, predictor: VectorPredictor, budget: int, share: float) -> Plan:
    k_i = part(budget, share)
    return Plan(retriever=retriever, predictor=predictor, batches=(k_i, budget - k_i))


def _item_scores(index: Index, method: str) -> tuple[IntArray, FloatArray]:
    """Items (a,) and their scores (a, n) with every item; `InputError` if there are none."""
    found = index.artifacts.get(ITEM_SCORES)
    if found is None or found.arrays["scores"].shape[1] != index.n:
        raise InputError(
            f"{method} needs item x item scores, and there are none of all items (in a matrix "
            "file: item_scores, item_score_items)"
        )
    return found.arrays["items"], found.arrays["scores"]
