"""Kriging's table of offline calls in docs/results.md, from results/kriging_offline.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kriging_offline import BUDGETS, KS
from markdown_table import mean_percents, table

WHAT = {
    "nothing": "nothing",
    "top": "{} a query, the retriever's best",
    "log": "{} a query, left behind by searches",
    "random": "{} a query, random items",
    "dense": "{} queries with all items",
}


def section(found: Mapping[str, list[dict[str, Any]]]) -> list[str]:
    lines = [
        "## Kriging by offline calls",
        "",
        "Made by `lab/benchmarks/kriging_offline.py` on all test queries: recall in percent, k = 1 / 10 / "
        "100, by calls of the search, for what exact scores of the anchor queries kriging learned "
        "from, and how many there were. All of them have a few scored items, or some have all.",
        "",
    ]
    for name, rows in found.items():
        lines += [f"### Offline calls on {name}", ""]
        head = ["learned from", "offline calls", *BUDGETS, "seconds"]
        lines += table(head, map(_row, sorted(rows, key=_place)))
    return lines


def _row(row: Mapping[str, Any]) -> list[str]:
    kind, _, count = row["name"].partition(" ")
    of = [row["recall"][str(budget)] for budget in BUDGETS]
    cells = [mean_percents(recall[str(k)] for k in KS) for recall in of]
    return [WHAT[kind].format(count), f"{row['offline']:,}", *cells, f"{row['seconds']:.1f}"]


def _place(row: Mapping[str, Any]) -> tuple[int, int]:
    return list(WHAT).index(row["name"].split()[0]), row["offline"]
