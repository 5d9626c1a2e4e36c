"""The base class of methods: a method has options, and makes a plan for an index and a budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.methods.plan import Plan
from crossknn.retrievers.base import WHOLE
from crossknn.spec import check_options, text_of

POOLED = 4_000
"""Up to this many items, each round predicts all of them; above, a pool is as good and faster."""
POOL, PER_CALL = 400, 3
"""Minimum number of items that each retriever adds to a pool, in all and per scored pair."""


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A configuration of a search; `str(method)` is its spec.

    Subclasses are frozen keyword-only dataclasses. An option that takes a specification may be
    given as text, `AXN(retriever="bm25")`; a wrong value raises SpecError.
    """

    name: ClassVar[str]
    calls: ClassVar[bool] = True
    """Whether the method calls the cross-encoder."""
    bounded: ClassVar[bool] = True
    """Whether the method's plans keep to the budget."""
    reads: ClassVar[Collection[str]] = ()
    """The method's `required_artifacts`, if they are the same for every index."""

    def __post_init__(self) -> None:
        check_options(self.name, self)

    @abstractmethod
    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        """Make the plan of a search; `InputError` if the index lacks what the method needs.

        Args:
            index: The index to search.
            budget: Maximum number of pairs scored per query.
            seed: Seed of all randomness.
        """

    def required_artifacts(self, index: Index) -> Collection[str]:
        """Names of artifacts, and of item vectors with a fitted scale, that the plan needs; they
        must belong to the scoring cross-encoder."""
        return self.reads

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return text_of(self.name, self)


def planned(method: Method, index: Index, budget: int, seed: int) -> Plan:
    """Return `method.plan`; `InputError` if the plan scores more pairs per query than the
    budget."""
    plan = method.plan(index, budget, seed)
    if method.bounded and sum(plan.batches) > budget:
        raise InputError(
            f"the plan of {method.name!r} scores {sum(plan.batches)} pairs of a query, more "
            f"than the budget of {budget}: its batches must sum to the budget"
        )
    return plan


def pool_size(index: Index, budget: int, shortlist: int | None) -> int | None:
    """Return the size of the shortlist, None for all items: by default at least `POOL` if there are
    more than `POOLED` items. From a database up to `WHOLE` vectors are read into memory,
    because a shortlist would send requests to the database in every round."""
    if shortlist is not None:
        return shortlist if shortlist < index.n else None
    in_database = getattr(index, "database", None) is not None
    many = index.n > (WHOLE if in_database else POOLED)
    return max(POOL, PER_CALL * budget) if many else None


def part(budget: int, share: float) -> int:
    """Return `share` of the budget as an integer of at least one."""
    return min(budget, max(1, round(budget * share)))


def equal_rounds(budget: int, rounds: int) -> tuple[int, ...]:
    """Split a budget into equal batches of at least one pair; the last also takes the remainder.

    >>> equal_rounds(23, 5)
    (4, 4, 4, 4, 7)
    """
    rounds = max(1, min(rounds, budget))
    batch = budget // rounds
    return (batch,) * (rounds - 1) + (budget - batch * (rounds - 1),)
