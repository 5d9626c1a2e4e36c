"""The files of a finished sweep: for people, for other programs, and for `read_table`.

Only `seconds.csv` differs between two runs of the same sweep.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossknn import __version__
from crossknn.errors import InputError
from crossknn.files import write_file
from crossknn.types import FloatArray
from crossknn_lab.table import FORMAT, SWEEP, Entry, Group, Table, compared, is_called


def write_table(table: Table, folder: Path) -> None:
    """Replace the files of the folder; `sweep.json`, which makes the others known, comes last."""
    rows = tidy(table)
    write_file(folder / "table.csv", _csv(rows))
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    write_file(folder / "table.jsonl", lines.encode())
    if table.dev:
        write_file(folder / "dev.csv", _csv(tidy(table, dev=True)))
    else:
        (folder / "dev.csv").unlink(missing_ok=True)
    write_file(folder / "means.csv", _csv(mean_rows(table)))
    write_file(folder / "seconds.csv", _csv(second_rows(table)))
    made = {
        "format": FORMAT,
        "crossknn": __version__,
        "k": table.k,
        "grid": table.grid,
        "baseline": table.baseline,
        "notes": table.notes,
        "entries": [entry.labels() for entry in table.entries],
        "dev": [entry.labels() for entry in table.dev],
    }
    write_file(folder / SWEEP, (json.dumps(made, ensure_ascii=False, indent=1) + "\n").encode())


def tidy(table: Table, *, dev: bool = False) -> list[dict[str, Any]]:
    """One row for each entry (or each `dev` entry) and k, JSON-ready; None where there is no value.

    `recall`, `ci_low`, `ci_high` (0-1), `calls` per query, `index_calls` paid once, and of each
    measure of the task its mean, interval and number of queries with a value (`<name>_n`).
    """
    measures = [] if dev else _measures(table)
    rows = []
    for entry in table.dev if dev else table.entries:
        found = {row.k: row for row in entry.found.rows} if entry.found else {}
        for k in table.k:
            row: dict[str, Any] = found[k].as_dict() if k in found else {}
            low, high = row.get("ci", (None, None))
            rows.append(
                {
                    **_labels(entry, table.grid),
                    "seed": entry.seed,
                    "k": k,
                    "n_queries": row.get("n_queries", 0),
                    "recall": row.get("recall"),
                    "ci_low": low,
                    "ci_high": high,
                    "calls": row.get("calls"),
                    "index_calls": row.get("index_calls"),
                    **_task(row, measures),
                    "error": entry.error,
                }
            )
    return rows


def mean_rows(table: Table, baseline: str | None = None) -> list[dict[str, Any]]:
    """One row for each group and k: means over the seeds, by query, with intervals over queries.

    `seeds` were swept, `failed` of them have no answer. With a `baseline` (by default the sweep's),
    `difference` to it on the same matrix, anchors, budget and seeds, its interval and `p_value`;
    None where the baseline has no answer, and for itself. A baseline that makes no calls has one
    answer for all budgets.
    """
    name = baseline or table.baseline
    groups = table.groups()
    if name is not None and not any(is_called(group, name) for group in groups):
        raise InputError(f"the sweep has no baseline {name!r}")
    where = {_place(group): group for group in groups if name and is_called(group, name)}
    measures = _measures(table)
    rows = []
    for group in groups:
        data, anchors, budget = _place(group)
        other = where.get((data, anchors, budget)) or where.get((data, anchors, 0))
        task = {of: group.per_query(of)[1] for of in group.measures}
        for k in table.k:
            recall = group.mean(k)
            rows.append(
                {
                    **_labels(group.first, table.grid),
                    **({"spec": "; ".join(group.specs)} if group.first.chosen else {}),
                    **{of: _common(group, of) for of in table.grid},
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
                    **_means(task, measures),
                }
            )
    return rows


def second_rows(table: Table) -> Iterator[dict[str, Any]]:
    """What each search took: `seconds` per query on one thread, without scoring."""
    for entry in table.entries:
        if entry.found is not None:
            seconds = float(entry.found.outcome.seconds.mean())
            yield {
                **_labels(entry, table.grid),
                "seed": entry.seed,
                "n_queries": len(entry.found.queries),
                "seconds": round(seconds, 6),
            }


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


def _measures(table: Table) -> list[str]:
    """All measures of the task that some entry has."""
    names = (name for e in table.entries if e.found for name in e.found.outcome.task)
    return list(dict.fromkeys(names))


def _task(row: Mapping[str, Any], measures: Sequence[str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in measures:
        low, high = row.get("measures_ci", {}).get(name) or (None, None)
        made[name] = row.get("measures", {}).get(name)
        made |= {f"{name}_low": low, f"{name}_high": high}
        made[f"{name}_n"] = row.get("measures_n", {}).get(name, 0)
    return made


def _means(task: Mapping[str, FloatArray], measures: Sequence[str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name in measures:
        values = task.get(name, ())
        made[name] = round(float(np.mean(values)), 5) if len(values) else None
        made[f"{name}_n"] = len(values)
    return made


def _common(group: Group, name: str) -> Any:
    """A setting's value if all seeds have the same."""
    values = {entry.values.get(name) for entry in group.entries}
    return values.pop() if len(values) == 1 else None


def _place(group: Group) -> tuple[str, int, int]:
    return group.first.data, group.first.anchors, group.first.budget


def _difference(group: Group, other: Group | None, k: int) -> dict[str, Any]:
    names = ("difference", "low", "high", "p_value")
    if (
        other is None
        or other is group
        or not {e.seed for e in group.known} & {e.seed for e in other.known}
    ):
        return dict.fromkeys(names)
    found = compared(group, other, k)
    return {name: _rounded(getattr(found, name)) for name in names}


def _rounded(value: float, digits: int = 5) -> float | None:
    return None if math.isnan(value) else round(value, digits)


def _csv(rows: Any) -> bytes:
    """Rows of the same columns; None is an empty cell, and true and false as in JSON."""
    rows = list(rows)
    file = io.StringIO()
    writer = csv.DictWriter(file, rows[0] if rows else [], lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: str(v).lower() if isinstance(v, bool) else v for k, v in row.items()})
    return file.getvalue().encode()
