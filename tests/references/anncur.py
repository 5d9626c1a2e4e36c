"""ANNCUR: Yadav et al., EMNLP 2022, sections 2.2 to 2.4.

I_anc (k_i anchor items): the first batch, picked before there is a query. R_anc (k_q, n):
`problem.anchor_scores`. The rest of the budget, k_r, goes to the top of the approximation.
"""

from collections.abc import Sequence

from .cur import approximate
from .problem import Batch, Problem, Ranked, best_first, given


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    center: bool | float = False,
    rcond: float = 1e-6,
) -> Ranked:
    """By `problem.first` (the fixed anchor items on top), then by C U R of the first batch alone.

    Scores after the first batch are not learned from: U belongs to the anchor items and is made
    at indexing (2.3). Anchor items are never scored again. Options as in `cur.approximate`.
    """
    if not batches:
        return best_first(problem.retriever, batches)
    R_anc = given(problem.anchor_scores, "anchor_scores")
    anchors = batches[0]
    return best_first(
        approximate(R_anc, anchors.items, anchors.scores, center=center, rcond=rcond), batches
    )
