"""The report of a sweep: one page from its table alone, nothing is searched again."""

from __future__ import annotations

import math
import platform
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path

from crossknn.errors import InputError, SpecError
from crossknn.evaluation.measures import Comparison, Estimate
from crossknn.evaluation.task import ACCURACY
from crossknn.linalg import available_threads
from crossknn.methods import method_named
from crossknn.spec import split
from crossknn.table import Cell
from crossknn_lab.curves import Curve, curves, draw, family, labels_of
from crossknn_lab.page import Block, Page, Section
from crossknn_lab.page import Table as PageTable
from crossknn_lab.table import Group, Of, Table, compared

CALLS = "cross-encoder calls per query"

TASK = (ACCURACY, "nDCG@10", "R@20")
"""The task's measures in which methods are compared: the first item, the order, what is there."""

# ------------------------------------------------------------- groups as rows and as cells


def curve_of(name: str, groups: Iterable[Group], of: Of) -> Curve:
    """Means of groups over their budgets; a method without calls is drawn across."""
    found = sorted(groups, key=lambda group: group.first.budget)
    places = [group.first.budget or None for group in found]
    return Curve.through(name, places, [group.mean(of) for group in found])


def percent(found: Estimate) -> str:
    """A mean and its interval.

    >>> percent(Estimate(0.625, 0.5, 0.75))
    '62.5 [50.0, 75.0]'
    """
    if math.isnan(found.mean):
        return "-"
    return f"{100 * found.mean:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def versus(group: Group | None, other: Group | None, of: Of) -> Comparison | None:
    """How much better a group is than another; None where no query has a value on both sides."""
    if group is None or other is None:
        return None
    try:
        return compared(group, other, of)
    except InputError:
        return None


def points(found: Comparison | None) -> Cell:
    """A difference in points with its interval, bold where it is significant (`Comparison.sign`)."""
    if found is None:
        return None
    text = f"{100 * found.difference:+z.1f} [{100 * found.low:+z.1f}, {100 * found.high:+z.1f}]"
    return f"**{text}**" if found.sign else text


def p_value(found: Comparison | None) -> Cell:
    """The p-value of a difference."""
    if found is None:
        return None
    return "< 0.001" if found.p_value < 0.001 else f"{found.p_value:.3f}"


def listed(values: Iterable[object]) -> str:
    """Values separated by commas."""
    return ", ".join(map(str, values))


# -------------------------------------------------------------------- a table as its page sees it


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """The groups that can be compared with each other: of one matrix and number of anchors."""

    title: str
    groups: tuple[Group, ...]

    @property
    def budgets(self) -> list[int]:
        """Calls per query, without the 0 of methods that make none."""
        return sorted({group.first.budget for group in self.groups} - {0})

    @property
    def names(self) -> list[str]:
        """The methods, in the order of the sweep."""
        return list(dict.fromkeys(group.name for group in self.groups))

    def at(self, budget: int) -> list[Group]:
        """What was asked for so many calls, or makes none."""
        return [group for group in self.groups if group.first.budget in (budget, 0)]

    def find(self, name: str, budget: int) -> Group | None:
        """A method at a budget."""
        return next((g for g in self.at(budget) if g.name == name), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class ReportContext:
    """A table with what all sections share: its data sets, and the labels of methods."""

    table: Table
    datasets: tuple[Dataset, ...]
    labels: Mapping[str, str]
    _gains: dict[tuple[int, Of], Comparison | None] = field(default_factory=dict)

    @classmethod
    @lru_cache(maxsize=1)
    def of(cls, table: Table) -> ReportContext:
        """Groups in which nothing was found are left out here; the page says which."""
        apart: dict[tuple[str, int], list[Group]] = {}
        for group in table.groups:
            if group.known:
                apart.setdefault((group.first.data, group.first.anchors), []).append(group)
        counts = Counter(data for data, _ in apart)
        datasets = tuple(
            Dataset(
                title=f"{data}, {anchors} anchor queries" if counts[data] > 1 else data,
                groups=tuple(groups),
            )
            for (data, anchors), groups in apart.items()
        )
        names = [group.name for dataset in datasets for group in dataset.groups]
        return cls(table=table, datasets=datasets, labels=labels_of(names))

    @property
    def k(self) -> int:
        """Stands for all where there is room for one: 10, or else one in the middle."""
        return 10 if 10 in self.table.k else sorted(self.table.k)[len(self.table.k) // 2]

    def label(self, group: Group) -> str:
        """A short name, the same on the whole page."""
        return self.labels[group.name]

    def gain(self, dataset: Dataset, group: Group, of: Of) -> Comparison | None:
        """A group against the sweep's baseline at the same budget, computed once."""
        key, name = (id(group), of), self.table.baseline
        if key not in self._gains:
            here = dataset.at(group.first.budget)
            base = next((g for g in here if name and g.is_called(name)), None)
            self._gains[key] = None if base is group else versus(group, base, of)
        return self._gains[key]

    @staticmethod
    def is_exact(group: Group) -> bool:
        """Whether the group is exact search, with which nothing can be compared."""
        return family(group.name) == "exact" or group.first.budget >= group.first.items


# ------------------------------------------------------------------------------------ the page


def sweep_page(table: Table, title: str) -> Page:
    """What a sweep compared, found, cost and could not do.

    A sweep in which nothing could be searched gives a page that says so. Raises MissingExtraError
    without matplotlib.
    """
    view = ReportContext.of(table)
    first = (
        [_in_short(view), _compared(view), _recalls(view)] if view.datasets else [_compared(view)]
    )
    later = (make(view) for make in (_differences, _costs, _tasks, _not_done))
    return Page(
        title=title, lead=_lead(table), sections=[*first, *(made for made in later if made)]
    )


def _lead(table: Table) -> str:
    failed = sum(bool(entry.error) for entry in table.entries)
    return (
        f"{len(table.entries):,} searches of stored score matrices, {failed:,} of which could not be "
        "made. Every method is asked for the same number of cross-encoder calls per query; recall "
        "is the share of exact search's k nearest neighbours that were found. Intervals are 95%, by "
        "bootstrap over queries."
    )


def _compared(view: ReportContext) -> Section:
    table = view.table
    rows: list[list[Cell]] = []
    for name in dict.fromkeys(entry.data for entry in table.entries):
        here = [entry for entry in table.entries if entry.data == name]
        tests = {len(entry.result.queries) for entry in here if entry.result}
        anchors = listed(f"{count:,}" for count in sorted({e.anchors for e in here}))
        rows.append([name, here[0].items, anchors, listed(sorted(tests)) or None])
    facts = [
        f"calls per query: {listed(sorted({e.budget for e in table.entries if e.budget}))}",
        f"k: {listed(table.k)}",
        f"seeds: {listed(sorted({e.seed for e in table.entries}))}",
        f"baseline: `{table.baseline}`" if table.baseline else "no baseline was named",
        f"this page was made on: {listed(f'{k} {v}' for k, v in environment().items())}",
        *table.notes,
    ]
    methods = [f"`{in_full(name)}`" for name in dict.fromkeys(e.method for e in table.entries)]
    head = ["matrix", "items", "anchor queries", "test queries by a seed"]
    blocks: list[Block] = [
        PageTable(head=head, rows=rows),
        facts,
        "Methods, as they were asked for (what stands in braces was varied):",
        methods,
    ]
    return Section(title="What was compared", blocks=blocks)


def _in_short(view: ReportContext) -> Section:
    blocks: list[Block] = [
        "The method with the highest mean recall (%), by k and calls per query. Where intervals "
        "overlap, another one may be as good: see the paired differences. No method is named where "
        "so many calls are exact search."
    ]
    for dataset in view.datasets:
        rows: list[list[Cell]] = []
        for k in view.table.k:
            cells: list[Cell] = []
            for budget in dataset.budgets:
                known = [g for g in dataset.at(budget) if not view.is_exact(g)]
                best = max(known, key=lambda g: g.mean(k).mean, default=None)
                cells.append(f"{view.label(best)}: {percent(best.mean(k))}" if best else None)
            rows.append([f"k = {k}", *cells])
        head = [dataset.title, *(f"{budget} calls" for budget in dataset.budgets)]
        blocks.append(PageTable(head=head, rows=rows))
    return Section(title="In short", blocks=blocks)


def _recalls(view: ReportContext) -> Section:
    """Plots and tables of recall by cost, for each data set."""
    below = []
    for dataset in view.datasets:
        names = [name for name in dataset.names if family(name) != "exact"]
        found = {name: [g for g in dataset.groups if g.name == name] for name in names}
        panels = {
            f"top {k}": [curve_of(name, groups, k) for name, groups in found.items()]
            for k in view.table.k
        }
        title = f"{dataset.title}: recall against calls"
        alt = f"{title}, a line for each of {listed(view.labels[name] for name in names)}."
        caption = "Bands: 95% intervals. A line without points: makes no calls."
        more = {"alt": alt, "caption": caption, "x_label": CALLS}
        blocks: list[Block] = [draw(curves, panels, title=title, **more)]
        blocks += [_recall_table(view, dataset, k) for k in view.table.k]
        below.append(Section(title=dataset.title, blocks=blocks))
    return Section(title="Recall against cost", sections=below)


def _recall_table(view: ReportContext, dataset: Dataset, k: int) -> PageTable:
    rows: list[list[Cell]] = []
    means: dict[int, dict[int, float]] = {}
    for number, name in enumerate(dataset.names):
        cells: list[Cell] = [f"`{in_full(name)}`"]
        for column, budget in enumerate(dataset.budgets, start=1):
            group = dataset.find(name, budget)
            cells.append(percent(group.mean(k)) if group else None)
            if group and not view.is_exact(group):
                means.setdefault(column, {})[number] = group.mean(k).mean
        rows.append(cells)
    best = {(n, c) for c, at in means.items() for n, mean in at.items() if mean == max(at.values())}
    return PageTable(
        head=["method", *(f"{budget} calls" for budget in dataset.budgets)],
        rows=rows,
        caption=f"{dataset.title}: recall (%) at k = {k}, mean over queries and seeds [95%]; "
        "the highest is bold.",
        folded=k != view.k,
        best=frozenset(best),
    )


def _differences(view: ReportContext) -> Section | None:
    """Paired differences to the baseline; None without one."""
    tables: list[Block] = []
    count = 0
    for dataset in view.datasets if view.table.baseline else ():
        tables.append(made := _gains(view, dataset, "k", view.table.k))
        count += len(made.rows)
    text = (
        f"Recall in points above `{view.table.baseline}` with the same calls on the same queries. "
        "Intervals are by bootstrap over queries; p-values are two-sided, of random signs (at least "
        f"0.0001). There are {count:,} comparisons: about {count / 20:.0f} would have p < 0.05 by "
        "chance alone if no method differed."
    )
    return Section(title="Against the baseline", blocks=[text, *tables]) if tables else None


def _gains(view: ReportContext, dataset: Dataset, what: str, ofs: Sequence[Of]) -> PageTable:
    """All differences to the baseline; exact search's in measures of the task only."""
    rows: list[list[Cell]] = [
        [f"`{group.name}`", group.first.budget, of, points(gain), p_value(gain), gain.n]
        for group in dataset.groups
        for of in ofs
        if (gain := view.gain(dataset, group, of))
        and (isinstance(of, str) or not view.is_exact(group))
    ]
    head = ["method", "calls", what, "points [95%]", "p", "queries"]
    caption = f"{dataset.title}: all {len(rows)} differences"
    return PageTable(head=head, rows=rows, caption=caption, folded=True)


def _costs(view: ReportContext) -> Section | None:
    """Calls and seconds per query, and calls spent for the index."""
    blocks: list[Block] = [
        "Calls per query, and milliseconds of the search itself on one thread, without the "
        "cross-encoder: compare them with what its calls take. Calls for the index were spent once, "
        "before all queries."
    ]
    for dataset in view.datasets:
        rows: list[list[Cell]] = []
        for name in dataset.names:
            found = [dataset.find(name, budget) for budget in dataset.budgets]
            index_calls = max((g.cost("index_calls") for g in found if g), default=0.0)
            spent = (
                f"{g.cost('calls'):,.4g} calls, {1000 * g.cost('seconds'):.3g} ms" if g else None
                for g in found
            )
            rows.append([f"`{name}`", round(index_calls), *spent])
        head = ["method", "calls for the index", *(f"{b} asked for" for b in dataset.budgets)]
        blocks.append(PageTable(head=head, rows=rows, caption=f"{dataset.title}: cost per query"))
    return Section(title="Cost", blocks=blocks) if view.datasets else None


def _tasks(view: ReportContext) -> Section | None:
    """The task's measures beside recall; None where no matrix is judged."""
    blocks: list[Block] = [
        "Recall says how well exact search with the cross-encoder was imitated. Whether that is "
        "better retrieval depends on the cross-encoder: here are the task's own measures, on the "
        "queries that have judgements, and where there is a baseline, differences to it."
    ]
    for dataset in view.datasets:
        groups = [group for group in dataset.groups if group.measures]
        measures = list(dict.fromkeys(of for group in groups for of in group.measures))
        known = [of for of in measures if any(len(group.per_query(of)[0]) for group in groups)]
        rows: list[list[Cell]] = [
            [
                f"`{g.name}`",
                g.first.budget,
                percent(g.mean(view.k)),
                *(percent(g.mean(of)) if of in g.measures else None for of in known),
            ]
            for g in groups
        ]
        head = ["method", "calls", f"recall at {view.k}", *known]
        caption = f"{dataset.title}: the task's measures (%) [95%]"
        if known:
            blocks.append(PageTable(head=head, rows=rows, caption=caption, folded=True))
        if shown := [of for of in TASK if of in known and view.table.baseline]:
            blocks.append(_gains(view, dataset, "measure", shown))
    title = "Is better k-NN better retrieval?"
    return Section(title=title, blocks=blocks) if len(blocks) > 1 else None


def _not_done(view: ReportContext) -> Section | None:
    """What failed, each sentence once."""
    every = (*view.table.dev, *view.table.entries)
    failed = Counter((e.data, f"`{e.spec}`", e.error) for e in every if e.error)
    rows: list[list[Cell]] = [[*labels, times] for labels, times in failed.items()]
    table = PageTable(head=["matrix", "method", "why", "searches"], rows=rows)
    text = "These are in no mean above; all else went on."
    return Section(title="What could not be searched", blocks=[text, table]) if rows else None


# --------------------------------------------------------------------- what it was made on

PACKAGES = ("crossknn", "numpy", "scipy", "bm25s", "ir-measures", "onnxruntime")
"""Those that figures depend on."""


def environment() -> dict[str, str]:
    """Processor, system and versions, by what they are; without names of a host.

    >>> "python" in environment()
    True
    """
    known = Path("/proc/cpuinfo")
    text = known.read_text(encoding="utf-8") if known.exists() else ""
    model = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return {
        "processor": model[1] if model else platform.machine(),
        "cores": str(available_threads()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }


def in_full(spec: str) -> str:
    """A method's spec, or a template of one, with the options it leaves at their defaults.

    A table that prints it cannot be read as if a bare name were the method's best.

    >>> in_full("tour(retriever={stage}, rounds=10)")
    'tour(retriever={stage}, rounds=10, vectors=auto, normalize=none, loss=kl, lr=none)'
    """
    name, _, inside = spec.strip().partition("(")
    try:
        method = method_named(name)
    except SpecError:
        return spec
    given = split(inside.removesuffix(")"))
    named = {option.partition("=")[0].strip() for option in given}
    left = [
        f"{option.name}={str(option.default).lower()}"
        for option in fields(method)
        if option.name not in named
    ]
    return f"{name}({', '.join([*given, *left])})" if given or left else name
