"""A sweep's table as its page sees it: what can be compared with what, and how it is called."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from crossknn.evaluation.measures import Comparison, Estimate
from crossknn.plots.style import family
from crossknn_lab import plots
from crossknn_lab.report.numbers import middle, name_of, versus
from crossknn_lab.table import Group, Of, Table, is_called


@dataclass(frozen=True, kw_only=True, eq=False)
class Place:
    """The groups that can be compared with each other: of one matrix and number of anchors."""

    data: str
    title: str
    items: int
    anchors: int
    groups: tuple[Group, ...]

    @property
    def budgets(self) -> list[int]:
        """Calls per query, without the 0 of methods that make none."""
        return sorted({group.first.budget for group in self.groups} - {0})

    @property
    def names(self) -> list[str]:
        """The methods, in the order of the sweep."""
        return list(dict.fromkeys(map(name_of, self.groups)))

    def at(self, budget: int) -> list[Group]:
        """What was asked for so many calls, or makes none."""
        return [group for group in self.groups if group.first.budget in (budget, 0)]

    def find(self, name: str, budget: int) -> Group | None:
        """A method at a budget."""
        return next((g for g in self.at(budget) if name_of(g) == name), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """A table with what all sections need: places, labels and styles that are the same in all.

    Means and comparisons are computed once.
    """

    table: Table
    places: tuple[Place, ...]
    labels: Mapping[str, str]
    styles: plots.Styles
    _means: dict[tuple[int, Of], Estimate] = field(default_factory=dict)
    _compared: dict[tuple[int, Of], Comparison | None] = field(default_factory=dict)

    @classmethod
    @lru_cache(maxsize=1)
    def of(cls, table: Table) -> View:
        """Groups in which nothing was found are left out here; the page says which.

        Several sections are made of one table: they share its view, and what it has computed.
        """
        apart: dict[tuple[str, int], list[Group]] = {}
        for group in table.groups():
            if group.known:
                apart.setdefault((group.first.data, group.first.anchors), []).append(group)
        several = {data for data, _ in apart if sum(d == data for d, _ in apart) > 1}
        places = tuple(
            Place(
                data=data,
                title=f"{data}, {anchors} anchor queries" if data in several else data,
                items=groups[0].first.items,
                anchors=anchors,
                groups=tuple(groups),
            )
            for (data, anchors), groups in apart.items()
        )
        names = [name_of(group) for place in places for group in place.groups]
        return cls(
            table=table,
            places=places,
            labels=plots.labels_of(names),
            styles=plots.styles_of(names),
        )

    @property
    def k(self) -> int:
        """Stands for all where there is room for one."""
        return middle(self.table.k)

    def label(self, group: Group) -> str:
        """A short name, the same on the whole page."""
        return self.labels[name_of(group)]

    def mean(self, group: Group, of: Of) -> Estimate:
        """The group's mean, computed once."""
        key = id(group), of
        if key not in self._means:
            self._means[key] = group.mean(of)
        return self._means[key]

    def highest(self, groups: Iterable[Group], of: Of) -> list[Group]:
        """Those with the highest mean, several if they are equal, the fewest calls first."""
        known = [group for group in groups if not math.isnan(self.mean(group, of).mean)]
        most = max((self.mean(group, of).mean for group in known), default=math.nan)
        best = [group for group in known if self.mean(group, of).mean == most]
        return sorted(best, key=lambda group: group.first.budget)

    @property
    def base(self) -> str:
        """What the baseline is called, as code."""
        name = self.table.baseline or ""
        return f"`{self.labels.get(name, name)}`"

    def baseline(self, place: Place, budget: int) -> Group | None:
        """The sweep's baseline there, if it has one."""
        name = self.table.baseline
        found = (g for g in place.at(budget) if name and is_called(g, name))
        return next(found, None)

    def gain(self, place: Place, group: Group, of: Of) -> Comparison | None:
        """A group against the baseline at the same budget, computed once."""
        key = id(group), of
        if key not in self._compared:
            base = self.baseline(place, group.first.budget)
            self._compared[key] = None if base is group else versus(group, base, of)
        return self._compared[key]

    @staticmethod
    def is_exact(group: Group) -> bool:
        """Whether the group is exact search, with which nothing can be compared."""
        return family(name_of(group)) == "exact" or group.first.budget >= group.first.items
