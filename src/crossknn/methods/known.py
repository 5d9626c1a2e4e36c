"""Searches among known scores: how methods are calibrated, fitted and compared, for no calls."""

from __future__ import annotations

from crossknn.search.loop import Search
from crossknn.search.plan import Plan
from crossknn.types import FloatArray, Queries


def search_known(plan: Plan, queries: Queries, scores: FloatArray) -> Search:
    """The search of m queries, at its end, that was told their exact `scores` (m, n)."""
    search = Search(plan, queries, scores.shape[1])
    while len(pairs := search.ask()):
        search.tell(pairs, scores[pairs.query, pairs.item])
    return search
