"""What groups of a sweep found, as rows of pictures and cells of tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from crossknn.errors import InputError
from crossknn.evaluation.measures import Comparison, Estimate
from crossknn.evaluation.replay import RecallRow
from crossknn_lab.report.page import Cell
from crossknn_lab.table import Group, Of, compared


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
    """A mean and its interval, which has a digit more where without it the mean would lie outside.

    `-` for what no query has.

    >>> percent(Estimate(0.625, 0.5, 0.75)), percent(Estimate(0.9992, 0.9984, 1.0))
    ('62.5 [50, 75]', '99.9 [99.8, 100.0]')
    """
    if math.isnan(found.mean):
        return "-"
    mean, low, high = 100 * found.mean, 100 * found.low, 100 * found.high
    digits = 0 if round(low, 0) <= round(mean, 1) <= round(high, 0) else 1
    return f"{mean:.1f} [{low:.{digits}f}, {high:.{digits}f}]"


def versus(group: Group | None, other: Group | None, of: Of) -> Comparison | None:
    """How much better a group is than another; None where no query has a value on both sides."""
    if group is None or other is None:
        return None
    try:
        return compared(group, other, of)
    except InputError:
        return None


def points(found: Comparison | None) -> Cell:
    """A difference in points with its interval, bold where it is clear (`Comparison.sign`)."""
    if found is None:
        return None
    low, high = 100 * found.low, 100 * found.high
    said = f"{100 * found.difference:+z.1f} [{low:+z.1f}, {high:+z.1f}]"
    return f"**{said}**" if found.sign else said


def clear(found: Comparison | None) -> int:
    """1 if better, -1 if worse, 0 if these queries do not say (`Comparison.sign`)."""
    return 0 if found is None else found.sign


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
