"""The sections of a sweep's page on recall: against cost, by anchors, and above the baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from crossknn.methods import in_full
from crossknn.plots.style import family
from crossknn_lab import plots
from crossknn_lab.report.numbers import chance, name_of, percent, points, row
from crossknn_lab.report.page import Block, Cell, Section, TableOf, draw
from crossknn_lab.report.sweep_view import Place, View

LINES = 12
"""So many methods at most are in one picture: more are drawn apart, by their families."""


def recalls(view: View) -> Section:
    """Pictures and tables of recall by cost, for each place; by anchors where they were varied."""
    below = []
    for place in view.places:
        names = [name for name in place.names if family(name) != "exact"]
        rows = [row(g, k) for g in place.groups if name_of(g) in names for k in view.table.k]
        portions = list(_portions(names))
        blocks: list[Block] = [
            draw(
                plots.recall_against_cost,
                [found for found in rows if found.method in portion],
                title=f"{place.title}: recall against calls"
                + (f", {number} of {len(portions)}" if len(portions) > 1 else ""),
                labels=view.labels,
                styles=view.styles,
                alt=f"Recall on {place.title} against calls per query, a line for each of "
                f"{', '.join(view.labels[name] for name in portion)}.",
                caption="Bands: 95% intervals. A line without points: makes no calls.",
            )
            for number, portion in enumerate(portions, start=1)
        ]
        blocks += _recall_tables(view, place)
        below.append(Section(title=place.title, blocks=blocks))
    return Section(title="Recall against cost", blocks=list(_by_anchors(view)), sections=below)


def _portions(names: Sequence[str]) -> Iterator[list[str]]:
    """Names for one picture each: all of them, or families together as far as they fit."""
    part: list[str] = []
    families = list(dict.fromkeys(map(family, names)))
    for like in families:
        more = [name for name in names if family(name) == like]
        if part and len(part) + len(more) > LINES:
            yield part
            part = []
        part += more
    if part:
        yield part


def _recall_tables(view: View, place: Place) -> Iterator[TableOf]:
    for k in view.table.k:
        rows: list[list[Cell]] = []
        means: dict[tuple[int, int], float] = {}
        for number, name in enumerate(place.names):
            cells: list[Cell] = [f"`{in_full(name)}`"]
            for column, budget in enumerate(place.budgets, start=1):
                group = place.find(name, budget)
                cells.append(percent(view.mean(group, k)) if group else None)
                if group and not view.is_exact(group):
                    means[number, column] = view.mean(group, k).mean
            rows.append(cells)
        yield TableOf(
            head=["method", *(f"{budget} calls" for budget in place.budgets)],
            rows=rows,
            caption=f"{place.title}: recall (%) at k = {k}, mean over queries and seeds [95%]; "
            "the highest is bold.",
            folded=k != view.k,
            best=_highest(means),
        )


def _highest(means: Mapping[tuple[int, int], float]) -> frozenset[tuple[int, int]]:
    """The best of each column."""
    columns = {column for _, column in means}
    most = {c: max(value for (_, at), value in means.items() if at == c) for c in columns}
    return frozenset(cell for cell, value in means.items() if value == most[cell[1]])


def _by_anchors(view: View) -> Iterator[Block]:
    """Bars by |Q_train|, for matrices on which it was varied (ANNCUR, figure 4)."""
    for data in dict.fromkeys(place.data for place in view.places):
        here = [place for place in view.places if place.data == data]
        if len(here) < 2:
            continue
        budget, k = here[0].budgets[-1], view.k
        bars = [
            plots.Bar(
                group=f"{place.anchors} queries",
                name=name_of(group),
                value=view.mean(group, k).mean,
                low=view.mean(group, k).low,
                high=view.mean(group, k).high,
            )
            for place in here
            for group in place.at(budget)
            if family(name_of(group)) != "exact"
        ]
        yield draw(
            plots.grouped_bars,
            bars,
            title=f"{data}: by the number of anchor queries",
            y_label=f"recall (%), k = {k}, {budget} calls",
            labels=view.labels,
            styles=view.styles,
            alt=f"Recall on {data} at k = {k} and {budget} calls, by the number of anchor queries.",
        )


def differences(view: View) -> Section | None:
    """Paired differences to the baseline; None without one."""
    name = view.table.baseline
    if name is None:
        return None
    below, count = [], 0
    for place in view.places:
        rows: list[list[Cell]] = []
        drawn = []
        for group in place.groups:
            for k in view.table.k:
                found = view.gain(place, group, k)
                if found is None or view.is_exact(group):
                    continue
                budget = group.first.budget
                rows.append(
                    [f"`{name_of(group)}`", budget, k, points(found), chance(found), found.n]
                )
                if k == view.k:
                    drawn.append(
                        plots.Difference(
                            group=f"{budget} calls",
                            name=name_of(group),
                            value=found.difference,
                            low=found.low,
                            high=found.high,
                        )
                    )
        if not rows:
            continue
        count += len(rows)
        blocks: list[Block] = [
            draw(
                plots.differences,
                drawn,
                title=f"{place.title}: recall at k = {view.k} above {view.labels.get(name, name)}",
                labels=view.labels,
                styles=view.styles,
                alt=f"Differences in recall at k = {view.k} to {name} on {place.title}.",
                caption="Right of the line: better than the baseline with as many calls.",
            ),
            TableOf(
                head=["method", "calls", "k", "points [95%]", "p", "queries"],
                rows=rows,
                caption=f"{place.title}: all {len(rows)} differences",
                folded=True,
            ),
        ]
        below.append(Section(title=place.title, blocks=blocks))
    if not below:
        return None
    text = (
        f"Recall in points above `{name}` with the same calls on the same queries. Intervals are "
        "by bootstrap over queries; p-values are two-sided, of random signs (at least 0.0001). "
        f"There are {count:,} comparisons: about {count / 20:.0f} would have p < 0.05 by chance "
        "alone if no method differed."
    )
    return Section(title="Against the baseline", blocks=[text], sections=below)
