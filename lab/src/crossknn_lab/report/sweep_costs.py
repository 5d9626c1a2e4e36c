"""The sections of a sweep's page on what searching cost, and on what it was for: the task."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from scipy.stats import spearmanr

from crossknn.evaluation.measures import Estimate
from crossknn.plots.style import family
from crossknn_lab import plots
from crossknn_lab.report.numbers import clear, name_of, percent, row
from crossknn_lab.report.page import Block, Cell, Section, TableOf, draw
from crossknn_lab.report.sweep_view import Place, View
from crossknn_lab.report.text import others
from crossknn_lab.table import Group

RANKED = "nDCG@10"


def costs(view: View) -> Section | None:
    """Seconds per query, calls where they are not the budget, and calls paid for the index."""
    if not view.places:
        return None
    text = (
        "Milliseconds are of the search itself on one thread, without the cross-encoder: compare "
        "them with what its calls take. Calls for the index were paid once, before all queries."
    )
    below = [Section(title=place.title, blocks=list(_cost(view, place))) for place in view.places]
    return Section(title="Cost", blocks=[text, *_by_index(view)], sections=below)


def _cost(view: View, place: Place) -> Iterator[Block]:
    rows: list[list[Cell]] = []
    other: dict[tuple[str, str], list[int]] = {}
    for name in place.names:
        found = {budget: place.find(name, budget) for budget in place.budgets}
        known = [group for group in found.values() if group]
        paid = max((group.cost("index_calls") for group in known), default=0.0)
        milliseconds = [
            f"{1000 * group.cost('seconds'):.3g}" if group else None for group in found.values()
        ]
        rows.append([f"`{name}`", round(paid), *milliseconds])
        for group in dict.fromkeys(known):
            made, asked = group.cost("calls"), group.first.budget
            if abs(made - min(asked, place.items)) > 0.05:
                other.setdefault((name, f"{made:,.1f}".removesuffix(".0")), []).append(asked)
    yield TableOf(
        head=["method", "calls for the index", *(f"ms at {b} calls" for b in place.budgets)],
        rows=rows,
        caption=f"{place.title}: cost per query",
    )
    if other:
        said = (
            f"`{name}` made {made} where {', '.join(map(str, asked))} were asked for"
            for (name, made), asked in other.items()
        )
        yield f"Calls per query were the budget, but {'; '.join(said)}."


def _by_index(view: View) -> Iterator[Block]:
    """Recall against calls for the index, of matrices on which these were varied."""
    for data in dict.fromkeys(place.data for place in view.places):
        here = [place for place in view.places if place.data == data]
        groups = [g for p in here if p.budgets for g in p.at(p.budgets[-1])]
        groups = [group for group in groups if family(name_of(group)) != "exact"]
        drawn = [row(group, k) for group in groups for k in view.table.k]
        if len({found.index_calls for found in drawn} - {0}) > 1:
            yield draw(
                plots.recall_against_indexing,
                drawn,
                title=f"{data}: recall against what the index cost",
                labels=view.labels,
                styles=view.styles,
                alt=f"Recall on {data} against the calls paid for the index.",
            )


def tasks(view: View) -> Section | None:
    """The task's measures beside recall; None where no matrix has labels."""
    below = [
        Section(title=place.title, blocks=list(_task(view, place, measures)))
        for place in view.places
        if (measures := _measures(view, place))
    ]
    if not below:
        return None
    text = (
        "Recall says how well exact search with the cross-encoder was imitated. Whether that is "
        "better retrieval depends on the cross-encoder: here are the task's own measures, on the "
        "queries that have labels."
    )
    return Section(title="Is better k-NN better retrieval?", blocks=[text], sections=below)


def _measures(view: View, place: Place) -> list[str]:
    """The task's measures that some query has a value of."""
    known = ((m, view.mean(group, m).mean) for group in place.groups for m in group.measures)
    return list(dict.fromkeys(measure for measure, mean in known if not math.isnan(mean)))


def _task(view: View, place: Place, measures: list[str]) -> Iterator[Block]:
    shown = list(dict.fromkeys([measures[0], RANKED if RANKED in measures else measures[0]]))
    searched = [group for group in place.groups if group.measures]
    exact = next((group for group in searched if view.is_exact(group)), None)
    for measure in shown:
        yield _agreement(view, searched, measure, exact)
        if view.table.baseline:
            yield _against_baseline(view, place, measure)
        yield draw(
            plots.two_measures,
            [_point(view, g, measure) for g in searched if not view.is_exact(g)],
            title=f"{place.title}: {measure} against recall",
            x_label=f"recall at k = {view.k} (%)",
            y_label=f"{measure} (%)",
            across={"exact search": view.mean(exact, measure).mean} if exact else None,
            labels=view.labels,
            styles=view.styles,
            alt=f"{measure} on {place.title} against recall at k = {view.k}, by method and calls.",
        )
    rows: list[list[Cell]] = [
        [
            f"`{name_of(group)}`",
            group.first.budget,
            percent(view.mean(group, view.k)),
            *(percent(view.mean(group, of)) if of in group.measures else None for of in measures),
        ]
        for group in searched
    ]
    counts = ", ".join(f"{of} {_values(searched, of)}" for of in measures)
    yield TableOf(
        head=["method", "calls", f"recall at {view.k}", *measures],
        rows=rows,
        caption=f"{place.title}: the task's measures (%) [95%]; queries with a value: {counts}",
        folded=True,
    )


def _values(groups: Sequence[Group], of: str) -> str:
    """How many queries have a value: a number, or from fewest to most of the groups."""
    counts = [len(group.per_query(of)[0]) for group in groups if of in group.measures]
    return " to ".join(map(str, dict.fromkeys((min(counts), max(counts)))))


def _agreement(view: View, groups: list[Group], measure: str, exact: Group | None) -> str:
    """Whether more recall goes with more of the measure, over methods and budgets."""
    tried = [group for group in groups if not view.is_exact(group)]
    said = f"**{measure}**: "
    if len(tried) > 2:
        recall = [view.mean(group, view.k).mean for group in tried]
        values = [view.mean(group, measure).mean for group in tried]
        if len(set(recall)) > 1 and len(set(values)) > 1:
            said += (
                f"over the {len(tried)} methods and budgets its rank correlation with recall at "
                f"k = {view.k} is {spearmanr(recall, values).statistic:+.2f}. "
            )
    best = view.highest(tried, measure)
    if best:
        said += (
            f"It is highest, {percent(view.mean(best[0], measure))}, for `{view.label(best[0])}` "
            f"at {best[0].first.budget} calls{others(best)}"
        )
        said += f"; exact search has {percent(view.mean(exact, measure))}." if exact else "."
    return said


def _against_baseline(view: View, place: Place, measure: str) -> str:
    """Of what finds clearly more neighbours than the baseline: what the measure says."""
    tried = [group for group in place.groups if not view.is_exact(group)]
    better = [group for group in tried if clear(view.gain(place, group, view.k)) > 0]
    if not better:
        return (
            f"Against {view.base} with as many calls, nothing finds clearly more neighbours here."
        )
    signs = [clear(view.gain(place, group, measure)) for group in better]
    return (
        f"Against {view.base} with as many calls, {len(better)} of the methods and "
        f"budgets find clearly more neighbours (interval above zero, p at most 0.05). Of these, "
        f"{measure} is clearly better in {signs.count(1)}, clearly worse in {signs.count(-1)}, "
        f"and not told apart by these queries in {signs.count(0)}."
    )


def _point(view: View, group: Group, measure: str) -> plots.MeasurePoint:
    recall: Estimate = view.mean(group, view.k)
    value = view.mean(group, measure)
    return plots.MeasurePoint(
        name=name_of(group),
        at=f"{group.first.budget} calls",
        x=recall.mean,
        x_ci=(recall.low, recall.high),
        y=value.mean,
        y_ci=(value.low, value.high),
    )
