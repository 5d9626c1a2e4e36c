"""Kriging's table of offline calls in docs/results.md, from results/kriging_offline.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from kriging_offline import BUDGETS, KS

WHAT = {
    "nothing": "nothing",
    "top": "{} a query, the first stage's best",
    "log": "{} a query, left behind by searches",
    "random": "{} a query, random items",
    "dense": "{} queries with all items",
}


def section(found: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    lines = [
        "## Kriging by offline calls",
        "",
        "Made by `benchmarks/kriging_offline.py` on all test queries: recall in percent, k = 1 / 10 / "
        "100, by calls of the search, for what exact scores of the anchor queries kriging learned "
        "from, and how many there were. All of them have a few scored items, or some have all.",
        "",
    ]
    for name, rows in found.items():
        lines += [
            f"### Offline calls on {name}",
            "",
            "| learned from | offline calls | " + " | ".join(map(str, BUDGETS)) + " | seconds |",
            "|---|---|" + "---|" * (len(BUDGETS) + 1),
        ]
        for row in sorted(rows, key=_place):
            kind, _, count = row["name"].partition(" ")
            cells = [_recalls(row["recall"][str(budget)]) for budget in BUDGETS]
            lines.append(
                f"| {WHAT[kind].format(count)} | {row['offline']:,} | "
                + " | ".join(cells)
                + f" | {row['seconds']:.1f} |"
            )
        lines.append("")
    return lines


def _place(row: Mapping[str, Any]) -> tuple[int, int]:
    return list(WHAT).index(row["name"].split()[0]), row["offline"]


def _recalls(recall: Mapping[str, Sequence[float]]) -> str:
    return " / ".join(f"{100 * np.mean(recall[str(k)]):.1f}" for k in KS)
