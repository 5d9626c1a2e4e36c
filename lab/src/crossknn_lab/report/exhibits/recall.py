"""Exhibits that tables of recall are enough for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from crossknn.evaluation.measures import bootstrap
from crossknn_lab.plots import (
    Bar,
    Curve,
    curves,
    grouped_bars,
    recall_against_cost,
    recall_against_rounds,
)
from crossknn_lab.report.exhibits.found import TASK, by_data, means, nearest, rows, table_of
from crossknn_lab.report.numbers import name_of, row
from crossknn_lab.report.page import Block, draw
from crossknn_lab.report.study import Study
from crossknn_lab.table import Group

ALT = "Lines of recall in percent over cross-encoder calls, a panel for each k."


def most_anchors(study: Study) -> dict[str, int]:
    """The most anchor queries that each matrix was searched with."""
    found: dict[str, int] = {}
    for group in study.groups("methods"):
        data = group.first.data
        found[data] = max(found.get(data, 0), group.first.anchors)
    return found


def against_cost(study: Study, sweep: str, *, most: bool | None = None) -> list[Block]:
    """Recall against calls: a picture and a table for each matrix and number of anchors.

    `most` is whether those with the most anchors are shown, or the others; all by default.
    """
    largest = most_anchors(study) if most is not None else {}

    def shown(group: Group) -> bool:
        return most is None or (group.first.anchors == largest[group.first.data]) is most

    blocks: list[Block] = []
    for data, found in by_data(study, sweep, shown).items():
        for anchors in dict.fromkeys(group.first.anchors for group in found):
            mine = [group for group in found if group.first.anchors == anchors]
            title = data if most is None else f"{data}, {anchors} anchor queries"
            figure = draw(
                recall_against_cost, rows(mine, study.k), title=title, alt=f"{title}. {ALT}"
            )
            blocks += [figure, means(mine, study.k, f"{title}.")]
    return blocks


def task_against_cost(study: Study, sweep: str) -> list[Block]:
    """The task's measures against calls, a panel for each, on the matrices that have labels."""
    blocks: list[Block] = []
    for data, found in by_data(study, sweep).items():
        measures = [measure for measure in TASK if any(measure in g.measures for g in found)]
        if not measures:
            continue
        panels = {measure: _over_budgets(found, measure) for measure in measures}
        title = f"{data}: the task's measures"
        alt = f"{title} in percent over cross-encoder calls, a panel for each, a line each method."
        asked = {"x_label": "cross-encoder calls per query", "y_label": "the measure (%)"}
        blocks.append(draw(curves, panels, title=title, alt=alt, **asked))
        blocks.append(table_of(found, measures, f"{title} (%): {' / '.join(measures)}."))
    return blocks


def _over_budgets(found: Sequence[Group], measure: str) -> list[Curve]:
    lines: dict[str, list[Group]] = {}
    for group in sorted(found, key=lambda group: group.first.budget):
        lines.setdefault(name_of(group), []).append(group)
    return [
        Curve.through(name, [g.first.budget for g in mine], [g.mean(measure) for g in mine])
        for name, mine in lines.items()
    ]


def by_anchors(study: Study) -> list[Block]:
    """Recall of the largest k at 500 calls, or the nearest, by the number of anchor queries."""
    k, budget = study.k[-1], nearest(study.budgets, 500)
    blocks: list[Block] = []
    for data, found in by_data(study, "methods", lambda g: g.first.budget == budget).items():
        bars = [_bar(group, k, f"{group.first.anchors} anchor queries") for group in found]
        title = f"{data}: top {k} at {budget} calls, by the number of anchor queries"
        blocks.append(draw(grouped_bars, bars, title=title, alt=f"{title}: bars of recall."))
    return blocks


def by_domain(study: Study) -> list[Block]:
    """The same with the most anchors, by matrix, with the numbers of items."""
    k, budget, largest = study.k[-1], nearest(study.budgets, 500), most_anchors(study)
    found = by_data(
        study,
        "methods",
        lambda g: g.first.budget == budget and g.first.anchors == largest[g.first.data],
    )
    bars = [_bar(group, k, data) for data, mine in found.items() for group in mine]
    title = f"Top {k} at {budget} calls, by matrix"
    sizes = {data: float(mine[0].first.items) for data, mine in found.items()}
    alt = f"{title}: bars of recall, and the number of items of each matrix."
    return [draw(grouped_bars, bars, title=title, sizes=sizes, alt=alt)]


def against_rounds(study: Study, methods: Sequence[str]) -> list[Block]:
    """Recall against rounds, few and many calls: a panel for each k, a line for each method."""
    blocks: list[Block] = []
    budgets = sorted({study.budgets[0], nearest(study.budgets, 500)})
    for data, found in by_data(study, "rounds", lambda g: g.first.method in methods).items():
        for budget in budgets:
            panels = {f"top {k}": _curves(found, k, budget, "rounds") for k in study.k}
            title = f"{data}: recall against rounds, {budget} calls"
            alt = f"{title}. A panel for each k, a line for each method."
            blocks.append(draw(recall_against_rounds, panels, title=title, alt=alt))
        blocks.append(means(found, study.k, f"{data}."))
    return blocks


def against_setting(
    study: Study, sweep: str, setting: str, x_label: str, heads: Mapping[str, str]
) -> list[Block]:
    """Recall against a setting: a picture for each method, a line for each number of calls.

    `heads` are words for methods by what their template holds.
    """
    blocks: list[Block] = []
    for data, found in by_data(study, sweep).items():
        for part, head in heads.items():
            panels = {
                f"top {k}": [
                    replace(curve, name=f"{budget} calls")
                    for budget in sorted({group.first.budget for group in found})
                    for curve in _curves(found, k, budget, setting)
                    if part in curve.name
                ]
                for k in study.k
            }
            title = f"{data}{head}: recall by {x_label}"
            figure = draw(
                curves,
                panels,
                title=title,
                alt=f"{title}. A panel for each k, a line for each number of calls.",
                x_label=x_label,
                log=False,
            )
            blocks.append(figure)
        blocks.append(means(found, study.k, f"{data}."))
    return blocks


def _curves(found: Sequence[Group], k: int, budget: int, setting: str) -> list[Curve]:
    """A line over the values of a setting for each method that has it."""
    lines: dict[str, list[Group]] = {}
    for group in found:
        if group.first.budget == budget:
            lines.setdefault(group.first.method, []).append(group)
    made = []
    for method, mine in lines.items():
        mine = sorted(mine, key=lambda group: float(group.first.values[setting]))
        places = [float(group.first.values[setting]) for group in mine]
        made.append(Curve.through(method, places, [group.mean(k) for group in mine]))
    return made


def _bar(group: Group, k: int, where: str) -> Bar:
    found = row(group, k)
    return Bar(
        group=where, name=found.method, value=found.recall, low=found.ci[0], high=found.ci[1]
    )


def best_of(found: Sequence[Group], k: int, name: str) -> Curve:
    """Over the budgets, the group with the best mean: chosen on the very queries it is shown on."""
    budgets, best = sorted({group.first.budget for group in found}), []
    for budget in budgets:
        mine = [group.per_query(k)[1] for group in found if group.first.budget == budget]
        best.append(bootstrap(max(mine, key=lambda values: float(values.mean()))))
    return Curve.through(name, budgets, best)
