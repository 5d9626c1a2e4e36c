"""Retrieve and rerank: RNR of AXN section 3 ("Baselines") and A.4.

"Top-scoring items wrt baseline scoring method X are retrieved and then re-ranked using the CE."
"""

from collections.abc import Sequence

from .problem import Batch, Problem, Ranked, best_first


def rank(problem: Problem, batches: Sequence[Batch]) -> Ranked:
    """The retriever's order, whatever the scores are."""
    return best_first(problem.retriever, batches)
