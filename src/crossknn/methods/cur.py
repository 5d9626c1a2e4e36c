"""CUR approximations from fixed anchor items (Yadav et al. 2022).

paper            here
R_anc            index.anchors.scores (k_q, n)
I_anc, k_i       the first batch: `anchor_share` of the budget
c_test U R_anc   `cur_predictor` (section 2.2, eq. 5)
k_r              the second batch: the rest of the budget
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from crossknn.errors import InputError
from crossknn.index.base import Index, lacking
from crossknn.linalg import least_squares
from crossknn.methods.base import Method, Plan, part
from crossknn.methods.vectors import Scored, VectorPredictor
from crossknn.retrievers.base import ArrayStore
from crossknn.retrievers.specs import open_retriever
from crossknn.spec import Spec, option
from crossknn.types import Anchors, FloatArray, Scale

Center: TypeAlias = Literal["auto", "none"]
"""The constant that CUR subtracts from exact scores: the index's center, or zero."""

FIXED = Spec("fixed")

RCOND: dict[Center, float] = {"auto": 0.03, "none": 1e-6}
"""Default cutoff of the pseudo-inverse: with centering, the best of 0.01, 0.03 and 0.1 on dev
queries of five score matrices; without centering, nearly zero as published."""


@dataclass(frozen=True, kw_only=True)
class ANNCUR(Method):
    """Score anchor items, approximate the scores of all other items by CUR from the anchor queries'
    scores (ANNCUR 2.2), and score the items with the best approximations.

    Args:
        anchor_share: Share of the budget for anchor items, 0 to 1.
        retriever: Picks the anchor items: `fixed` picks the same for every query, any other
            retriever X picks its best items for each query (ANNCUR_X).
        center: `none` is CUR as published; `auto` subtracts a constant from all scores first.
        rcond: Relative cutoff of the pseudo-inverse, by default that of `RCOND`. With the paper's
            (1e-15) recall collapses when there are about as many anchor items as anchor queries.
    """

    name = "anncur"
    reads = ("anchors",)
    anchor_share: float = option(0.5, least=0, most=1)
    retriever: Spec = FIXED
    center: Center = "auto"
    rcond: float | None = option(None, least=0, most=1)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        predictor = cur_predictor(anchors_of(index, self.name), self.center, self.rcond)
        retriever = open_retriever(index, self.retriever, seed)
        k_i = part(budget, self.anchor_share)
        return Plan(retriever=retriever, predictor=predictor, batches=(k_i, budget - k_i))


def cur_predictor(rows: Anchors, center: Center, rcond: float | None) -> VectorPredictor:
    """Make the predictor c pinv(R[:, S]) R: least squares on the scored columns S of R_anc (k_q,
    n).

    CUR has no intercept, so a constant is subtracted from R and c, and added to the approximation.
    As u . (r_i - center) is u . r_i - center * sum(u), R itself is never copied.
    """
    offset = rows.center if center == "auto" else 0.0
    cut = RCOND[center] if rcond is None else rcond
    scale = Scale(alpha=offset)

    def fit(scored: Scored) -> tuple[FloatArray, float]:
        u = least_squares(scored.vectors - offset, scored.scores, cut)
        return u, -offset * float(u.sum())

    return VectorPredictor(ArrayStore(rows.scores.T), fit, normalize=lambda scored: scale)


def anchors_of(index: Index, method: str) -> Anchors:
    """Return R_anc, the exact scores of the anchor queries; `InputError` if there are none."""
    if index.anchors is None or not len(index.anchors.scores):
        raise InputError(
            f"{method} needs exact scores of anchor queries for all items, which the index "
            f"lacks{lacking(index, 'anchors')}: add them with  crossknn collect INDEX "
            "--anchors QUERIES  (in a matrix file: n_anchors)"
        )
    return index.anchors
