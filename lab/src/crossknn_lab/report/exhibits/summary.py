"""The answers in short: means over all matrices, of which each counts once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from crossknn.errors import InputError
from crossknn.evaluation.measures import Estimate, bootstrap_sets, compare_sets
from crossknn.plots.style import family
from crossknn_lab import plots
from crossknn_lab.report.exhibits import asked
from crossknn_lab.report.exhibits.base import Exhibit
from crossknn_lab.report.exhibits.found import by_data
from crossknn_lab.report.exhibits.ours import ASKED, PAPER, pair_of, rivals, shown_ks
from crossknn_lab.report.numbers import percent, points
from crossknn_lab.report.page import Block, Cell, Figure, TableOf, draw
from crossknn_lab.report.study import Study
from crossknn_lab.report.sweep_view import View
from crossknn_lab.table import Group, differences

Pairs = Sequence[tuple[Group, Group]]
"""A method and another at the same budget, on each matrix that has both."""


def answers(study: Study) -> list[Block]:
    """All methods at equal calls, and the questions, each as a mean over the matrices."""
    field = Field(study, rivals(study))
    if not field.names:
        raise InputError("no method has found something on every matrix")
    return [field.picture(), *field.tables(), _questions(study, field)]


class Field:
    """The methods that were swept on all matrices, the best by mean recall first."""

    def __init__(self, study: Study, view: View) -> None:
        self.view, self.ks, self.budgets = view, shown_ks(study), study.budgets
        self.k = view.k if view.k in self.ks else self.ks[0]
        places = view.places
        self.groups: dict[str, dict[int, list[Group]]] = {}
        for name in places[0].names if places else ():
            at = {b: [g for p in places if (g := p.find(name, b))] for b in self.budgets}
            exact = any(view.is_exact(group) for found in at.values() for group in found)
            if not exact and all(len(found) == len(places) for found in at.values()):
                self.groups[name] = at
        self.names = sorted(self.groups, key=self._mean, reverse=True)
        self.paying = {
            name
            for name, at in self.groups.items()
            if any(group.cost("index_calls") > 0 for found in at.values() for group in found)
        }
        """Those that read scores which were paid for before the first query."""
        self.recall: dict[tuple[str, int, int], Estimate] = {
            (name, budget, k): bootstrap_sets([group.per_query(k)[1] for group in found])
            for name, at in self.groups.items()
            for budget, found in at.items()
            for k in self.ks
        }
        """By name, budget and k, the mean over the matrices."""

    def picture(self) -> Figure:
        """Of each family of methods the best form with offline calls, and the best without."""
        forms = {(family(name), name in self.paying): name for name in reversed(self.names)}
        names = [name for name in self.names if name in forms.values()]
        panels = {
            f"top {k}": [
                plots.Curve.through(
                    name, self.budgets, [self.recall[name, budget, k] for budget in self.budgets]
                )
                for name in names
            ]
            for k in self.ks
        }
        said = ", ".join(self.view.labels[name] for name in names)
        return draw(
            plots.curves,
            panels,
            title=f"Mean over {self._matrices}",
            x_label="cross-encoder calls per query",
            labels=self.view.labels,
            styles=self.view.styles,
            alt=f"Recall against calls per query, from the best to the worst: {said}.",
            caption="Of each family of methods the best form that pays for scores before the first "
            "query, and the best that does not. Bands: 95% intervals.",
        )

    def tables(self) -> Iterator[TableOf]:
        """Recall of every method by calls, a table for each k."""
        for k in sorted(self.ks, key=lambda k: k != self.k):
            rows: list[list[Cell]] = [
                [
                    f"`{self.view.labels[name]}`",
                    "yes" if name in self.paying else "no",
                    *(percent(self.recall[name, budget, k]) for budget in self.budgets),
                ]
                for name in self.names
            ]
            yield TableOf(
                head=["method", "offline calls", *(f"{b} calls" for b in self.budgets)],
                rows=rows,
                caption=f"Recall (%) at k = {k}, mean over {self._matrices} [95%]; settings chosen "
                "on dev queries for every method alike. Offline calls: it reads scores of anchor "
                "queries, be it for the scale of scores alone.",
                folded=k < self.k,
            )

    def leaders(self) -> Iterator[tuple[str, str, bool]]:
        """The best method of all, and the best of those without offline calls, if another."""
        best = self.names[0]
        yield f"`{self.view.labels[best]}` over the best of the others", best, True
        free = next((name for name in self.names if name not in self.paying), best)
        if free != best:
            label = self.view.labels[free]
            yield f"`{label}` over the best of the others, without offline calls", free, False

    def against_others(self, name: str, budget: int, k: int, *, paying: bool) -> Pairs:
        """A method and, on each matrix, the best of another family by its recall there."""
        others = [
            other
            for other in self.names
            if family(other) != family(name) and (paying or other not in self.paying)
        ]
        pairs = []
        for place, group in enumerate(self.groups[name][budget]):
            tried = [self.groups[other][budget][place] for other in others]
            if tried:
                pairs.append((group, max(tried, key=lambda g: self.view.mean(g, k).mean)))
        return pairs

    @property
    def _matrices(self) -> str:
        count = len(self.view.places)
        return "one matrix" if count == 1 else f"{count} matrices"

    def _mean(self, name: str) -> float:
        means = [
            self.view.mean(group, self.k).mean for at in self.groups[name].values() for group in at
        ]
        return sum(means) / len(means)


def _questions(study: Study, field: Field) -> TableOf:
    """Differences of pairs of methods, a row for each k and a column for each budget."""
    rows: list[list[Cell]] = []
    for title, upper, lower in asked.in_short(study.preset):
        both = [_pairs(study, upper, lower, budget) for budget in field.budgets]
        if any(both):
            rows += [[title, k, *(_difference(found, k) for found in both)] for k in field.ks]
    for title, name, paying in field.leaders():
        for k in field.ks:
            pairs = [field.against_others(name, b, k, paying=paying) for b in field.budgets]
            if any(pairs):
                rows.append([title, k, *(_difference(found, k) for found in pairs)])
    return TableOf(
        head=["", "k", *(f"{budget} calls" for budget in field.budgets)],
        rows=rows,
        caption="Differences in points, mean over the matrices [95%]; bold: the interval is on "
        "one side of zero, and p is at most 0.05. The best of the others is that of each matrix, "
        "budget and k on the test queries themselves, which favours it.",
    )


def _pairs(study: Study, upper: str, lower: str, budget: int) -> Pairs:
    """Both methods on each matrix that has them."""
    pairs = []
    for data in by_data(study, ASKED):
        a, b = pair_of(study, upper, lower, data=data, budget=budget)
        if a is not None and b is not None:
            pairs.append((a, b))
    return pairs


def _difference(pairs: Pairs, k: int) -> Cell:
    """The mean over the matrices, with its interval; nothing if no matrix has both."""
    return points(compare_sets([differences(a, b, k) for a, b in pairs])) if pairs else None


EXHIBITS = (
    Exhibit(
        paper=PAPER,
        label="answers",
        title="all matrices together",
        here="Every matrix counts once, however many queries it has; intervals draw queries within "
        "their matrix. Below, the same for each matrix.",
        sweeps=("rivals", ASKED),
        build=answers,
    ),
)
