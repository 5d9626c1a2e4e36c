"""What a method is: its options, and the plan it makes for an index and a budget."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import ClassVar, TypeVar

from crossknn.errors import InputError, SpecError
from crossknn.index.base import Index
from crossknn.retrievers.base import WHOLE
from crossknn.search.plan import Plan
from crossknn.spec import check_options, text_of

POOLED = 12_000
"""Items up to which each round predicts all of them: of more a pool loses nothing and is faster."""
POOL, PER_CALL = 400, 3
"""Items that each retriever gives to a pool, at least, and for each call."""

Option = TypeVar("Option")


def option(default: Option, *, least: float, most: float | None = None) -> Option:
    """The default of a method's option that must lie between `least` and `most` where it is given.

    Args:
        default: Its value by default.
        least: The lowest value.
        most: The highest one; by default there is none.
    """
    bounded: Option = field(default=default, metadata={"least": least, "most": most})
    return bounded


@dataclass(frozen=True, kw_only=True)
class Method(ABC):
    """A configuration of a search; `str(method)` is its spec in the grammar.

    Subclasses are frozen keyword-only dataclasses. An option that is a spec may be given as text,
    `AXN(retriever="bm25")`; one of a wrong type raises SpecError.
    """

    name: ClassVar[str]
    calls: ClassVar[bool] = True
    """Whether it calls the cross-encoder."""
    bounded: ClassVar[bool] = True
    """Whether a plan of it may score no more than the budget."""
    reads: ClassVar[Collection[str]] = ()
    """Its `required_artifacts`, where they are the same for every index."""
    fallback: ClassVar[str] = "axn(blend=0, normalize=first)"
    """What to search with where the exact scores kept in the index are of another cross-encoder."""

    def __post_init__(self) -> None:
        check_options(self.name, self)
        for each in fields(self):
            value, most = getattr(self, each.name), each.metadata.get("most")
            if value is None or "least" not in each.metadata:
                continue
            least = each.metadata["least"]
            if not least <= value <= (value if most is None else most):
                said = f"be {least} or more" if most is None else f"lie between {least} and {most}"
                raise SpecError(f"{self.name}({each.name}={value}): {each.name} must {said}")

    @abstractmethod
    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        """Wire a search: retriever, predictor and batch sizes, which sum to the budget.

        `InputError` if the index lacks what the method needs, or options exclude each other.

        Args:
            index: What is searched.
            budget: Pairs that a query may score.
            seed: Seed of all randomness.
        """

    def required_artifacts(self, index: Index) -> Collection[str]:
        """Names of artifacts, and of item vectors whose fitted scale is read, that the plan needs;
        they must be of the cross-encoder that scores."""
        return self.reads

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        return text_of(self.name, self)


def planned(method: Method, index: Index, budget: int, seed: int) -> Plan:
    """`method.plan`; `InputError` if the plan scores more pairs of a query than the budget."""
    plan = method.plan(index, budget, seed)
    if method.bounded and sum(plan.batches) > budget:
        raise InputError(
            f"the plan of {method.name!r} scores {sum(plan.batches)} pairs of a query, and the "
            f"budget is {budget}: its batches must sum to the budget"
        )
    return plan


def pool_size(
    index: Index, budget: int, shortlist: int | None = None, least: int = POOL
) -> int | None:
    """The shortlist, by default a pool of more than `POOLED` items; None for all items. Up to
    `WHOLE` vectors of a database are read into memory, and all of these are predicted: a pool would
    ask the database in every round."""
    if shortlist is not None:
        return shortlist if shortlist < index.n else None
    in_database = getattr(index, "database", None) is not None
    many = index.n > (WHOLE if in_database else POOLED)
    return max(least, PER_CALL * budget) if many else None


def part(budget: int, share: float) -> int:
    """`share` of the budget in whole calls, at least one."""
    return min(budget, max(1, round(budget * share)))


def equal_rounds(budget: int, rounds: int) -> tuple[int, ...]:
    """Batches of equal size, at most one for each pair; the last one takes the remainder, too.

    >>> equal_rounds(23, 5)
    (4, 4, 4, 4, 7)
    """
    rounds = max(1, min(rounds, budget))
    batch = budget // rounds
    return (batch,) * (rounds - 1) + (budget - batch * (rounds - 1),)
