"""What a sweep found, as a tidy table, as means over seeds, and as paired differences.

    table = read_table("DIR")
    group = table.group("axn(retriever=dense)", data="scifact", budget=100)
    group.mean(10)                                  # recall at k = 10 and its interval
    compared(group, table.group("rerank(retriever=dense)", data="scifact", budget=100), 10)

All of it is made of single queries; what has no value is counted, never left out of a mean in
silence.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from crossknn import __version__
from crossknn.errors import InputError
from crossknn.evaluation.measures import Comparison, Estimate, bootstrap, paired
from crossknn.files import parse_json, read_file, write_file
from crossknn.types import FloatArray, IntArray
from crossknn_lab.cells import CellResult
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
    several settings this one was `chosen` on dev queries. `error` says why there is no result.
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
    result: CellResult | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Group:
    """The same by every seed; `spec` and `values` are those of each seed where they were chosen."""

    entries: tuple[Entry, ...]

    @property
    def first(self) -> Entry:
        """The entry of the first seed: data, method, anchors and budget are those of all."""
        return self.entries[0]

    @property
    def name(self) -> str:
        """The method as the sweep has it where its setting was chosen, or else as it was run."""
        return self.first.method if self.first.chosen else self.first.spec

    @property
    def specs(self) -> list[str]:
        """What was run: one spec, or several if seeds have chosen different settings."""
        return list(dict.fromkeys(entry.spec for entry in self.entries))

    @property
    def known(self) -> list[tuple[Entry, CellResult]]:
        """The entries that have a result."""
        return [(entry, entry.result) for entry in self.entries if entry.result is not None]

    @property
    def measures(self) -> list[str]:
        """The task's measures that there are of these queries."""
        return list(dict.fromkeys(m for _, result in self.known for m in result.outcome.task))

    def per_query(self, of: Of) -> tuple[IntArray, FloatArray]:
        """Means over the seeds of each query that has a value: its place in the file, (u,), (u,).

        A query that only some seeds have drawn, or that has no value by some, is the mean of the
        others. Raises InputError for a k or a measure that was not swept.
        """
        queries, values = _values([result for _, result in self.known], of)
        return _averaged(queries[~np.isnan(values)], values[~np.isnan(values)])

    def mean(self, of: Of) -> Estimate:
        """Mean over queries (of their means over seeds) and its 95% interval; NaN without any."""
        if of not in self._means:
            self._means[of] = bootstrap(self.per_query(of)[1])
        return self._means[of]

    @cached_property
    def _means(self) -> dict[Of, Estimate]:
        return {}

    def cost(self, of: str) -> float:
        """Mean per query of `calls` or `seconds`, or of `index_calls`, which were spent once."""
        found = [np.mean(getattr(result.outcome, of)) for _, result in self.known]
        return float(np.mean(found)) if found else np.nan

    def is_called(self, name: str) -> bool:
        """Whether `name` is the method's, as the file has it, or the one spec that was run."""
        return name == self.first.method or [name] == self.specs


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

    @cached_property
    def groups(self) -> list[Group]:
        """Entries that differ in the seed only, and in what was chosen by it."""
        found: dict[tuple[Any, ...], list[Entry]] = {}
        for e in self.entries:
            name = e.method if e.chosen else (e.method, e.spec)
            found.setdefault((e.data, name, e.anchors, e.budget), []).append(e)
        return [Group(entries=tuple(entries)) for entries in found.values()]

    @property
    def measures(self) -> list[str]:
        """All measures of the task that some entry has."""
        return list(dict.fromkeys(m for group in self.groups for m in group.measures))

    def group(self, name: str, *, data: str, budget: int, anchors: int | None = None) -> Group:
        """The group of a method, by its spec or as the file has it.

        Raises InputError if there is none, or more than one: then say which spec or `anchors`.
        """
        here = [g for g in self.groups if (g.first.data, g.first.budget) == (data, budget)]
        fit = [g for g in here if g.is_called(name) and anchors in (None, g.first.anchors)]
        if len(fit) != 1:
            known = "; ".join(f"{', '.join(g.specs)} with {g.first.anchors} anchors" for g in here)
            raise InputError(
                f"{len(fit)} methods are called {name!r} on {data!r} at the budget {budget}; there "
                f"are: {known or 'none'}"
            )
        return fit[0]


def compared(group: Group, other: Group, of: Of) -> Comparison:
    """How much better a group is than another of the same data, query by query.

    Each query's value is the mean over the seeds that have one on both sides. Raises InputError
    if there is no such query.
    """
    return paired(differences(group, other, of))


def differences(group: Group, other: Group, of: Of) -> FloatArray:
    """What `compared` is the mean of, for each query that has a value on both sides: (u,)."""
    if group.first.data != other.first.data:
        raise InputError(
            f"{group.first.data!r} and {other.first.data!r} are different queries: only methods on "
            "the same matrix can be compared query by query"
        )
    others = {entry.seed: result for entry, result in other.known}
    pairs = [(result, others[e.seed]) for e, result in group.known if e.seed in others]
    queries, a = _values([mine for mine, _ in pairs], of)
    _, b = _values([theirs for _, theirs in pairs], of)
    both = ~(np.isnan(a) | np.isnan(b))
    if not both.any():
        raise InputError("no query has a value on both sides by the same seed: nothing to compare")
    return _averaged(queries[both], a[both])[1] - _averaged(queries[both], b[both])[1]


def _values(results: Sequence[CellResult], of: Of) -> tuple[IntArray, FloatArray]:
    """Queries and their values by every seed, one after the other: (v,), (v,)."""
    queries: list[IntArray] = [np.zeros(0, np.int64)]
    values: list[FloatArray] = [np.zeros(0)]
    for result in results:
        known: Mapping[Any, FloatArray] = {**result.outcome.recall, **result.outcome.task}
        if of not in known:
            have = ", ".join(map(str, known))
            raise InputError(f"{of!r} was not swept; there are the k and measures {have}")
        queries.append(result.queries)
        values.append(known[of])
    return np.concatenate(queries), np.concatenate(values)


def _averaged(queries: IntArray, values: FloatArray) -> tuple[IntArray, FloatArray]:
    """Each query once, with the mean of its values: (v,), (v,) -> (u,), (u,)."""
    rows, place, count = np.unique(queries, return_inverse=True, return_counts=True)
    return rows, np.bincount(place, values, len(rows)) / count


# --------------------------------------------------------------------- the files of a sweep


def write_table(table: Table, folder: Path) -> None:
    """Replace the files of the folder; `sweep.json`, which makes the others known, comes last."""
    write_file(folder, "table.csv", _csv(tidy(table)))
    write_file(folder, "means.csv", _csv(mean_rows(table)))
    if table.dev:
        write_file(folder, "dev.csv", _csv(tidy(table, dev=True)))
    else:
        (folder / "dev.csv").unlink(missing_ok=True)
    made = {
        "format": FORMAT,
        "crossknn": __version__,
        "k": table.k,
        "grid": table.grid,
        "baseline": table.baseline,
        "notes": table.notes,
        "entries": [vars(entry) | {"result": None} for entry in table.entries],
        "dev": [vars(entry) | {"result": None} for entry in table.dev],
    }
    write_file(folder, SWEEP, (json.dumps(made, ensure_ascii=False, indent=1) + "\n").encode())


def read_table(folder: str | Path) -> Table:
    """The table of the last sweep that ended in a folder.

    Raises `InputError` if there is none, or a part of it is missing or damaged.
    """
    folder = Path(folder)
    try:
        made = parse_json(read_file(folder, SWEEP))
        if made["format"] != FORMAT:
            raise InputError(
                f"{folder} was written by crossknn {made['crossknn']} in the format "
                f"{made['format']}, and this one reads {FORMAT}: run the sweep again"
            )
        return Table(
            entries=tuple(_read_entry(folder, entry) for entry in made["entries"]),
            dev=tuple(_read_entry(folder, entry) for entry in made["dev"]),
            k=tuple(made["k"]),
            grid=tuple(made["grid"]),
            notes=tuple(made["notes"]),
            baseline=made["baseline"],
        )
    except FileNotFoundError as error:
        lacks = Path(error.filename).name
        raise InputError(
            f"{folder} holds no finished sweep, it lacks {lacks}: run  "
            f"crossknn-lab sweep FILE --out {folder}"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder} holds a damaged sweep ({error}): run it again") from None


def _read_entry(folder: Path, entry: dict[str, Any]) -> Entry:
    result = None
    if not entry["error"]:
        text = read_file(folder, f"{CELLS}/{entry['cell']}.json").decode()
        result = CellResult.from_json(text)
    return Entry(**entry | {"result": result})


def tidy(table: Table, *, dev: bool = False) -> list[dict[str, Any]]:
    """One row for each entry (or each `dev` entry) and k, JSON-ready; None where there is no value.

    `recall`, `ci_low`, `ci_high` (0-1), `calls` per query, `index_calls` spent once, and of each
    measure of the task its mean, interval and number of queries with a value (`<name>_n`).
    """
    rows = []
    for entry in table.dev if dev else table.entries:
        found = {row["k"]: row for row in entry.result.rows} if entry.result else {}
        for k in table.k:
            row: dict[str, Any] = found.get(k, {})
            low, high = row.get("ci", (None, None))
            made = {
                **_labels(entry, table.grid),
                "seed": entry.seed,
                "k": k,
                "n_queries": row.get("n_queries", 0),
                "recall": row.get("recall"),
                "ci_low": low,
                "ci_high": high,
                "calls": row.get("calls"),
                "index_calls": row.get("index_calls"),
            }
            for name in () if dev else table.measures:
                low, high = row.get("measures_ci", {}).get(name) or (None, None)
                made[name] = row.get("measures", {}).get(name)
                made |= {f"{name}_low": low, f"{name}_high": high}
                made[f"{name}_n"] = row.get("measures_n", {}).get(name, 0)
            rows.append(made | {"error": entry.error})
    return rows


def mean_rows(table: Table) -> list[dict[str, Any]]:
    """One row for each group and k: means over the seeds, by query, with intervals over queries.

    `seeds` were swept, `failed` of them have no answer. If the sweep has a baseline,
    `difference` to it on the same matrix, anchors, budget and seeds, its interval and `p_value`;
    None where the baseline has no answer, and for itself. A baseline that makes no calls has one
    answer for all budgets.
    """
    name = table.baseline
    based = {_place(group): group for group in table.groups if name and group.is_called(name)}
    if name is not None and not based:
        raise InputError(f"the sweep has no baseline {name!r}")
    rows = []
    for group in table.groups:
        data, anchors, budget = _place(group)
        other = based.get((data, anchors, budget)) or based.get((data, anchors, 0))
        task = {of: group.mean(of) for of in group.measures}
        for k in table.k:
            recall = group.mean(k)
            made = {
                **_labels(group.first, table.grid),
                **({"spec": "; ".join(group.specs)} if group.first.chosen else {}),
                "k": k,
                "seeds": len(group.entries),
                "failed": len(group.entries) - len(group.known),
                "n_queries": len(group.per_query(k)[0]),
                "recall": _rounded(recall.mean),
                "ci_low": _rounded(recall.low),
                "ci_high": _rounded(recall.high),
                "calls": _rounded(group.cost("calls"), 2),
                "index_calls": _rounded(group.cost("index_calls"), 2),
                **(_difference(group, other, k) if name else {}),
            }
            for of in table.measures:
                found = task.get(of, Estimate(math.nan, math.nan, math.nan))
                ends = {of: found.mean, f"{of}_low": found.low, f"{of}_high": found.high}
                made |= {name: _rounded(value) for name, value in ends.items()}
                made[f"{of}_n"] = found.n
            rows.append(made)
    return rows


def _labels(entry: Entry, grid: Sequence[str]) -> dict[str, Any]:
    return {
        "data": entry.data,
        "items": entry.items,
        "method": entry.method,
        "spec": entry.spec,
        "chosen": entry.chosen,
        **{name: entry.values.get(name) for name in grid},
        "anchors": entry.anchors,
        "budget": entry.budget,
    }


def _place(group: Group) -> tuple[str, int, int]:
    return group.first.data, group.first.anchors, group.first.budget


def _difference(group: Group, other: Group | None, k: int) -> dict[str, Any]:
    names = ("difference", "low", "high", "p_value")
    seeds = [{entry.seed for entry, _ in g.known} for g in (group, other or group)]
    if other is None or other is group or not seeds[0] & seeds[1]:
        return dict.fromkeys(names)
    found = compared(group, other, k)
    return {name: _rounded(getattr(found, name)) for name in names}


def _rounded(value: float, digits: int = 5) -> float | None:
    return None if math.isnan(value) else round(value, digits)


def _csv(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows of the same columns; None is an empty cell, and true and false as in JSON."""
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0] if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: str(v).lower() if isinstance(v, bool) else v for k, v in row.items()})
    return file.getvalue().encode()
