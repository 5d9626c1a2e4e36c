"""Beyond the papers: all methods at equal calls, the task's measures, and the questions asked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from crossknn.errors import InputError
from crossknn.evaluation.measures import Comparison, bootstrap, paired
from crossknn.table import Cell
from crossknn_lab.curves import Curve, curves, draw, family
from crossknn_lab.experiment import PAPERS, Experiment
from crossknn_lab.figures import by_data
from crossknn_lab.page import Block, Section, Table
from crossknn_lab.sweep_report import (
    TASK,
    ReportContext,
    listed,
    p_value,
    percent,
    points,
    sweep_page,
    versus,
)
from crossknn_lab.table import Group, differences

KS = (1, 10, 100)

ASKED = "questions"
"""The sweep of all that the questions compare."""


def shown_ks(run: Experiment) -> list[int]:
    """1, 10 and 100 as far as they were swept."""
    return [k for k in run.k if k in KS] or [run.k[0]]


def rivals(run: Experiment) -> ReportContext:
    """What the sweep of all methods found; InputError if no matrix is fit for it."""
    if (table := run.table("rivals")) is None:
        raise InputError("no matrix has a dual encoder and anchor queries to choose settings on")
    return ReportContext.of(table)


def equal_calls(run: Experiment) -> list[Block | Section]:
    """The page of the sweep of all methods: recall, differences, settings, cost, the task."""
    return list(sweep_page(rivals(run).table, "").sections)


def _group(run: Experiment, spec: str, data: str, budget: int) -> Group | None:
    """A method of the questions on a matrix; None if it has found nothing there."""
    here = (g for g in run.groups(ASKED) if (g.first.data, g.first.budget) == (data, budget))
    return next((group for group in here if group.known and group.is_called(spec)), None)


def _sign(found: Comparison | None) -> int:
    """1 if better, -1 if worse, 0 if these queries do not say."""
    return 0 if found is None else found.sign


def questions(run: Experiment, *, pairs: Sequence[tuple[str, str, str]]) -> list[Block]:
    """Differences of each pair (title, spec, other) by matrix, budget and k, and how many are clear."""
    ks, places = shown_ks(run), list(by_data(run, ASKED))
    counted: dict[str, list[Cell]] = {}
    tables: list[Block] = []
    for data in places:
        lines: list[list[Cell]] = []
        for title, upper, lower in pairs:
            found: list[Comparison | None] = []
            for budget in run.budgets:
                a, b = (_group(run, spec, data, budget) for spec in (upper, lower))
                made = [versus(a, b, k) for k in ks]
                if any(made):
                    cells = [cell for one in made for cell in (points(one), p_value(one))]
                    lines.append([title, budget, *cells])
                    found += made
            signs = [_sign(one) for one in found]
            counts = f"{signs.count(1)} / {signs.count(-1)} of {len(signs)}" if signs else None
            counted.setdefault(title, []).append(counts)
        if lines:
            heads = [head for k in ks for head in (f"k = {k}", "p")]
            caption = f"{data}: differences in points, 95% intervals over queries."
            head = ["", "calls", *heads]
            tables.append(Table(head=head, rows=lines, caption=caption, folded=True))
    if not tables:
        raise InputError("no matrix has what these methods need")
    counts_table = Table(
        head=["clearly better / worse", *places],
        rows=[[title, *cells] for title, cells in counted.items() if any(cells)],
        caption=f"Over calls {listed(run.budgets)} and k {listed(ks)}.",
    )
    return [counts_table, *tables]


def task_verdicts(run: Experiment) -> list[Block]:
    """Of searches with clearly nearer neighbours: how often retrieval was better or worse."""
    view = rivals(run)
    lines: list[list[Cell]] = []
    for dataset in view.datasets:
        exact = dataset.find("exact", dataset.budgets[-1])
        tried = [group for group in dataset.groups if not view.is_exact(group)]
        nearer = [g for g in tried if _sign(view.gain(dataset, g, view.k)) > 0]
        for measure in TASK:
            if not any(measure in group.measures for group in tried):
                continue
            signs = [_sign(view.gain(dataset, group, measure)) for group in nearer]
            gain = None if exact is None else view.gain(dataset, exact, measure)
            counts = (signs.count(1), signs.count(0), signs.count(-1))
            ends = [points(gain), p_value(gain)]
            lines.append([dataset.title, measure, len(nearer), *counts, *ends])
    if not lines:
        raise InputError("no matrix has judgements")
    head = ["matrix", "measure", "more neighbours", "better", "not told apart", "worse"]
    caption = (
        f"Methods and budgets with clearly more neighbours (k = {view.k}) than the baseline with as "
        "many calls, and what the task's measure says of these; exact search: points above it at "
        "the most calls. Clearly: the 95% interval is on one side of 0, and p is at most 0.05."
    )
    return [Table(head=[*head, "exact search", "p"], rows=lines, caption=caption)]


# --------------------------------------------------------------- means over all matrices


def answers_in_short(run: Experiment) -> list[Block]:
    """All methods at equal calls, and the questions, each as a mean over the matrices."""
    field = Field(run, rivals(run))
    if not field.names:
        raise InputError("no method has found something on every matrix")
    rows: list[list[Cell]] = []
    for title, upper, lower in PAPERS["in_short"]["pairs"]:
        by_budget = [_pairs(run, upper, lower, budget) for budget in field.budgets]
        for k in field.ks if any(by_budget) else ():
            sets = [[differences(a, b, k) for a, b in pairs] for pairs in by_budget]
            rows.append([title, k, *(points(paired(*s)) if s else None for s in sets)])
    caption = (
        "Differences in points, mean over the matrices [95%]; bold: the interval is on one side of "
        "zero, and p is at most 0.05."
    )
    head = ["", "k", *(f"{budget} calls" for budget in field.budgets)]
    return [field.picture(), *field.tables(), Table(head=head, rows=rows, caption=caption)]


class Field:
    """The methods that were swept on all matrices, the best by mean recall first."""

    def __init__(self, run: Experiment, view: ReportContext) -> None:
        self.view, self.ks, self.budgets = view, shown_ks(run), run.budgets
        self.k = view.k if view.k in self.ks else self.ks[0]
        self.groups: dict[str, dict[int, list[Group]]] = {}
        for name in view.datasets[0].names if view.datasets else ():
            at = {b: [g for d in view.datasets if (g := d.find(name, b))] for b in self.budgets}
            exact = any(view.is_exact(group) for found in at.values() for group in found)
            if not exact and all(len(found) == len(view.datasets) for found in at.values()):
                self.groups[name] = at
        every = {n: [g for f in at.values() for g in f] for n, at in self.groups.items()}
        means = {n: sum(g.mean(self.k).mean for g in found) for n, found in every.items()}
        self.names = sorted(self.groups, key=means.__getitem__, reverse=True)
        self.offline = {
            n for n, found in every.items() if any(g.cost("index_calls") for g in found)
        }
        """Those that read scores which were computed before the first query."""
        self.recall = {
            (name, budget, k): bootstrap(*(group.per_query(k)[1] for group in found))
            for name, at in self.groups.items()
            for budget, found in at.items()
            for k in self.ks
        }
        """By name, budget and k, the mean over the matrices."""
        self.matrices = f"{len(view.datasets)} matrices"

    def picture(self) -> Block:
        """Of each family of methods the best form with offline calls, and the best without."""
        forms = {(family(name), name in self.offline): name for name in reversed(self.names)}
        names = [name for name in self.names if name in forms.values()]
        panels = {
            f"top {k}": [
                Curve.through(name, self.budgets, [self.recall[name, b, k] for b in self.budgets])
                for name in names
            ]
            for k in self.ks
        }
        return draw(
            curves,
            panels,
            title=f"Mean over {self.matrices}",
            x_label="cross-encoder calls per query",
            alt="Recall against calls per query, from the best to the worst: "
            f"{listed(self.view.labels[name] for name in names)}.",
            caption="Of each family of methods the best form that pays for scores before the first "
            "query, and the best that does not. Bands: 95% intervals.",
        )

    def tables(self) -> Iterator[Table]:
        """Recall of every method by calls, a table for each k."""
        for k in sorted(self.ks, key=lambda k: k != self.k):
            rows: list[list[Cell]] = [
                [
                    f"`{self.view.labels[name]}`",
                    "yes" if name in self.offline else "no",
                    *(percent(self.recall[name, budget, k]) for budget in self.budgets),
                ]
                for name in self.names
            ]
            yield Table(
                head=["method", "offline calls", *(f"{b} calls" for b in self.budgets)],
                rows=rows,
                caption=f"Recall (%) at k = {k}, mean over {self.matrices} [95%]; settings chosen "
                "on dev queries for every method alike. Offline calls: it reads scores of anchor "
                "queries, be it for the scale of scores alone.",
                folded=k < self.k,
            )


def _pairs(run: Experiment, upper: str, lower: str, budget: int) -> list[tuple[Group, Group]]:
    """Both methods on each matrix that has them."""
    return [
        (a, b)
        for data in by_data(run, ASKED)
        if (a := _group(run, upper, data, budget)) and (b := _group(run, lower, data, budget))
    ]
