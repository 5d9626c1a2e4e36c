"""Bring the sections of docs that are made of benchmarks/results/*.json, and docs/papers.md, up to date.

    python lab/benchmarks/docs.py

Nothing is measured here; each section says which script made its figures. A section is replaced
from its heading to the next one; all other text is left as it is.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from crossknn.evaluation.replay import RecallRow
from crossknn.methods import in_full
from crossknn.plots import recall_against_cost
from crossknn_lab.page import table_lines
from crossknn_lab.reproduce import checklist

ROOT = Path(__file__).parents[2]
WITHDRAWN = (
    "**Withdrawn**: everything about `tour` in this part. It stopped after its first step until "
    "November 2026; what is here is made again with the next run of the evidence. ANNCUR, ADACUR "
    "and itemCUR subtract a centre here, which the papers' methods do not (`center=none`)."
)
PICTURE = {
    "kriging(retriever=dense)": "kriging (300 anchor queries)",
    "adacur(retriever=dense, rounds=5)": "ADACUR (300 anchor queries)",
    "axn(retriever=dense, rounds=10, ridge=0.3)": "AXN with ridge (the default)",
    "axn(retriever=dense, rounds=10, blend=0.5)": "AXN as in the paper",
    "rerank(retriever=hybrid(bm25, dense))": "hybrid, rerank",
    "rerank(retriever=dense)": "dual encoder, rerank",
}


def replay_section(found: dict[str, Any]) -> list[str]:
    lines = [
        "## Stored score matrices",
        "",
        "Recall in percent against exact search, k = 1 / 10 / 100, by calls per query; made by",
        "`lab/benchmarks/replay.py PATH_OF_MATRICES`. Methods that draw at random: means over 3",
        "seeds.",
        "",
    ]
    for name, rows in found.items():
        cells: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(dict)
        for row in rows:
            by_k = cells[row["method"], row["budget"]]
            by_k.setdefault(row["k"], []).append(100 * row["recall"])
        budgets = sorted({row["budget"] for row in rows})
        made = [
            [f"`{in_full(method)}`"]
            + [
                " / ".join(f"{sum(v) / len(v):.1f}" for v in cells[method, b].values())
                for b in budgets
            ]
            for method in dict.fromkeys(row["method"] for row in rows)
        ]
        lines += [f"### {name} ({rows[0]['n_queries']} test queries)", ""]
        lines += table_lines(["method", *budgets], made)
    return lines


def evidence_section(found: dict[str, Any]) -> list[str]:
    """The answers; every difference and its interval are on a page of their own."""
    answers = re.sub(r"<details>.*?</details>\n\n", "", found["questions"], flags=re.DOTALL)
    head, rest = re.sub(r"<a id=[^\n]*</a>\n\n", "", answers).split("\n\n", 1)
    more = (
        "Every difference with its interval, for each budget and k: [evidence](evidence.md). Every "
        "method's recall, costs, settings and measures of the task: [comparison](comparison.md)."
    )
    return [head, "", WITHDRAWN, "", more, "", rest.rstrip(), ""]


def deadline_section(found: dict[str, Any]) -> list[str]:
    rows = [
        [
            name,
            deadline,
            *(f"{at[key]:.1f}" for key in ("median", "p99", "worst")),
            at["searches"],
            f"{at['p99 of all']:.1f}",
            at["of"],
        ]
        for name in ("bundled", "stalling endpoints")
        for deadline, at in found[name].items()
    ]
    gone = found["40 cancelled"]
    return [
        "## Deadlines",
        "",
        f"How many milliseconds after its deadline a search ends; {found['date']}, "
        "`lab/benchmarks/deadlines.py`. Bundled",
        "models: 5,000 items, the default method, a budget of 1,000. Endpoints that never answer,",
        "that drip a byte every 30 ms, or that answer 429 with `Retry-After: 3600`, from the first",
        "request or from the third round on; every other way to fail is in [errors](errors.md).",
        "",
        *table_lines(
            ["", "deadline, ms", "median", "p99", "worst", "searches", "p99 of all", "in all"], rows
        ),
        "The machine was a shared one: its host took the processors away for up to a second at a",
        "time. The first figures are of searches that lost 10 ms or less so.",
        "",
        f"40 searches of a stalled endpoint, cancelled together: their threads are gone after "
        f"{gone['median']:.0f} ms (worst of {gone['searches']}: {gone['worst']:.0f} ms).",
        "",
    ]


def overhead_section(found: dict[str, Any]) -> list[str]:
    lines = [
        "## Search apart from scoring",
        "",
        f"n = {found['n']:,}, d = {found['d']}, {found['budget']} calls, {found['rounds']} rounds, "
        f"{found['queries']} queries together, {found['cores']} cores; ADACUR with 500 anchor",
        "queries. Made by `lab/benchmarks/overhead.py`; medians. The floor is the one thing that",
        "exact search cannot do without: the product of queries and item vectors, once a round.",
        "",
    ]
    rows = [
        [
            f"`{row['method']}`",
            f"{row['ms_per_query']:.1f} (fastest {row['ms_per_query_fastest']:.1f})",
            f"{row['floor_ms_per_query']:.1f}",
            f"{100 * row['floor_ms_per_query'] / row['ms_per_query']:.0f}%",
            f"{row['memory_over_vectors']:.2f}",
        ]
        for row in found["rows"]
    ]
    head = ["method", "ms per query (asked: 30)", "floor, ms", "share of the floor"]
    lines += table_lines([*head, "memory / vectors (asked: 2)"], rows)
    lines += [
        "### Kriging next to AXN",
        "",
        f"d = {found['d']}, {found['budget']} calls in 10 rounds; kriging has 100 anchor queries,",
        "rank 100, and content by the same vectors. All numbers are of one run. Once: the",
        "covariance, from the anchors' scores. Memory is the peak, item vectors and anchors' scores",
        "(n x 100) included.",
        "",
    ]
    axn = {r["n"]: r["ms_per_query"] for r in found["by_items"] if r["method"].startswith("axn")}
    rows = [
        [
            f"{row['n']:,}",
            row["queries"],
            f"`{row['method']}`",
            f"{row['ms_per_query']:.0f}",
            f"{row['ms_per_query'] / axn[row['n']]:.1f}",
            f"{row['once_seconds']:.1f}" if row["anchors"] else "-",
            f"{row['memory_mb']:,.0f} ({row['vectors_mb']:,.0f})",
        ]
        for row in found["by_items"]
    ]
    head = ["items", "together", "method", "ms per query", "times AXN", "once, s"]
    return lines + table_lines([*head, "memory, MB (vectors)"], rows)


SECTIONS = {
    "evidence": ("results", evidence_section),
    "replay": ("results", replay_section),
    "overhead": ("performance", overhead_section),
    "deadlines": ("performance", deadline_section),
}


def replace_section(text: str, lines: list[str]) -> str:
    """The page with the section of that heading replaced."""
    made = "\n".join(lines).rstrip() + "\n"
    head = next(line for line in lines if line.startswith("## "))
    pattern = rf"^{re.escape(head)}\n.*?(?=^## |\Z)"
    return (
        re.sub(pattern, lambda _: made + "\n", text, flags=re.DOTALL | re.MULTILINE).rstrip() + "\n"
    )


def main() -> None:
    docs, results = ROOT / "docs", ROOT / "benchmarks" / "results"
    for name, (page, section) in SECTIONS.items():
        path, found = docs / f"{page}.md", json.loads((results / f"{name}.json").read_text())
        path.write_text(replace_section(path.read_text(), section(found)))
    found = json.loads((results / "evidence.json").read_text())
    intro = "Made by `lab/benchmarks/docs.py` from `benchmarks/results/`; do not edit."
    for name, part in (("evidence", "questions"), ("comparison", "comparison")):
        text = f"# {name.capitalize()}\n\n{intro}\n\n{WITHDRAWN}\n\n{found[part]}\n"
        (docs / f"{name}.md").write_text(text)
    (docs / "papers.md").write_text(checklist())


def picture() -> None:
    """The README's picture."""
    found = json.loads((ROOT / "benchmarks" / "results" / "replay.json").read_text())
    rows = [
        RecallRow(**row | {"ci": tuple(row["ci"])})
        for row in found["wordnet-act"]
        if row["method"] in PICTURE
    ]
    title = "Finding a cross-encoder's nearest neighbours"
    recall_against_cost(rows, ROOT / "docs" / "images" / "recall.png", title=title, labels=PICTURE)


if __name__ == "__main__":
    main()
