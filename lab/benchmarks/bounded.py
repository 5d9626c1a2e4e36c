"""Memory of a process that searches ten thousand times and learns from it.

    python lab/benchmarks/bounded.py [SEARCHES]      # ten minutes; writes benchmarks/results/bounded.json

200 made-up items, 10 calls a query, every query another text, `Learner` in the background as in a
service. `rss_mb` is what the process holds after so many searches; `store_mb` what its scores take."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import psutil

import crossknn as ck

OUT = Path(__file__).parents[2] / "benchmarks/results/bounded.json"
SEARCHES = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
VERBS, NOUNS = (
    ("zip", "sort", "lock", "copy", "open", "read", "move", "list"),
    ("file", "list", "key"),
)


def text(number: int) -> str:
    """A text of eight words, another one for each number."""
    parts = (f"{VERBS[number // 3**i % 8]} {NOUNS[number // 2**i % 3]}" for i in range(4))
    return f"{' '.join(parts)} {number}"


def overlap(pairs: list[tuple[str, str]]) -> list[float]:
    """Words in common, and a little for the length."""
    return [len({*q.split()} & {*t.split()}) + len(t) / 99 for q, t in pairs]


with tempfile.TemporaryDirectory() as folder:
    index = ck.ItemIndex.build([text(i) for i in range(200)], lsa=16)
    index.save(folder)
    index = ck.ItemIndex.load(folder)
    scorer = ck.StoredScorer(ck.CallableScorer(overlap, name="overlap"), index.scores)
    searcher, learner = ck.Searcher(index, scorer), ck.Learner(index, scorer)
    rows, began, fits = [], time.perf_counter(), 0
    for search in range(1, SEARCHES + 1):
        searcher.search(text(1_000 + search), k=5, budget=10)
        fits += learner.notice()
        if search in (100, 1_000, 2_500, 5_000, 7_500, SEARCHES):
            store = sum(file.stat().st_size for file in Path(folder).glob("scores.db*"))
            rows.append(
                {
                    "searches": search,
                    "fits": fits,
                    "rss_mb": round(psutil.Process().memory_info().rss / 2**20, 1),
                    "store_mb": round(store / 2**20, 1),
                    "seconds": round(time.perf_counter() - began, 1),
                }
            )
            print(rows[-1], flush=True)
            OUT.write_text(json.dumps(rows, indent=1) + "\n")
    learner.wait()
