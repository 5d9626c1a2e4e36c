"""What groups of a sweep found, as rows of pictures and cells of tables."""

from __future__ import annotations

from collections.abc import Sequence

from crossknn.evaluation.measures import Comparison, Estimate
from crossknn.evaluation.replay import RecallRow
from crossknn.evaluation.table import Group, Of, compared
from crossknn.report.page import Cell


def name_of(group: Group) -> str:
    """The method as the sweep has it where its setting was chosen, or else as it was run."""
    return group.first.method if group.first.chosen else group.first.spec


def row(group: Group, k: int) -> RecallRow:
    """A group's recall at k over its seeds, its interval, and its cost."""
    found = group.mean(k)
    return RecallRow(
        method=name_of(group),
        k=k,
        budget=group.first.budget,
        recall=found.mean,
        ci=(found.low, found.high),
        n_queries=len(group.per_query(k)[0]),
        calls=group.cost("calls"),
        seconds=group.cost("seconds"),
        seed=group.first.seed,
        index_calls=round(group.cost("index_calls")),
    )


def percent(found: Estimate) -> str:
    """A mean and its interval.

    >>> percent(Estimate(0.625, 0.5, 0.75))
    '62.5 [50, 75]'
    """
    return f"{100 * found.mean:.1f} [{100 * found.low:.0f}, {100 * found.high:.0f}]"


def versus(group: Group | None, other: Group | None, of: Of) -> Comparison | None:
    """How much better a group is than another; None where a side has no value."""
    if group is None or other is None or of not in _known(group) or of not in _known(other):
        return None
    if not {entry.seed for entry in group.known} & {entry.seed for entry in other.known}:
        return None
    return compared(group, other, of)


def points(found: Comparison | None) -> Cell:
    """A difference in points with its interval; an interval on one side of zero is bold."""
    if found is None:
        return None
    low, high = 100 * found.low, 100 * found.high
    said = f"{100 * found.difference:+.1f} [{low:+.1f}, {high:+.1f}]"
    return f"**{said}**" if low > 0 or high < 0 else said


def chance(found: Comparison | None) -> Cell:
    """The p-value of a difference."""
    if found is None:
        return None
    return "< 0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}"


def middle(ks: Sequence[int]) -> int:
    """The k that stands for all where there is room for one: 10, or else one in the middle.

    >>> middle([1, 10, 100]), middle([1, 5])
    (10, 5)
    """
    return 10 if 10 in ks else sorted(ks)[len(ks) // 2]


def _known(group: Group) -> set[Of]:
    found: set[Of] = set()
    for entry in group.known:
        if entry.found:
            found |= {*entry.found.outcome.recall, *entry.found.outcome.task}
    return found
