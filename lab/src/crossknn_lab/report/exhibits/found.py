"""What sweeps found, as rows of pictures and tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from crossknn.errors import InputError
from crossknn.evaluation.replay import RecallRow
from crossknn.evaluation.task import ACCURACY
from crossknn_lab.plots import labels_of
from crossknn_lab.report.numbers import name_of, row
from crossknn_lab.report.page import TableOf
from crossknn_lab.report.study import Study
from crossknn_lab.table import Group, Of, is_called

FirstStageScores = Callable[[Group], bool]

TASK = (ACCURACY, "nDCG@10", "R@100")
"""The task's measures that are shown."""


def groups(
    study: Study, sweep: str, *, data: str = "", keep: FirstStageScores | None = None
) -> list[Group]:
    """Of a sweep, those groups that found something; of one matrix, if `data` names it.

    What failed is noted in the study. Raises `InputError` if nothing is left.
    """
    found = []
    for group in study.groups(sweep):
        first = group.first
        if (data and first.data != data) or (keep is not None and not keep(group)):
            continue
        if group.known:
            found.append(group)
        else:
            study.note(f"{first.data}, {first.spec}: {first.error}")
    if not found:
        raise InputError(f"no search of {sweep!r} found anything on {data or 'these matrices'}")
    return found


def by_data(
    study: Study, sweep: str, keep: FirstStageScores | None = None
) -> dict[str, list[Group]]:
    """The same, apart by matrix; without those on which nothing was found."""
    made: dict[str, list[Group]] = {}
    for group in groups(study, sweep, keep=keep):
        made.setdefault(group.first.data, []).append(group)
    return made


def one(
    study: Study, sweep: str, name: str, *, data: str, budget: int, anchors: int | None = None
) -> Group | None:
    """The group of a method's spec or template; None if there is none that found something."""
    for group in study.groups(sweep):
        first = group.first
        if (
            (first.data, first.budget) == (data, budget)
            and group.known
            and is_called(group, name)
            and anchors in (None, first.anchors)
        ):
            return group
    return None


def rows(found: Iterable[Group], ks: Sequence[int]) -> list[RecallRow]:
    """A row for each group and k."""
    return [row(group, k) for group in found for k in ks]


def means(found: Sequence[Group], ks: Sequence[int], caption: str) -> TableOf:
    """Recall in percent at each k; see `table_of`."""
    return table_of(found, ks, f"{caption} Recall (%) at k = {' / '.join(map(str, ks))}.")


def table_of(found: Sequence[Group], measures: Sequence[Of], caption: str) -> TableOf:
    """Means in percent, a row for each method and a column for each budget.

    The measures one below the other would be long: they stand beside each other in a cell.
    """
    names = list(dict.fromkeys(map(name_of, found)))
    budgets = sorted({group.first.budget for group in found})
    cells: dict[tuple[str, int], str] = {}
    for group in found:
        values = [group.mean(of) for of in measures]
        cells[name_of(group), group.first.budget] = " / ".join(
            f"{100 * value.mean:.1f}" for value in values
        )
    said = labels_of(names)
    return TableOf(
        head=["method", *(f"{budget} calls" for budget in budgets)],
        rows=[[f"`{said[n]}`", *(cells.get((n, b)) for b in budgets)] for n in names],
        caption=caption,
        folded=True,
    )


def nearest(values: Iterable[int], wanted: int) -> int:
    """The value nearest to the papers'; of equals the smaller.

    >>> nearest([50, 100, 200], 500)
    200
    """
    return min(sorted(values), key=lambda value: abs(value - wanted))
