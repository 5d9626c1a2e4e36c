"""What a second scoring worker adds: pairs per second of one process with one and more workers.

    python lab/benchmarks/workers.py [--pairs 4096] [--workers 2] [--repeats 3] [--model bundled]

A worker is a thread with one core; all share one session. Asked: two workers on 2 cores keep 90%
of the pairs per second of one each, that is, are 1.8 times as fast. Beside them is a single worker
whose session has all the cores. Texts are of the documentation of Python's standard library.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np

from crossknn.data.docstrings import collect_standard_library
from crossknn.fitting.pairs import per_query
from crossknn.retrievers.base import RandomItems
from crossknn.scorers.opening import open_with_cores
from crossknn.scores.collect import Limits, collect
from crossknn.scores.store import ScoreStore
from crossknn.types import Queries

PER_QUERY = 64


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=4096)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--model", default="bundled")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[2] / "benchmarks/results/workers.json"
    )
    options = parser.parse_args()
    corpus = collect_standard_library()
    queries = list(corpus.queries.texts)[: -(-options.pairs // PER_QUERY)]
    items = list(corpus.items.texts)
    stage = RandomItems(len(items), 0)
    pairs = per_query(stage, Queries(queries), PER_QUERY, n=len(items)).pairs.take(
        slice(options.pairs)
    )

    speeds: dict[tuple[int, int], list[float]] = {}
    for _ in range(options.repeats):  # interleaved, so that a busy minute hits all alike
        for workers, threads in ((1, 1), (options.workers, 1), (1, options.workers)):
            store = ScoreStore.open()
            scorer = open_with_cores(options.model, threads)
            collect(store, scorer, queries, items, pairs, limits=Limits(max_calls=32))  # to warm up
            report = collect(store, scorer, queries, items, pairs, limits=Limits(workers=workers))
            speeds.setdefault((workers, threads), []).append(report.calls / report.seconds)
    one = float(np.median(speeds[1, 1]))
    rows = [
        {
            "workers": workers,
            "threads": threads,
            "pairs_per_second": float(np.median(found)),
            "times_one": float(np.median(found)) / one,
            "kept_by_each": float(np.median(found)) / one / workers,
        }
        for (workers, threads), found in speeds.items()
    ]
    for row in rows:
        print(json.dumps(row))
    setting = {"cores": len(os.sched_getaffinity(0)), "model": options.model, "pairs": len(pairs)}
    options.out.write_text(json.dumps({**setting, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
