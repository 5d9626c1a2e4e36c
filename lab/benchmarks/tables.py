"""Tables of docs/ that are made of benchmarks/results, written between their markers.

python lab/benchmarks/tables.py rewrites them; lab/tests/test_tables.py says which are out of date."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def fusion(rows: Sequence[Mapping[str, Any]]) -> Iterator[Sequence[str]]:
    """nDCG@10 and R@20 in %, and a difference of two fused searches in points."""
    searches = ("rerank", "rerank, fused", "axn(ridge=0.3)", "axn(ridge=0.3), fused", "gp, fused")
    names = [name.replace("(ridge=0.3)", "") for name in searches]
    yield (
        *("matrix (items)", "pairs", *names, "axn - rerank, both fused"),
        "R@20: rerank / axn / gp, fused",
    )
    for row in rows:
        mean, low, high = (100 * end for end in row["axn - rerank, fused"])
        yield (
            *(f"{row['matrix']} ({row['n']:,})", str(row["budget"])),
            *(f"{100 * row[name][0]:.1f}" for name in searches),
            f"{mean:+z.1f} [{low:+z.1f}, {high:+z.1f}]",
            " / ".join(f"{100 * row[name][1]:.1f}" for name in searches if "fused" in name),
        )


def paired(found: Mapping[str, Any]) -> Iterator[Sequence[str]]:
    """CPU seconds before and now, and the ratios."""
    yield "task", "before, s", "now, s", "ratio", "peak memory"
    for task, of in found["tasks"].items():
        before, now, ratio = of["cpu_s"]
        yield task, f"{before:.3f}", f"{now:.3f}", f"{ratio:.2f}", f"{of['peak_mb'][2]:.2f}"


TABLES: dict[str, tuple[str, Callable[..., Iterator[Sequence[str]]]]] = {
    "fusion.json": ("fusion.md", fusion),
    "paired.json": ("performance.md", paired),
}


def pages() -> dict[Path, str]:
    """The pages as they should be, with the tables of today's results."""
    made: dict[Path, str] = {}
    for result, (name, rows_of) in TABLES.items():
        path = ROOT / "docs" / name
        found = json.loads((ROOT / "benchmarks/results" / result).read_text())
        head, *rows = (f"| {' | '.join(cells)} |" for cells in rows_of(found))
        table = "\n".join([head, "|" + "---|" * (head.count("|") - 1), *rows])
        marker, text = f"<!-- {result} -->", made.get(path, path.read_text())
        if text.count(marker) != 2:
            raise SystemExit(f"{path} must have {marker} before and after the table")
        between = f"{marker}\n\n{table}\n\n{marker}"
        made[path] = re.sub(f"(?s){marker}.*{marker}", lambda _, new=between: new, text)
    return made


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text)
