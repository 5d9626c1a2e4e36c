"""Make docs/results.md, docs/performance.md and the README's picture from benchmarks/results/*.json,
and docs/papers.md from the registry of exhibits.

    python benchmarks/make_docs.py

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

from crossknn.evaluation.replay import RecallRow
from crossknn.plots import recall_against_cost
from crossknn.report.exhibits import checklist

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = {
    "kriging(first=de)": "kriging (300 anchor queries)",
    "adacur(first=de, rounds=5)": "ADACUR (300 anchor queries)",
    "axn(first=de, rounds=10, ridge=0.3)": "AXN with ridge (the default)",
    "axn(first=de, rounds=10, blend=0.5)": "AXN as in the paper",
    "rnr(first=hybrid(bm25, de))": "hybrid, rerank",
    "rnr(first=de)": "dual encoder, rerank",
}
REFERENCE = {  # the table beside the stored matrices, k = 1 / 10 / 100 at each budget
    "wordnet-act": {
        "rnr(first=bm25)": "88.0 34.6 10.1 90.0 36.7 11.9 90.0 38.8 14.6 92.0 41.8 19.6",
        "rnr(first=de)": "94.0 45.0 13.7 96.0 53.5 19.7 98.0 61.6 27.8 98.0 72.9 41.3",
        "rnr(first=hybrid(bm25, de))": "96.0 47.2 13.9 97.0 53.6 19.2 97.0 60.0 25.6 98.0 69.6 37.4",
        "anncur(anchors=0.5)": "17.0 19.2 15.1 34.0 33.6 28.1 50.0 48.9 45.7 74.0 64.2 56.2",
        "adacur(first=de, rounds=5)": "93.0 58.7 21.2 97.0 71.7 34.5 98.0 81.3 48.3 100.0 87.1 62.7",
        "axn(first=de, rounds=5, blend=0.0)": "94.0 55.8 17.3 99.0 65.5 25.1 100.0 73.1 34.0 99.0 77.8 42.3",
        "axn(first=de, rounds=5, blend=0.5)": "96.0 59.0 18.4 99.0 68.6 27.2 100.0 74.5 36.3 100.0 80.4 45.9",
        "axn(first=de, rounds=5, blend=0.8)": "95.0 54.0 16.6 97.0 61.7 23.8 99.0 69.9 32.8 99.0 78.2 45.3",
        "axn(first=de, rounds=10, blend=0.5)": "98.0 60.9 19.2 99.0 69.7 27.9 100.0 75.7 36.8 100.0 82.6 48.9",
        "axn(first=hybrid(bm25, de), rounds=10, blend=0.5)": "99.0 61.2 19.0 99.0 69.2 27.3 100.0 75.1 36.6 100.0 81.7 48.0",
        "axn(first=de, rounds=10, blend=0.5, rcond=0.01)": "98.0 60.9 19.2 99.0 69.7 27.9 100.0 75.7 36.8 100.0 84.1 52.5",
        "gar(first=de, neighbours=16, batch=10)": "93.0 49.0 15.3 97.0 59.0 22.0 99.0 67.8 31.1 100.0 77.9 46.7",
        "gar(first=hybrid(bm25, de), neighbours=16, batch=10)": "96.0 51.4 15.6 98.0 61.0 22.6 99.0 67.6 30.5 100.0 77.3 45.3",
        "gp(first=de, scale=2.0, mean=average)": "93.0 57.8 18.6 97.0 69.7 28.7 99.0 78.8 42.7 99.0 87.3 63.3",
        "gp(first=de, scale=2.0, mean=first)": "95.0 55.0 17.6 97.0 66.7 26.8 100.0 77.1 40.2 100.0 87.8 62.2",
        "kriging(first=de, anchors=false)": "94.0 58.3 19.0 99.0 70.2 29.2 100.0 79.2 43.2 100.0 88.4 64.1",
        "kriging(first=hybrid(bm25, de), anchors=false)": "96.0 57.4 18.8 98.0 68.5 29.5 100.0 79.7 44.0 100.0 88.6 64.6",
        "kriging(first=de, rounds=5)": "95.0 67.0 25.1 98.0 79.1 43.7 100.0 90.2 66.3 100.0 97.2 90.0",
        "kriging(first=de)": "94.0 66.7 26.7 97.0 81.2 46.8 100.0 90.8 69.6 100.0 97.0 91.5",
    },
    "scifact": {
        "rnr(first=bm25)": "51.1 22.2 7.4 52.2 28.1 11.3 60.0 34.2 16.0 62.2 43.9 25.8",
        "rnr(first=de)": "61.1 30.6 11.0 64.4 38.2 16.4 68.9 45.8 23.8 76.7 57.0 37.4",
        "rnr(first=hybrid(bm25, de))": "60.0 31.6 10.9 63.3 36.8 15.4 66.7 44.4 22.5 74.4 56.3 35.4",
        "anncur(anchors=0.5)": "40.0 30.2 12.9 46.7 41.8 22.4 45.6 39.8 26.2 85.6 86.4 74.3",
        "adacur(first=de, rounds=5)": "73.3 46.6 18.5 80.0 55.6 27.4 96.7 80.4 50.1 98.9 96.2 86.0",
        "axn(first=de, rounds=5, blend=0.0)": "63.3 33.2 12.4 68.9 42.0 18.8 77.8 51.7 28.4 82.2 61.3 39.2",
        "axn(first=de, rounds=5, blend=0.5)": "65.6 34.6 13.2 68.9 42.8 19.7 74.4 52.8 29.2 83.3 63.7 42.2",
        "axn(first=de, rounds=5, blend=0.8)": "63.3 33.2 11.9 67.8 41.3 18.0 71.1 48.7 26.5 78.9 62.8 41.1",
        "axn(first=de, rounds=10, blend=0.5)": "64.4 35.6 13.3 70.0 44.1 20.2 78.9 53.7 29.7 81.1 67.4 45.3",
        "axn(first=hybrid(bm25, de), rounds=10, blend=0.5)": "65.6 36.1 13.3 67.8 44.0 19.9 73.3 52.2 29.8 81.1 66.3 44.3",
        "axn(first=de, rounds=10, blend=0.5, rcond=0.01)": "64.4 35.6 13.3 70.0 44.1 20.2 78.9 53.7 29.7 80.0 69.4 47.7",
        "gar(first=de, neighbours=16, batch=10)": "63.3 32.7 11.4 65.6 38.6 16.7 70.0 46.8 24.5 76.7 62.2 41.2",
        "gar(first=hybrid(bm25, de), neighbours=16, batch=10)": "61.1 32.6 11.2 66.7 39.8 16.8 68.9 48.0 24.5 73.3 60.3 40.1",
        "gp(first=de, scale=2.0, mean=average)": "61.1 34.0 12.8 66.7 44.3 20.4 78.9 57.2 33.4 95.6 79.6 57.0",
        "gp(first=de, scale=2.0, mean=first)": "62.2 34.7 13.1 70.0 44.9 21.1 76.7 55.6 33.2 94.4 78.4 56.3",
        "kriging(first=de, anchors=false)": "62.2 36.8 13.8 68.9 46.0 22.0 78.9 60.1 34.8 93.3 80.7 59.1",
        "kriging(first=hybrid(bm25, de), anchors=false)": "66.7 36.6 14.0 73.3 46.7 22.3 78.9 58.3 34.5 94.4 79.9 58.7",
        "kriging(first=de, rounds=5)": "92.2 63.4 25.8 97.8 82.0 46.0 100.0 92.9 69.9 100.0 99.0 92.7",
        "kriging(first=de)": "92.2 67.6 27.8 96.7 82.3 48.8 100.0 93.9 73.0 100.0 98.9 94.0",
        "kriging(first=hybrid(bm25, de))": "92.2 65.9 27.6 95.6 84.0 48.5 100.0 94.9 73.2 100.0 99.2 94.2",
    },
}


def load(name: str) -> dict | None:
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def replay_section(found: dict) -> list[str]:
    lines = [
        "## Stored score matrices",
        "",
        "Recall in percent against exact search, k = 1 / 10 / 100, by calls per query; made by",
        "`benchmarks/replay.py PATH_OF_MATRICES`. Methods that draw at random: means over 3 seeds. The",
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
        lines += [f"### {name} ({rows[0]['n_queries']} test queries)", ""]
        lines += ["| method | " + " | ".join(map(str, budgets)) + " | off by |"]
        lines += ["|---|" + "---|" * (len(budgets) + 1)]
        for method, by_budget in cells.items():
            values = {b: [sum(v) / len(v) for v in by_budget[b].values()] for b in budgets}
            known = REFERENCE.get(name, {}).get(method)
            off = ""
            if known:
                mine = [x for b in budgets for x in values[b]]
                off = f"{max(abs(float(r) - x) for r, x in zip(known.split(), mine, strict=True)):.1f}"
            texts = [" / ".join(f"{x:.1f}" for x in values[b]) for b in budgets]
            lines += [f"| `{method}` | " + " | ".join(texts) + f" | {off} |"]
        lines += [""]
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
    answers = found["text"][: found["text"].index("### Comparison")].rpartition("<a id=")[0]
    answers = re.sub(r"<details>.*?</details>\n\n", "", answers, flags=re.DOTALL)
    answers = re.sub(r"<a id=[^\n]*</a>\n\n", "", answers)
    more = "Every figure of these, with intervals, costs, settings and pictures: [evidence](evidence.md)."
    head, rest = answers.split("\n\n", 1)
    return [head, "", more, "", rest]


def demo_section(found: dict) -> list[str]:
    lines = [
        "## The demo",
        "",
        f"`crossknn demo` on {found['python']}: {found['items']:,} items, {found['queries']} held-out",
        f"queries, bundled models, {found['seconds']:.0f} s in all on {found['cores']} cores "
        "(`benchmarks/demo.py`). Recall against exact search in",
        "percent with 95% intervals; P@1 is how often the right item comes first.",
        "",
    ]
    ks = sorted({row["k"] for row in found["rows"]})
    measures = list(found["rows"][0]["measures"])
    heads = ["method", "calls", *(f"k = {k}" for k in ks), *measures]
    lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for start in range(0, len(found["rows"]), len(ks)):
        group = found["rows"][start : start + len(ks)]
        cells = [
            f"{100 * r['recall']:.1f} [{100 * r['ci'][0]:.0f}-{100 * r['ci'][1]:.0f}]"
            for r in group
        ]
        task = [f"{group[0]['measures'][m]:.3f}" for m in measures]
        lines += [
            f"| `{group[0]['method']}` | {group[0]['calls']:.0f} | "
            + " | ".join(cells + task)
            + " |"
        ]
    return [*lines, ""]


def overhead_section(found: dict) -> list[str]:
    lines = [
        "## Search apart from scoring",
        "",
        f"n = {found['n']:,}, d = {found['d']}, {found['budget']} calls, {found['rounds']} rounds, "
        f"{found['queries']} queries together, {found['cores']} cores; ADACUR with 500 anchor",
        "queries. Made by `benchmarks/overhead.py`; medians. The floor is the one thing that exact search",
        "cannot do without: the product of queries and item vectors, once a round.",
        "",
        "| method | ms per query (asked: 30) | floor, ms | share of the floor | memory / vectors (asked: 2) |",
        "|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        share = row["floor_ms_per_query"] / row["ms_per_query"]
        lines += [
            f"| `{row['method']}` | {row['ms_per_query']:.1f} (fastest {row['ms_per_query_fastest']:.1f}) "
            f"| {row['floor_ms_per_query']:.1f} | {100 * share:.0f}% | {row['memory_over_vectors']:.2f} |"
        ]
    return [*lines, "", *(beside_axn(found) if "by_items" in found else [])]


def beside_axn(found: dict) -> list[str]:
    """Kriging next to AXN, by the number of items."""
    lines = [
        "### Kriging next to AXN",
        "",
        f"d = {found['d']}, {found['budget']} calls in 10 rounds; kriging has 100 anchor queries, rank 100,",
        "and content by the same vectors. All numbers are of one run. Once: the covariance, from the",
        "anchors' scores. Memory is the peak, item vectors and anchors' scores (n x 100) included.",
        "",
        "| items | together | method | ms per query | times AXN | once, s | memory, MB (vectors) |",
        "|---|---|---|---|---|---|---|",
    ]
    axn = {r["n"]: r["ms_per_query"] for r in found["by_items"] if r["method"].startswith("axn")}
    for row in found["by_items"]:
        once = f"{row['once_seconds']:.1f}" if row["anchors"] else "-"
        lines += [
            f"| {row['n']:,} | {row['queries']} | `{row['method']}` | {row['ms_per_query']:.0f} "
            f"| {row['ms_per_query'] / axn[row['n']]:.1f} | {once} "
            f"| {row['memory_mb']:,.0f} ({row['vectors_mb']:,.0f}) |"
        ]
    return [*lines, ""]


def models_section(found: dict) -> list[str]:
    lines = [
        "## The bundled models",
        "",
        "nDCG@10 (how often a relevant item comes first, in brackets); the cross-encoder reranks the",
        "hybrid's first 100. The gain is over the better of BM25 and the dual encoder, with a paired 95%",
        "bootstrap interval over queries. Made by `recipes/bundled/evaluate.py`.",
        "",
    ]
    who = ("bm25", "dual encoder", "hybrid", "cross-encoder")
    lines += ["| test | queries | " + " | ".join(who) + " | gain |", "|" + "---|" * (len(who) + 3)]
    for test in ("python docs", "scifact test", "medquad test"):
        if test not in found:
            continue
        row = found[test]
        best = max(who[:2], key=lambda w: row[w]["ndcg@10"])
        gain = row[f"cross-encoder minus {best}"]
        cells = [f"{row[w]['ndcg@10']:.3f} ({100 * row[w]['first_right']:.0f}%)" for w in who]
        low, high = gain["95%"]
        lines += [
            f"| {test}, {row['items']:,} items | {row['queries']} | "
            + " | ".join(cells)
            + f" | {gain['ndcg@10']:+.3f} [{low:+.3f}, {high:+.3f}] |"
        ]
    exact = found.get("python docs", {}).get("exact ranking")
    if exact:
        low, high = exact["95% of the gain"]
        lines += [
            "",
            f"Exact search on the Python docs ({exact['queries']} queries, every item scored): nDCG@10 "
            f"{exact['cross-encoder ndcg@10']:.3f}; reranking the same queries "
            f"{exact['reranked ndcg@10']:.3f}; {exact['best first stage']} alone "
            f"{exact['best first stage ndcg@10']:.3f}; gain of exact search [{low:+.3f}, {high:+.3f}].",
        ]
    return [*lines, ""]


def speed_section(found: dict) -> list[str]:
    versions = ", ".join(f"{k} {v}" for k, v in found["versions"].items())
    lines = [
        "## Scoring",
        "",
        "The ONNX scorer against sentence-transformers' default path on CPUs (torch float32, batch 32):",
        "the same six-layer MiniLM cross-encoder, the same pairs, one run with interleaved repeats,",
        f"threads: {found['machine']['threads']}; {versions}. Made by `benchmarks/scorer_speed.py`.",
        "Asked: 1.7 times in float32 with Spearman 0.9999 per query, 3 times with a batch-independent",
        "quantization and 0.99, over random items and over the top 100 (means over queries, the lowest in",
        "brackets). `int8` has every linear layer in int8, one scale for each row; `int8-mixed` leaves the",
        "outputs of the feed-forward blocks in float32. Measured before the export computed the last layer",
        "only at the tokens that the head reads: today's graphs do less work for the same scores.",
        "",
        "| texts | path | pairs a second | times faster | Spearman, random items (lowest) | top 100 (lowest) |",
        "|---|---|---|---|---|---|",
    ]
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
            lines += [
                f"| {texts} | {path} | {row['pairs_per_second']:.0f} | {row['times_faster']:.2f} | "
                + " | ".join(cells)
                + " |"
            ]
    return [
        *lines,
        "",
        "**The default.** `export_cross_encoder` writes float32 unless told otherwise: its ranking is the",
        'model\'s own. `precision="int8"` writes `int8-mixed`, which keeps 0.99 where `int8` misses it in the',
        "top 100. The bundled models are all int8, because they have to be small; they were trained and then",
        "measured as they are shipped. In all of them a pair's score does not depend on its batch, which is",
        "not so with ONNX Runtime's dynamic quantization.",
        "",
    ]


def page(title: str, intro: str, sections: list[tuple[str, Callable[[dict], list[str]]]]) -> str:
    lines = [f"# {title}", "", intro, ""]
    for name, make in sections:
        found = load(name)
        if found is not None:
            lines += make(found)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    intro = "Made by `benchmarks/make_docs.py` from `benchmarks/results/`; do not edit."
    results = [
        ("replay", replay_section),
        ("evidence", evidence_section),
        ("kriging", kriging_tables.section),
        ("kriging_offline", kriging_offline_tables.section),
        ("learning_curve", learning_tables.section),
        ("demo", demo_section),
        ("bundled_models", models_section),
        ("wordnet_models", wordnet_tables.section),
        ("align", align_tables.section),
        ("late", late_tables.section),
        ("late_equal", late_tables.equal_section),
    ]
    speed = [
        ("overhead", overhead_section),
        ("scorer_speed", speed_section),
        ("workers", align_tables.workers_section),
        ("als", align_tables.als_section),
        ("late_speed", late_tables.speed_section),
    ]
    (ROOT / "docs" / "results.md").write_text(page("Results", intro, results))
    (ROOT / "docs" / "performance.md").write_text(page("Performance", intro, speed))
    if (found := load("evidence")) is not None:
        text = f"# Evidence\n\n{intro}\n\n{found['text']}\n"
        (ROOT / "docs" / "evidence.md").write_text(text)
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
