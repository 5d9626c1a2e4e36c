"""Make docs/results.md, docs/performance.md and the README's picture from benchmarks/results/*.json,
and docs/papers.md from the registry of exhibits.

    python lab/benchmarks/make_docs.py

Nothing is measured here; each section says which script made its figures.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import align_tables
import kriging_offline_tables
import kriging_tables
import late_tables
import learning_tables
import wordnet_tables
from crossknn_lab.report.exhibits import checklist
from markdown_table import table
from reference_tables import REFERENCE

from crossknn.evaluation.replay import RecallRow
from crossknn.methods import in_full
from crossknn_lab.plots import recall_against_cost

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
WITHDRAWN = (
    "**Withdrawn**: everything about `tour` in this part. It stopped after its first step until "
    "November 2026; what is here is made again with the next run of the evidence. ANNCUR, ADACUR and "
    "itemCUR subtract a centre here, which the papers' methods do not (`center=none`)."
)
"""What is known to be wrong in figures that only a whole run of the evidence can make again."""
PICTURE = {
    "kriging(retriever=dense)": "kriging (300 anchor queries)",
    "adacur(retriever=dense, rounds=5)": "ADACUR (300 anchor queries)",
    "axn(retriever=dense, rounds=10, ridge=0.3)": "AXN with ridge (the default)",
    "axn(retriever=dense, rounds=10, blend=0.5)": "AXN as in the paper",
    "rerank(retriever=hybrid(bm25, dense))": "hybrid, rerank",
    "rerank(retriever=dense)": "dual encoder, rerank",
}


def load(name: str) -> dict | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def replay_section(found: dict) -> list[str]:
    lines = [
        "## Stored score matrices",
        "",
        "Recall in percent against exact search, k = 1 / 10 / 100, by calls per query; made by",
        "`lab/benchmarks/replay.py PATH_OF_MATRICES`. Methods that draw at random: means over 3 seeds. The",
        "last column is the largest difference, in points, to the reference figures published with",
        "the matrices (measured with independent prototypes), where there are some.",
        "",
    ]
    for name, rows in found.items():
        cells: dict[str, dict[int, dict[int, list[float]]]] = defaultdict(
            lambda: defaultdict(lambda: defaultdict(list))
        )
        for row in rows:
            cells[row["method"]][row["budget"]][row["k"]].append(100 * row["recall"])
        budgets = sorted({row["budget"] for row in rows})
        made = []
        for method, by_budget in cells.items():
            values = {b: [sum(v) / len(v) for v in by_budget[b].values()] for b in budgets}
            known = REFERENCE.get(name, {}).get(method)
            off = ""
            if known:
                mine = [x for b in budgets for x in values[b]]
                off = f"{max(abs(float(r) - x) for r, x in zip(known.split(), mine, strict=True)):.1f}"
            texts = [" / ".join(f"{x:.1f}" for x in values[b]) for b in budgets]
            made.append([f"`{in_full(method)}`", *texts, off])
        lines += [f"### {name} ({rows[0]['n_queries']} test queries)", ""]
        lines += table(["method", *budgets, "off by"], made)
    return lines


def picture(found: dict) -> None:
    rows = [
        RecallRow(**{**row, "ci": tuple(row["ci"])})
        for row in found["wordnet-act"]
        if row["method"] in PICTURE
    ]
    path = ROOT / "docs" / "images" / "recall.png"
    path.parent.mkdir(exist_ok=True)
    recall_against_cost(
        rows, path, title="Finding a cross-encoder's nearest neighbours", labels=PICTURE
    )


def evidence_section(found: dict) -> list[str]:
    """The answers; every difference and its interval are on a page of their own."""
    answers = re.sub(r"<details>.*?</details>\n\n", "", found["questions"], flags=re.DOTALL)
    answers = re.sub(r"<a id=[^\n]*</a>\n\n", "", answers)
    more = (
        "Every difference with its interval, for each budget and k: [evidence](evidence.md). Every "
        "method's recall, costs, settings and measures of the task: [comparison](comparison.md)."
    )
    head, rest = answers.split("\n\n", 1)
    return [head, "", WITHDRAWN, "", more, "", rest.rstrip(), ""]


def deadline_section(found: dict) -> list[str]:
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
        "models: 5,000 items, the default method, a budget of 1,000. Endpoints that never answer, that",
        "drip a byte every 30 ms, or that answer 429 with `Retry-After: 3600`, from the first request or",
        "from the third round on; every other way to fail is in [errors](errors.md).",
        "",
        *table(
            ["", "deadline, ms", "median", "p99", "worst", "searches", "p99 of all", "in all"], rows
        ),
        "The machine was a shared one: its host took the processors away for up to a second at a time,",
        "with nothing else running. The first figures are of searches that lost 10 ms or less so.",
        "",
        f"40 searches of a stalled endpoint, cancelled together: their threads are gone after "
        f"{gone['median']:.0f} ms (worst of {gone['searches']}: {gone['worst']:.0f} ms).",
        "",
    ]


def demo_section(found: dict) -> list[str]:
    lines = [
        "## The demo",
        "",
        f"`crossknn demo` on {found['python']}: {found['items']:,} items, {found['queries']} held-out",
        f"queries, bundled models, {found['seconds']:.0f} s in all on {found['cores']} cores "
        "(`lab/benchmarks/demo.py`). Recall against exact search in",
        "percent with 95% intervals; P@1 is how often the right item comes first.",
        "",
    ]
    ks = sorted({row["k"] for row in found["rows"]})
    measures = list(found["rows"][0]["measures"])
    rows = []
    for start in range(0, len(found["rows"]), len(ks)):
        group = found["rows"][start : start + len(ks)]
        cells = [
            f"{100 * r['recall']:.1f} [{100 * r['ci'][0]:.0f}-{100 * r['ci'][1]:.0f}]"
            for r in group
        ]
        task = [f"{group[0]['measures'][m]:.3f}" for m in measures]
        rows.append([f"`{group[0]['method']}`", f"{group[0]['calls']:.0f}", *cells, *task])
    return lines + table(["method", "calls", *(f"k = {k}" for k in ks), *measures], rows)


def overhead_section(found: dict) -> list[str]:
    lines = [
        "## Search apart from scoring",
        "",
        f"n = {found['n']:,}, d = {found['d']}, {found['budget']} calls, {found['rounds']} rounds, "
        f"{found['queries']} queries together, {found['cores']} cores; ADACUR with 500 anchor",
        "queries. Made by `lab/benchmarks/overhead.py`; medians. The floor is the one thing that exact search",
        "cannot do without: the product of queries and item vectors, once a round.",
        "",
    ]
    head = ["method", "ms per query (asked: 30)", "floor, ms", "share of the floor"]
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
    lines += table([*head, "memory / vectors (asked: 2)"], rows)
    return lines + (beside_axn(found) if "by_items" in found else [])


def beside_axn(found: dict) -> list[str]:
    """Kriging next to AXN, by the number of items."""
    lines = [
        "### Kriging next to AXN",
        "",
        f"d = {found['d']}, {found['budget']} calls in 10 rounds; kriging has 100 anchor queries, rank 100,",
        "and content by the same vectors. All numbers are of one run. Once: the covariance, from the",
        "anchors' scores. Memory is the peak, item vectors and anchors' scores (n x 100) included.",
        "",
    ]
    axn = {r["n"]: r["ms_per_query"] for r in found["by_items"] if r["method"].startswith("axn")}
    head = ["items", "together", "method", "ms per query", "times AXN", "once, s"]
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
    return lines + table([*head, "memory, MB (vectors)"], rows)


def models_section(found: dict) -> list[str]:
    lines = [
        "## The bundled models",
        "",
        "nDCG@10 (how often a relevant item comes first, in brackets); the cross-encoder reranks the",
        "hybrid's first 100. The gain is over the better of BM25 and the dual encoder, with a paired 95%",
        "bootstrap interval over queries. Made by `lab/recipes/bundled/evaluate.py`.",
        "",
    ]
    who, rows = ("bm25", "dual encoder", "hybrid", "cross-encoder"), []
    for test in ("python docs", "scifact test", "medquad test"):
        if test not in found:
            continue
        row = found[test]
        best = max(who[:2], key=lambda w: row[w]["ndcg@10"])
        gain = row[f"cross-encoder minus {best}"]
        cells = [f"{row[w]['ndcg@10']:.3f} ({100 * row[w]['first_right']:.0f}%)" for w in who]
        low, high = gain["95%"]
        change = f"{gain['ndcg@10']:+.3f} [{low:+.3f}, {high:+.3f}]"
        rows.append([f"{test}, {row['items']:,} items", row["queries"], *cells, change])
    lines += table(["test", "queries", *who, "gain"], rows)
    exact = found.get("python docs", {}).get("exact ranking")
    if exact:
        low, high = exact["95% of the gain"]
        lines += [
            f"Exact search on the Python docs ({exact['queries']} queries, every item scored): nDCG@10 "
            f"{exact['cross-encoder ndcg@10']:.3f}; reranking the same queries "
            f"{exact['reranked ndcg@10']:.3f}; {exact['best retriever']} alone "
            f"{exact['best retriever ndcg@10']:.3f}; gain of exact search [{low:+.3f}, {high:+.3f}].",
            "",
        ]
    return lines


def speed_section(found: dict) -> list[str]:
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    lines = [
        "## Scoring",
        "",
        "The ONNX scorer against sentence-transformers' default path on CPUs (torch float32, batch 32):",
        "the same six-layer MiniLM cross-encoder, the same pairs, one run with interleaved repeats,",
        f"threads: {found['machine']['threads']}; {versions}. Made by `benchmarks/scorer_speed.py` at a2db68d.",
        "Asked: 1.7 times in float32 with Spearman 0.9999 per query, 3 times with a batch-independent",
        "quantization and 0.99, over random items and over the top 100 (means over queries, the lowest in",
        "brackets). `int8` has every linear layer in int8, one scale for each row; `int8-mixed` leaves the",
        "outputs of the feed-forward blocks in float32. Measured before the export computed the last layer",
        "only at the tokens that the head reads: today's graphs do less work for the same scores.",
        "",
    ]
    head, made = ["texts", "path", "pairs a second", "times faster"], []
    for texts, rows in found.items():
        if texts in ("versions", "machine"):
            continue
        for path, row in rows.items():
            if not isinstance(row, dict):
                continue
            cells = [
                f"{row[kind]['spearman_mean']:.5f} ({row[kind]['spearman_lowest']:.5f})"
                if kind in row
                else "-"
                for kind in ("random items", "top 100")
            ]
            speed = [f"{row['pairs_per_second']:.0f}", f"{row['times_faster']:.2f}"]
            made.append([texts, path, *speed, *cells])
    return [
        *lines,
        *table([*head, "Spearman, random items (lowest)", "top 100 (lowest)"], made),
        "**The default.** `export_model` writes float32 unless told otherwise: its ranking is the",
        'model\'s own. `precision="int8"` writes `int8-mixed`, which keeps 0.99 where `int8` misses it in the',
        "top 100. The bundled models are all int8, because they have to be small; they were trained and then",
        "measured as they are shipped. In all of them a pair's score does not depend on its batch, which is",
        "not so with ONNX Runtime's dynamic quantization.",
        "",
    ]


def page(title: str, intro: str, sections: list[tuple[str, Callable[[dict], list[str]]]]) -> str:
    lines: list[str] = []
    for name, make in sections:
        found = load(name)
        if found is not None:
            lines += make(found)
    text = "\n".join(lines).rstrip()
    heads = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    contents = [f"- [{head}](#{anchor(head)})" for head in heads]
    return "\n".join([f"# {title}", "", intro, "", *contents, "", text, ""])


def anchor(head: str) -> str:
    """Where a heading of Markdown is linked to.

    >>> anchor("R@1, of CMC's 16")
    'r1-of-cmcs-16'
    """
    return re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-")


def main() -> None:
    intro = "Made by `lab/benchmarks/make_docs.py` from `benchmarks/results/`; do not edit."
    results = [
        ("evidence", evidence_section),
        ("kriging", kriging_tables.section),
        ("kriging_offline", kriging_offline_tables.section),
        ("learning_curve", learning_tables.section),
        ("align", align_tables.section),
        ("late", late_tables.section),
        ("late_equal", late_tables.equal_section),
        ("wordnet_models", wordnet_tables.section),
        ("bundled_models", models_section),
        ("demo", demo_section),
        ("replay", replay_section),
    ]
    speed = [
        ("overhead", overhead_section),
        ("scorer_speed", speed_section),
        ("workers", align_tables.workers_section),
        ("als", align_tables.als_section),
        ("late_speed", late_tables.speed_section),
        ("deadlines", deadline_section),
    ]
    (ROOT / "docs" / "results.md").write_text(page("Results", intro, results))
    (ROOT / "docs" / "performance.md").write_text(page("Performance", intro, speed))
    if (found := load("evidence")) is not None:
        for name, part in (("evidence", "questions"), ("comparison", "comparison")):
            text = f"# {name.capitalize()}\n\n{intro}\n\n{WITHDRAWN}\n\n{found[part]}\n"
            (ROOT / "docs" / f"{name}.md").write_text(text)
    (ROOT / "docs" / "papers.md").write_text(checklist())
    if (found := load("replay")) is not None:
        picture(found)
    if (found := load("learning_curve")) is not None:
        learning_tables.pictures(found, ROOT / "docs" / "images")
    if (found := load("align")) is not None:
        align_tables.pictures(found, ROOT / "docs" / "images")
    if (found := load("late_speed")) is not None:
        late_tables.speed_picture(found, ROOT / "docs" / "images" / "late-speed.png")


if __name__ == "__main__":
    main()
