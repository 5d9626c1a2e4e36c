"""Kriging's tables in docs/results.md, from results/kriging.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kriging import BUDGETS, KS, PARTS, SETTINGS, TARGET, TARGETS
from markdown_table import mean_percents, table

from crossknn.evaluation.measures import paired

WHOLE = next(iter(PARTS))


def section(found: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    lines = [
        "## Kriging in parts",
        "",
        "Made by `lab/benchmarks/kriging.py` on all test queries of the stored matrices, anchors as they "
        "are stored. What kriging is: [the page](kriging.md); beside the rivals: above.",
        "",
    ]
    for name, rows in found.items():
        by = {(row["name"], row["budget"]): row for row in rows}
        lines += [
            f"### Kriging on {name}",
            "",
            "Recall in percent, k = 1 / 10 / 100, by calls; and, at 100 calls and k = 10, the "
            "difference to all of it in points with its 95% interval.",
            "",
        ]
        lines += _table("part", list(PARTS), by)
        settings = [spec for spec in SETTINGS if (spec, 100) in by]
        if settings:
            lines += [
                "Settings, one moved at a time (milliseconds a query at 500 calls, one thread):",
                "",
                *_table("settings", settings, by, time=True),
            ]
        lines += _promises(by)
    return lines


def _table(
    head: str, names: Sequence[str], by: Mapping[tuple[str, int], Any], *, time: bool = False
) -> list[str]:
    rows = []
    for name in names:
        of = [by[name, budget]["recall"] for budget in BUDGETS]
        cells = [mean_percents(recall[str(k)] for k in KS) for recall in of]
        text = f"`{name}`" if "(" in name else name
        if time:
            end = f"{1000 * by[name, 500]['seconds']:.0f}"
        else:
            end = _difference(by[name, 100], by[WHOLE, 100])
        rows.append([text, *cells, end])
    return table([head, *BUDGETS, "ms" if time else "at 100, k = 10"], rows)


def _difference(row: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    if row is whole:
        return ""
    found = paired(np.array(row["recall"]["10"]), np.array(whole["recall"]["10"]))
    return f"{100 * found.difference:+.1f} [{100 * found.low:+.1f}, {100 * found.high:+.1f}]"


def _promises(by: Mapping[tuple[str, int], Any]) -> list[str]:
    """Promised and achieved recall, calls, and how many a fixed budget needs for as much."""
    rows = []
    for k in (10, 50):
        fixed = sorted(
            (budget, float(np.mean(row["recall"][str(k)])))
            for (name, budget), row in by.items()
            if name.startswith("fixed")
        )
        budgets, recalls = (np.array(values) for values in zip(*fixed, strict=True))
        for target in TARGETS:
            row = by[TARGET.format(target, k), 500]
            achieved = float(np.mean(row["recall"][str(k)]))
            climbing = np.maximum.accumulate(recalls)
            needed = float(np.interp(achieved, climbing, budgets))
            text = f"{needed:.0f}" if recalls[0] <= achieved <= climbing[-1] else "-"
            rows.append([k, target, f"{achieved:.3f}", f"{np.mean(row['calls']):.0f}", text])
    return [
        "`target_recall`, at most 500 calls in 20 rounds; the last column is the fixed budget that "
        "finds as much:",
        "",
        *table(["k", "promised", "achieved", "calls", "fixed budget"], rows),
    ]
