"""itemCUR: a baseline of ANNCUR (EMNLP 2022, section 3.2).

"It indexes the items by comparing them against k_i^ind anchor items instead of anchor queries for
computing R_anc and C_anc. At test time, it performs inference just like annCUR by comparing
against a different set of fixed k_i anchor items."
"""

from collections.abc import Sequence
from dataclasses import replace

from . import anncur
from .problem import Batch, Problem, Ranked, given


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    center: bool | float = False,
    rcond: float = 1e-6,
) -> Ranked:
    """ANNCUR with the item-item scores in place of R_anc; the first batch is I_anc (k_i items)."""
    item_scores = given(problem.item_scores, "item_scores")
    return anncur.rank(
        replace(problem, anchor_scores=item_scores), batches, center=center, rcond=rcond
    )
