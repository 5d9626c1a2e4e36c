"""Figures and tables of what sweeps found: one function for each kind that `papers.toml` names.

Each takes an `Experiment` and the figure's options, and returns what stands below its title. It
raises `InputError` where the matrices lack what it needs. `score_figures` has those of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import Any, Literal

from crossknn.errors import InputError
from crossknn.evaluation.measures import Estimate, bootstrap
from crossknn.evaluation.outcome import truth_of
from crossknn.evaluation.task import ACCURACY
from crossknn.methods import parse_method
from crossknn.table import Cell
from crossknn_lab.analysis import recall_by_split
from crossknn_lab.cells import MatrixFile
from crossknn_lab.curves import Curve, curves, draw, labels_of
from crossknn_lab.experiment import Experiment
from crossknn_lab.page import Block, Table
from crossknn_lab.replay import parts_of
from crossknn_lab.sweep_report import CALLS, curve_of, percent
from crossknn_lab.table import Group, Of

TASK = (ACCURACY, "nDCG@10", "R@100")
"""The task's measures that are shown."""


# ----------------------------------------------------------------------- what sweeps found


def by_data(
    run: Experiment, sweep: str, keep: Callable[[Group], bool] = lambda group: True
) -> dict[str, list[Group]]:
    """The groups of a sweep that found something, by matrix.

    What failed is noted. Raises `InputError` if nothing is left.
    """
    made: dict[str, list[Group]] = {}
    for group in filter(keep, run.groups(sweep)):
        if group.known:
            made.setdefault(group.first.data, []).append(group)
        else:
            run.note(f"{group.first.data}, {group.first.spec}: {group.first.error}")
    if not made:
        raise InputError(f"no matrix here has what the sweep {sweep!r} needs")
    return made


def nearest_value(values: Iterable[int], wanted: int) -> int:
    """The value nearest to the papers'; of equals the smaller.

    >>> nearest_value([50, 100, 200], 500)
    200
    """
    return min(sorted(values), key=lambda value: abs(value - wanted))


def recall_lines(
    run: Experiment,
    sweep: str,
    *,
    title_of: str,
    x: str = "",
    x_label: str = CALLS,
    line: str = "{name}",
    log: bool = True,
    methods: Sequence[str] = (),
    anchors: Literal["all", "most", "fewer"] = "all",
    task: bool = False,
) -> list[Block]:
    """Draw recall over calls, or over the setting `x`: a picture for each title, a panel for each k.

    `title_of` and `line` are templates of what a group is (`_fields`): groups with the same title
    share a picture, those with the same line a line. `anchors`: groups with the most anchor queries
    of their matrix, with fewer, or all.
    """
    most = _most_anchors(run, sweep)

    def keep(group: Group) -> bool:
        has_most = group.first.anchors == most[group.first.data]
        wanted = anchors == "all" or has_most == (anchors == "most")
        return wanted and (not methods or group.first.method in methods)

    blocks: list[Block] = []
    for data, groups in by_data(run, sweep, keep).items():
        pictures: dict[str, list[Group]] = {}
        for group in groups:
            pictures.setdefault(title_of.format(**_fields(group)), []).append(group)
        for title, mine in pictures.items():
            panels = {f"top {k}": _lines(mine, k, line, x) for k in run.k}
            alt = f"{title}. Lines of recall in percent, a panel for each k."
            blocks.append(draw(curves, panels, alt=alt, title=title, x_label=x_label, log=log))
        for count in dict.fromkeys(group.first.anchors for group in groups):
            mine = [group for group in groups if group.first.anchors == count]
            blocks.append(means_table(mine, run.k, f"{data}, {count} anchor queries"))
        measures = [of for of in TASK if any(of in g.measures for g in groups)] if task else []
        if measures:
            title = f"{data}: the task's measures"
            panels = {of: _lines(groups, of, "{name}", "") for of in measures}
            labels = {"title": title, "x_label": CALLS, "y_label": "the measure"}
            blocks.append(draw(curves, panels, alt=f"{title} over calls.", **labels))
            blocks.append(means_table(groups, measures, title))
    return blocks


def means_table(groups: Sequence[Group], measures: Sequence[Of], caption: str) -> Table:
    """Means in percent, a row for each method and a column for each budget.

    The measures stand beside each other in a cell.
    """
    names = list(dict.fromkeys(group.name for group in groups))
    budgets = sorted({group.first.budget for group in groups})
    cells = {
        (group.name, group.first.budget): " / ".join(
            f"{100 * group.mean(of).mean:.1f}" for of in measures
        )
        for group in groups
    }
    labels = labels_of(names)
    kinds = " / ".join(f"recall at {of}" if isinstance(of, int) else of for of in measures)
    return Table(
        head=["method", *(f"{budget} calls" for budget in budgets)],
        rows=[[f"`{labels[n]}`", *(cells.get((n, b)) for b in budgets)] for n in names],
        caption=f"{caption}: {kinds} (%).",
        folded=True,
    )


def _fields(group: Group) -> dict[str, Any]:
    """What a group is, in words for titles and lines."""
    first = group.first
    masked = first.values.get("masked")
    return {
        "data": first.data,
        "anchors": first.anchors,
        "budget": first.budget,
        "name": group.name,
        "method": first.method,
        "sampler": "TopK" if "topk" in first.method else "SoftMax",
        "masking": f"best {masked} masked" if masked else "none masked",
    }


def _lines(groups: Sequence[Group], of: Of, line: str, x: str) -> list[Curve]:
    """A line over the calls or the values of a setting for each name; best k masked for k alone."""
    lines: dict[str, list[tuple[float | None, Group]]] = {}
    for group in groups:
        values = group.first.values
        if x or values.get("masked", 0) in (0, of):
            at = float(values[x]) if x else group.first.budget or None
            lines.setdefault(line.format(**_fields(group)), []).append((at, group))
    made = []
    for name, found in lines.items():
        found.sort(key=lambda pair: pair[0] or 0)
        estimates = [group.mean(of) for _, group in found]
        made.append(Curve.through(name, [at for at, _ in found], estimates))
    return made


def _most_anchors(run: Experiment, sweep: str) -> dict[str, int]:
    """The most anchor queries that each matrix was searched with."""
    found: dict[str, int] = {}
    for group in run.groups(sweep):
        data = group.first.data
        found[data] = max(found.get(data, 0), group.first.anchors)
    return found


def recall_by_anchors(run: Experiment) -> list[Block]:
    """Recall of the largest k at 500 calls, or the nearest, by anchor queries."""
    budget, k = nearest_value(run.budgets, 500), run.k[-1]
    tables: list[Block] = []
    for data, groups in by_data(run, "methods", lambda g: g.first.budget == budget).items():
        counts = sorted({group.first.anchors for group in groups})
        found = {(group.name, group.first.anchors): percent(group.mean(k)) for group in groups}
        rows: list[list[Cell]] = [
            [f"`{label}`", *(found.get((name, count)) for count in counts)]
            for name, label in labels_of(name for name, _ in found).items()
        ]
        items = f"{data}, {groups[0].first.items:,} items"
        caption = f"{items}: recall (%) [95%], top {k} at {budget} calls, by anchor queries."
        tables.append(Table(head=["method", *map(str, counts)], rows=rows, caption=caption))
    return tables


def splits(run: Experiment) -> list[Block]:
    """Recall against calls with the oracle's division, the one chosen on dev, and the paper's."""
    most = _most_anchors(run, "methods")

    def reranks(group: Group) -> bool:
        first = group.first
        return first.method.startswith("rerank") and first.anchors == most[first.data]

    chosen = by_data(run, "chosen-splits") if run.groups("chosen-splits") else {}
    reranked, every = by_data(run, "methods", reranks), by_data(run, "splits")
    blocks: list[Block] = []
    for data in (data for data in run.data if data.name in every):
        groups, paper = every[data.name], _papers_accounting(run, data)
        panels = {}
        for k in run.k:
            others: dict[str, list[Group]] = {}
            for group in reranked.get(data.name, []):
                others.setdefault(group.name, []).append(group)
            lines = [curve_of(name, found, k) for name, found in others.items()]
            lines.append(_best_of(groups, k, "anncur, best split"))
            if data.name in chosen:
                lines.append(curve_of("anncur, split chosen on dev", chosen[data.name], k))
            lines.append(point_curve("anncur, best split, paper's accounting", paper[str(k)]))
            panels[f"top {k}"] = lines
        title = f"{data.name}: recall at a cost"
        caption = (
            "`best split` is chosen on the test queries themselves, as in the paper; `paper's "
            "accounting` pays an anchor item again when it is retrieved, on the split of queries "
            "as stored."
        )
        alt = f"{title}. Lines of recall in percent over calls, a panel for each k."
        blocks.append(draw(curves, panels, title=title, alt=alt, caption=caption, x_label=CALLS))
        blocks.append(means_table(groups, run.k, f"{data.name}, every division"))
    return blocks


def _best_of(groups: Sequence[Group], k: int, name: str) -> Curve:
    """Over the budgets, the group with the best mean: chosen on the very queries it is shown on."""
    budgets = sorted({group.first.budget for group in groups})
    means = [[g.mean(k) for g in groups if g.first.budget == budget] for budget in budgets]
    return Curve.through(name, budgets, [max(at, key=lambda e: e.mean) for at in means])


def _papers_accounting(run: Experiment, data: MatrixFile) -> Mapping[str, Any]:
    """ANNCUR's best division by the paper's accounting, for each k: lines over the budgets."""

    def compute() -> dict[str, Any]:
        parts = parts_of(run.matrix(data), run.preset.queries)
        options: dict[str, Any] = {"ks": run.k, "shares": run.preset.shares}
        truth, anncur = (
            truth_of(parts, max(run.k)),
            parse_method("anncur(center=none, anchor_share=1)"),
        )
        best: dict[str, list[Estimate]] = {str(k): [] for k in run.k}
        for budget in run.budgets:
            by_k = recall_by_split(anncur, parts, truth, budget=budget, **options)
            for k, by_share in by_k.items():
                values = max(by_share.values(), key=lambda v: float(v.mean()))
                best[str(k)].append(bootstrap(values))
        return {k: points_of(run.budgets, estimates) for k, estimates in best.items()}

    options = {"queries": run.preset.queries, "shares": run.preset.shares}
    return dict(run.once("paper-splits", data, compute, k=run.k, budgets=run.budgets, **options))


def points_of(x: Sequence[int], estimates: Sequence[Estimate]) -> list[Any]:
    """A curve's points as JSON: the places, and (mean, low, high) at each."""
    return [list(x), [astuple(estimate) for estimate in estimates]]


def point_curve(name: str, points: Sequence[Any]) -> Curve:
    return Curve.through(name, points[0], [Estimate(*values) for values in points[1]])
