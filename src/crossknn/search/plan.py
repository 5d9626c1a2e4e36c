"""What a method decides before a search: who picks first, who predicts, what each round costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from crossknn.errors import InputError
from crossknn.retrievers.base import Retriever
from crossknn.search.predictor import Predictor
from crossknn.search.sharing import SharedBudget


@dataclass(frozen=True, kw_only=True, slots=True)
class Stop:
    """A query is done when it expects to have found `expected` (0-1) of its true top `k`."""

    k: int
    expected: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a method is: who picks first, who predicts, and how many items each round scores.

    `batches` sum to the budget; with none, the retriever alone answers. `shortlist` restricts
    every query to that many items of the retriever (AXN 3: very large corpora), or those that the
    predictor puts in their place. `stop` ends a query before its budget does; with `share`, queries
    spend a budget together, and `batches` sum to an equal part of it. Both need a predictor that
    knows its deviations.
    """

    retriever: Retriever
    predictor: Predictor[Any]
    batches: tuple[int, ...]
    shortlist: int | None = None
    stop: Stop | None = None
    share: SharedBudget | None = None


def most_of(plan: Plan, share: SharedBudget, m: int) -> int:
    """What one of m queries may take of a shared budget; `InputError` if it cannot be shared."""
    if not plan.predictor.has_std:
        raise InputError(
            "total_budget is spent where predictions are unsure, and this method does not say how "
            "far its predictions may be off: use kriging or gp, or give a budget for each query"
        )
    if share.total < m:
        raise InputError(
            f"total_budget is {share.total}, less than one call for each of {m} queries: raise it"
        )
    return share.most * -(-share.total // m)
