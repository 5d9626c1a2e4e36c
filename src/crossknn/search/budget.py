"""What a search may spend: pairs for a query, calls for all of them, time."""

from __future__ import annotations

from dataclasses import dataclass

from crossknn.checks import as_count
from crossknn.errors import InputError

PER_QUERY = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a search may spend; `searcher.search(queries, budget=50)` is short for `per_query`.

    Args:
        per_query: Pairs that a query may score, stored scores included; 100 if nothing is said.
        total: Calls that the queries share instead, spent where they are most likely to find a true
            top item. A query gets at least k, at most four times its equal share. For methods that
            know how far their predictions may be off: `kriging` and `gp`.
        deadline: Seconds after which the search returns the best so far.
        target_recall: End a query when it expects to have found this share (0-1) of its true top k,
            for `kriging`; the budget is then what it may spend at most.
    """

    per_query: int | None = None
    total: int | None = None
    deadline: float | None = None
    target_recall: float | None = None

    @classmethod
    def of(cls, budget: int | Budget) -> Budget:
        """A number of pairs as a budget."""
        return budget if isinstance(budget, Budget) else cls(per_query=as_count(budget, "budget"))

    def pairs_per_query(self, m: int, k: int, n: int, *, calls: bool = True) -> int:
        """Pairs that each of m queries may score, or its equal share of them.

        Args:
            m: Number of queries.
            k: Hits that are wanted.
            n: Number of items.
            calls: Whether the method scores pairs at all.

        Raises:
            InputError: k or a budget is below 1, k is above the budget or the number of items, or
                the deadline is not above 0.
        """
        as_count(k, "k")
        pairs = k if not calls else self._equal_share(m, k)
        if k > n:
            raise InputError(f"k is {k}, but the index has {n} items")
        if k > pairs:
            raise InputError(
                f"k is {k}, but a budget of {pairs} calls reveals {pairs} items at most: "
                "raise the budget or lower k"
            )
        if self.deadline is not None and not _positive(self.deadline):
            raise InputError(f"deadline is {self.deadline!r}; it must be above 0")
        return pairs

    def _equal_share(self, m: int, k: int) -> int:
        if self.total is None:
            return as_count(PER_QUERY if self.per_query is None else self.per_query, "budget")
        if self.per_query is not None:
            raise InputError("the budget has a total and pairs per query: give one of them")
        share = as_count(self.total, "total_budget") // m
        if k > share:
            raise InputError(
                f"k is {k}, but a total_budget of {self.total} for {m} queries is {share} calls "
                "each: raise it or lower k"
            )
        return share


def _positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
