"""The learning curve in docs/results.md, from results/learning_curve.json."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markdown_table import table

from crossknn.plots.curves import Curve, curves

KRIGING, AXN = "kriging", "axn"
LABELS = {
    KRIGING: "kriging, learned",
    AXN: "AXN, vectors of the log",
    f"{KRIGING} cold": "kriging, cold",
    f"{AXN} cold": "AXN, cold",
}
SHOWN = "100"
"""The budget of the picture."""


def section(found: Mapping[str, Any]) -> list[str]:
    lines = [
        "## Learning from use",
        "",
        "Made by `lab/benchmarks/learning_curve.py`: a cold index is searched with the real cross-encoder, "
        "and what the searches leave in the cache is learned after so many (`crossknn learn`); the "
        "searches that follow use it. No query is scored against every item. Recall of the matrix's "
        "test queries in percent, k = 1 / 10 / 100, by calls; `axn(ridge=0.3)` searches the vectors "
        "`log`.",
        "",
    ]
    for name, one in found.items():
        budgets = list(one["rows"][0]["recall"])
        lines += [
            f"### Learning on {name}",
            "",
            f"{one['n']:,} items, {one['tests']} test queries, {one['budget']} calls a logged search.",
            "",
        ]
        rows = []
        for row in one["rows"]:
            cells = [_recalls(row["recall"][budget]) for budget in budgets]
            before = f"{row['searches']:,}" if row["searches"] else "none"
            seconds = f"{row['seconds']:.0f}" if "seconds" in row else ""
            method = row["method"]
            if not row["searches"] and method == "kriging(retriever=hybrid)":
                before = (
                    f"none; {one['anchors']} dense anchors, {one['anchors'] * one['n']:,} calls"
                )
            rows.append([before, f"`{method}`", *cells, seconds])
        lines += table(["searches before", "method", *budgets, "seconds to learn"], rows)
        lines += [f"![recall after so many searches](images/learning-{name}.png)", ""]
    return lines


def pictures(found: Mapping[str, Any], folder: Path) -> None:
    """Recall against searches, by k."""
    for name, one in found.items():
        panels = {f"k = {k}": _lines(one["rows"], place) for place, k in ((1, 10), (2, 100))}
        curves(
            panels,
            folder / f"learning-{name}.png",
            title=f"{name}: {SHOWN} calls a search",
            x_label="searches before",
            labels=LABELS,
        )


def _lines(rows: list[dict[str, Any]], place: int) -> list[Curve]:
    """Both methods by searches, and across what they find without any."""
    lines = []
    for name, cold in ((KRIGING, "kriging(retriever=hybrid, anchors=false)"), (AXN, AXN)):
        found = [row for row in rows if row["method"].startswith(name)]
        points = [(r["searches"], r["recall"][SHOWN][place] / 100) for r in found if r["searches"]]
        x, y = zip(*points, strict=True)
        lines.append(Curve(name=name, x=x, y=y))
        before = next(r for r in found if not r["searches"] and r["method"].startswith(cold))
        lines.append(
            Curve(name=f"{name} cold", x=(None,), y=(before["recall"][SHOWN][place] / 100,))
        )
    return lines


def _recalls(values: list[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)
