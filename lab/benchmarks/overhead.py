"""What a search costs apart from scoring: milliseconds per query and memory.

    python lab/benchmarks/overhead.py [--out FILE] [--sizes 10000 100000 1000000]
    python lab/benchmarks/overhead.py --method 'kriging(retriever=dense)' --n 100000 --anchors 100

Vectors and scores are synthetic (seeded); exact scores are looked up, and looking up is not timed.
Asked: at most 30 ms per query on 2 cores and memory under twice the vectors' size, for AXN and for
ADACUR with 500 anchor queries, at 100,000 items and 5 rounds. The floor printed beside them is the
one product that no exact search can do without: queries (m, d) times item vectors (d, n), once a
round. Then kriging with 100 anchor queries next to AXN by the number of items, both in 10 rounds;
what is computed from the anchors once is timed apart.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from crossknn.methods import parse_method
from crossknn.search.loop import Search
from crossknn.types import Anchors, Cache, Queries, Scale

SPECS = (
    ("axn(retriever=dense, rounds={rounds}, blend=0.5)", 0),
    ("axn(retriever=dense, rounds={rounds}, ridge=0.3)", 0),
    ("adacur(retriever=dense, rounds={rounds})", 500),
)
"""Methods, and the anchor queries each has."""

BESIDE = (
    ("axn(retriever=dense, rounds=10, blend=0.5)", 0),
    ("kriging(use_anchors=false)", 0),
    ("auto", 100),
    ("auto", 0),
)
"""Those compared by the number of items."""


HERE = Path(__file__).parents[2]

CELLS = 2_000_000
"""Queries x items searched together by these, but 32 queries at most and 2 at least."""


class SyntheticIndex:
    """Item vectors, scores of anchor queries if there are some, and nothing else."""

    anchor_items = item_scores = None

    def __init__(self, vectors, anchors=None, given=None):
        """`given`: the anchor queries' vectors (q, d)."""
        self.n, self.anchors = len(vectors), anchors
        self._given, self.cache, self.artifacts = given, Cache(), {}
        self.vectors, self.retrievers, self.late, self.fitted = {"dense": vectors}, {}, {}, {}

    def store(self, name):
        from crossknn.retrievers.base import ArrayStore  # older checkouts have none

        items = self.vectors[name]
        return self.cache.get(("store", name), (items,), lambda: ArrayStore(items))

    def lists(self, name, rows=None):
        return None

    def has_query_vectors(self, name):
        return name in self.vectors

    def query_vectors(self, queries, name):
        return queries.vectors[name]

    def anchored(self, start=0, stop=None):
        given = self._given[start:stop]
        return self, Queries([f"anchor {q}" for q in range(len(given))], {"dense": given})

    def scale(self, name):
        return Scale(alpha=0.1, beta=0.5)


def peak_mb() -> float:
    """Of this process alone: `ru_maxrss` begins with what the parent had when it started it."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def measure(spec: str, options: argparse.Namespace) -> dict[str, float | str]:
    """One method in this process: median over repeats, and the peak memory above the start."""
    rng = np.random.default_rng(0)
    n, m, q = options.n, options.queries, options.anchors
    by_scores = spec.startswith("adacur")  # its vectors are the anchors' scores
    d = 8 if by_scores else options.d
    before = peak_mb()
    vectors, given = (rng.standard_normal((size, d), np.float32) for size in (n, m))
    known = rng.standard_normal((q, d), np.float32)
    asked = Queries([f"anchor {row}" for row in range(q)], {"dense": known})
    anchors = Anchors(rng.standard_normal((q, n), np.float32), 0.1, asked) if q else None
    index = SyntheticIndex(vectors, anchors, known)
    chosen = parse_method(spec)
    started = time.perf_counter()
    chosen.plan(index, options.budget, 0)  # computes from the anchors what is kept in the index
    once = time.perf_counter() - started
    times, cpu = [], []
    for _ in range(options.repeats):
        queries = Queries([f"query {q}" for q in range(m)], {"dense": given})
        outside, started, used = 0.0, time.perf_counter(), time.process_time()
        search = Search(chosen.plan(index, options.budget, 0), queries, n)
        while len(pairs := search.ask()):
            outside += time.perf_counter() - started
            scores = np.sin(pairs.item * 0.37 + pairs.query).astype(np.float32)
            started = time.perf_counter()
            search.tell(pairs, scores)
        search.best(10)
        times.append(1000 * (outside + time.perf_counter() - started) / m)
        cpu.append(1000 * (time.process_time() - used) / m)
    used, width = peak_mb() - before, q if by_scores else d
    size = n * width * 4 / 2**20
    return {
        "method": str(chosen),
        "n": n,
        "queries": m,
        "anchors": q,
        "ms_per_query": float(np.median(times)),
        "ms_per_query_fastest": min(times),
        "cpu_ms_per_query": float(np.median(cpu)),
        "once_seconds": once,
        "memory_mb": used,
        "vectors_mb": size,
        "memory_over_vectors": used / size,
    }


def _floor(m: int, n: int, d: int, rounds: int) -> float:
    """Milliseconds per query of `rounds` products (m, d) x (d, n), the fastest of five."""
    rng = np.random.default_rng(1)
    queries, items = (
        rng.standard_normal((m, d), np.float32),
        rng.standard_normal((n, d), np.float32),
    )
    best = np.inf
    for _ in range(5):
        started = time.perf_counter()
        queries @ items.T
        best = min(best, time.perf_counter() - started)
    return float(1000 * rounds * best / m)


def apart(spec: str, **options: int) -> dict[str, float | str]:
    """`measure` in a process of its own, so that its memory is its own."""
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, __file__, "--method", spec, *words]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("n", 100_000), ("d", 384), ("budget", 100), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--anchors", type=int, default=0, help="with --method")
    parser.add_argument("--method", help="only this one, in this process")
    parser.add_argument("--sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--out", type=Path, default=HERE / "benchmarks/results/overhead.json")
    options = parser.parse_args()
    if options.method:
        print(json.dumps(measure(options.method, options)))
        return
    setting = {name: vars(options)[name] for name in ("n", "d", "budget", "rounds", "queries")}
    rows = []
    for spec, anchors in SPECS:
        named = spec.format(rounds=options.rounds)
        row = apart(named, **setting, repeats=options.repeats, anchors=anchors)
        width = anchors if spec.startswith("adacur") else options.d
        row["floor_ms_per_query"] = _floor(options.queries, options.n, width, options.rounds)
        rows.append(row)
    beside = []
    for n in options.sizes:
        together = min(max(CELLS // n, 2), 32)
        same = {"n": n, "d": options.d, "budget": options.budget, "rounds": 10, "queries": together}
        for spec, anchors in BESIDE:
            repeats = 3 if n < 1_000_000 else 2
            beside.append(apart(spec, **same, repeats=repeats, anchors=anchors))
    known = {"cores": len(os.sched_getaffinity(0)), **setting, "rows": rows, "by_items": beside}
    options.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
