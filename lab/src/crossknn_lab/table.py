"""What a sweep found, as a tidy table, as means over seeds, and as paired differences.

    table = read_table("DIR")
    group = table.group("axn(retriever=dense)", data="scifact", budget=100)
    group.mean(10)                                  # recall at k = 10 and its interval
    compared(group, table.group("rerank(retriever=dense)", data="scifact", budget=100), 10)

All of it is made of single queries; what has no value is counted, never left out of a mean in
silence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import InputError, nearest
from crossknn.evaluation.measures import Comparison, Estimate, bootstrap, compare_sets
from crossknn.types import FloatArray, IntArray
from crossknn_lab.sweep_cells import Found
from crossknn_lab.sweep_file import Value

SWEEP, CELLS = "sweep.json", "cells"

FORMAT = 1
"""Of the files of a sweep: those of another one are not read."""

Of: TypeAlias = int | str
"""What is asked of a search: its recall, by k, or a measure of the task, by name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Entry:
    """One method on one matrix, at one budget, by one seed.

    `method` is as the sweep's file has it and `spec` as it was run, with `values` filled in; of
    several settings this one was `chosen` on dev queries. `error` says why nothing was found.
    """

    data: str
    items: int
    method: str
    spec: str
    values: Mapping[str, Value]
    chosen: bool
    anchors: int
    budget: int
    seed: int
    cell: str
    error: str = ""
    found: Found | None

    def labels(self) -> dict[str, Any]:
        """What was done, JSON-ready: all fields but the outcome."""
        return {
            "data": self.data,
            "items": self.items,
            "method": self.method,
            "spec": self.spec,
            "values": dict(self.values),
            "chosen": self.chosen,
            "anchors": self.anchors,
            "budget": self.budget,
            "seed": self.seed,
            "cell": self.cell,
            "error": self.error,
        }


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The same by every seed; `spec` and `values` are those of each seed where they were chosen."""

    entries: tuple[Entry, ...]

    @property
    def first(self) -> Entry:
        """The entry of the first seed: data, method, anchors and budget are those of all."""
        return self.entries[0]

    @property
    def specs(self) -> list[str]:
        """What was run: one spec, or several if seeds have chosen different settings."""
        return list(dict.fromkeys(entry.spec for entry in self.entries))

    @property
    def known(self) -> list[Entry]:
        """Those in which something was found."""
        return [entry for entry in self.entries if entry.found is not None]

    @property
    def measures(self) -> list[str]:
        """The task's measures that there are of these queries."""
        return list(dict.fromkeys(m for e in self.known if e.found for m in e.found.outcome.task))

    def per_query(self, of: Of) -> tuple[IntArray, FloatArray]:
        """Means over the seeds of each query that has a value: its place in the file, (u,), (u,).

        A query that only some seeds have drawn, or that has no value by some, is the mean of the
        others. Raises InputError for a k or a measure that was not swept.
        """
        queries, values = _values(self.known, of)
        known = ~np.isnan(values)
        return _averaged(queries[known], values[known])

    def mean(self, of: Of) -> Estimate:
        """Mean over queries (of their means over seeds) and its 95% interval; NaN without any."""
        _, values = self.per_query(of)
        return bootstrap(values) if len(values) else Estimate(np.nan, np.nan, np.nan)

    def cost(self, of: str) -> float:
        """Mean per query of `calls` or `seconds`, or of `index_calls`, which were paid once."""
        found = [np.mean(getattr(e.found.outcome, of)) for e in self.known if e.found]
        return float(np.mean(found)) if found else np.nan


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """A sweep's `entries` in the order of its file; `dev` are those that settings were chosen by.

    `notes` say what of the sweep could not be as its file says, `grid` names the settings.
    """

    entries: tuple[Entry, ...]
    dev: tuple[Entry, ...]
    k: tuple[int, ...]
    grid: tuple[str, ...]
    notes: tuple[str, ...]
    baseline: str | None = None

    def groups(self) -> list[Group]:
        """Entries that differ in the seed only, and in what was chosen by it."""
        found: dict[tuple[Any, ...], list[Entry]] = {}
        for e in self.entries:
            name = e.method if e.chosen else (e.method, e.spec)
            found.setdefault((e.data, name, e.anchors, e.budget), []).append(e)
        return [Group(entries=tuple(entries)) for entries in found.values()]

    def group(self, name: str, *, data: str, budget: int, anchors: int | None = None) -> Group:
        """The group of a method, by its spec or as the file has it.

        Raises InputError if there is none, or more than one: then say which spec or `anchors`.
        """
        here = [g for g in self.groups() if g.first.data == data and g.first.budget == budget]
        if not here:
            raise InputError(f"nothing was swept on {data!r} at the budget {budget}")
        fit = [
            g
            for g in here
            if is_called(g, name) and (anchors is None or g.first.anchors == anchors)
        ]
        if not fit:
            names = {g.first.method for g in here} | {s for g in here for s in g.specs}
            raise InputError(f"the sweep has no {name!r} there: {nearest(name, names)}")
        if len(fit) > 1:
            others = [f"{', '.join(g.specs)} with {g.first.anchors} anchors" for g in fit]
            raise InputError(f"{name!r} is any of {'; '.join(others)}: say which")
        return fit[0]


def is_called(group: Group, name: str) -> bool:
    """Whether `name` is the method's, as the file has it, or the one spec that was run."""
    return name == group.first.method or [name] == group.specs


def compared(group: Group, other: Group, of: Of) -> Comparison:
    """How much better a group is than another of the same data, query by query.

    Each query's value is the mean over the seeds that have one on both sides. Raises InputError
    if there is no such query.
    """
    return compare_sets([differences(group, other, of)])


def differences(group: Group, other: Group, of: Of) -> FloatArray:
    """What `compared` is the mean of, for each query that has a value on both sides: (u,)."""
    if group.first.data != other.first.data:
        raise InputError(
            f"{group.first.data!r} and {other.first.data!r} are different queries: only methods on "
            "the same matrix can be compared query by query"
        )
    others = {entry.seed: entry for entry in other.known}
    pairs = [(entry, others[entry.seed]) for entry in group.known if entry.seed in others]
    if not pairs:
        raise InputError(
            "no seed has found something on both sides, so there is nothing to compare"
        )
    queries, a = _values([entry for entry, _ in pairs], of)
    _, b = _values([entry for _, entry in pairs], of)
    both = ~(np.isnan(a) | np.isnan(b))
    if not both.any():
        raise InputError("no query has a value on both sides, so there is nothing to compare")
    _, a = _averaged(queries[both], a[both])
    _, b = _averaged(queries[both], b[both])
    return a - b


def _values(entries: Sequence[Entry], of: Of) -> tuple[IntArray, FloatArray]:
    """Queries and their values by every seed, one after the other: (v,), (v,)."""
    queries: list[IntArray] = [np.zeros(0, np.int64)]
    values: list[FloatArray] = [np.zeros(0)]
    for entry in entries:
        if entry.found is not None:
            queries.append(entry.found.queries)
            values.append(_value(entry.found, of))
    return np.concatenate(queries), np.concatenate(values)


def _value(found: Found, of: Of) -> FloatArray:
    known: Mapping[Any, FloatArray] = {**found.outcome.recall, **found.outcome.task}
    if of not in known:
        have = ", ".join(map(str, known))
        raise InputError(f"{of!r} was not swept; there are the k and measures {have}")
    return known[of]


def _averaged(queries: IntArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
    """Each query once, with the mean of its values: (v,), (v,) -> (u,), (u,)."""
    rows, place, count = np.unique(queries, return_inverse=True, return_counts=True)
    return rows, np.bincount(place, values, len(rows)) / count


def read_table(folder: str | Path) -> Table:
    """The table of the last sweep that ended in a folder.

    Raises `InputError` if there is none, or a part of it is missing or damaged.
    """
    folder = Path(folder)
    try:
        made = json.loads((folder / SWEEP).read_text(encoding="utf-8"))
        if made["format"] != FORMAT:
            raise InputError(
                f"{folder} was written by crossknn {made['crossknn']} in the format "
                f"{made['format']}, and this one reads {FORMAT}: run the sweep again"
            )
        entries, dev = (
            [_entry(folder, labels) for labels in made[of]] for of in ("entries", "dev")
        )
        return Table(
            entries=tuple(entries),
            dev=tuple(dev),
            k=tuple(made["k"]),
            grid=tuple(made["grid"]),
            notes=tuple(made["notes"]),
            baseline=made["baseline"],
        )
    except FileNotFoundError as error:
        lacks = Path(error.filename).relative_to(folder)
        raise InputError(
            f"{folder} holds no finished sweep, it lacks {lacks}: run  crossknn-lab sweep FILE --out "
            f"{folder}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        foreign = f"{SWEEP} or a cell is not as crossknn writes it"
        why = error if isinstance(error, ValueError) else foreign
        raise InputError(f"{folder} holds a damaged sweep ({why}): run it again") from None


def _entry(folder: Path, labels: dict[str, Any]) -> Entry:
    found = None
    if not labels["error"]:
        path = folder / CELLS / f"{labels['cell']}.json"
        found = Found.from_json(path.read_text(encoding="utf-8"))
    return Entry(found=found, **labels)
