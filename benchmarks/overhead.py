"""What a search costs apart from scoring: milliseconds per query and memory.

    python benchmarks/overhead.py [--n 100000] [--d 384] [--budget 100] [--rounds 5] [--queries 32]

Vectors and scores are synthetic (seeded); exact scores are looked up, and looking up is not timed.
Asked: at most 30 ms per query on 2 cores and memory under twice the vectors' size, for AXN and for
ADACUR with 500 anchor queries. The floor printed beside them is the one product that no exact
search can do without: queries (m, d) times item vectors (d, n), once a round.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from crossknn.indexes.base import Anchors, Scale
from crossknn.methods import method
from crossknn.search import Search
from crossknn.types import Queries

SPECS = {
    "axn": "axn(first=de, rounds={rounds}, blend=0.5)",
    "ridge": "axn(first=de, rounds={rounds}, ridge=0.3)",
    "adacur": "adacur(first=de, rounds={rounds})",
}
ANCHORS = 500


class SyntheticIndex:
    """Item vectors, or scores of anchor queries, and nothing else."""

    first_names = ()
    anchor_items = None
    item_scores = None
    aligned_names = ()
    query_vector_names = ("de",)

    def __init__(self, vectors, anchors):
        self.n, self._vectors, self.anchors = len(vectors), vectors, anchors
        self.vector_names = ("de",)

    def vectors(self, name):
        return self._vectors

    def query_vectors(self, queries, name):
        return queries.vectors[name]

    def scale(self, name):
        return Scale(alpha=0.1, beta=0.5)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(which: str, options: argparse.Namespace) -> dict[str, float | str]:
    """One method in this process: median over repeats, and the peak memory above the start."""
    rng = np.random.default_rng(0)
    n, d, m = options.n, options.d, options.queries
    before = peak_mb()
    if which != "adacur":
        vectors, anchors, width = rng.standard_normal((n, d), np.float32), None, d
    else:
        vectors = rng.standard_normal((n, 8), np.float32)  # for the first stage alone
        anchors, width = Anchors(rng.standard_normal((ANCHORS, n), np.float32), 0.1), ANCHORS
    index = SyntheticIndex(vectors, anchors)
    given = {"de": rng.standard_normal((m, vectors.shape[1]), np.float32)}
    plan_spec = method(SPECS[which].format(rounds=options.rounds))
    times = []
    for _ in range(options.repeats):
        queries = Queries([f"query {q}" for q in range(m)], dict(given))
        outside, started = 0.0, time.perf_counter()
        search = Search(plan_spec.plan(index, options.budget, 0), queries, n)
        while len(pairs := search.ask()):
            outside += time.perf_counter() - started
            scores = np.sin(pairs.item * 0.37 + pairs.query).astype(np.float32)
            started = time.perf_counter()
            search.tell(pairs, scores)
        search.best(10)
        times.append(1000 * (outside + time.perf_counter() - started) / m)
    used = peak_mb() - before
    size = n * width * 4 / 2**20
    return {
        "method": str(plan_spec),
        "ms_per_query": float(np.median(times)),
        "ms_per_query_fastest": min(times),
        "floor_ms_per_query": _floor(m, n, width, options.rounds),
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("n", 100_000), ("d", 384), ("budget", 100), ("rounds", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--method", choices=SPECS, help="only this one, in this process")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/overhead.json")
    options = parser.parse_args()
    if options.method:
        print(json.dumps(measure(options.method, options)))
        return
    rows = []
    for which in SPECS:  # a process each, so that peak memory is its own
        arguments = [f"--{k}={v}" for k, v in vars(options).items() if k not in ("method", "out")]
        command = [sys.executable, __file__, *arguments, "--method", which]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        rows.append(json.loads(done.stdout.splitlines()[-1]))
        print(json.dumps(rows[-1]))
    setting = {
        k: v for k, v in vars(options).items() if k in ("n", "d", "budget", "rounds", "queries")
    }
    known = {"cores": len(os.sched_getaffinity(0)), **setting, "rows": rows}
    options.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
