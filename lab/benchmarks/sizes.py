"""How long `auto` takes to choose, by the number of items, with a pool of them and without.

    python lab/benchmarks/sizes.py        # five minutes of an idle machine; writes sizes.json

Made-up items in clusters, whose scores vectors and words explain in part; no anchors, 100 calls, one
query at a time, one thread. Both bounds search the same query in turn. `ms` is the median over
queries of a search whose scores are known; `recall` is the mean share of the exact top k."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # read when NumPy is first imported

import numpy as np

from crossknn.linalg import top_k
from crossknn.methods import base, parse_method
from crossknn.search.loop import simulate
from crossknn_lab.stored import StoredMatrix

SIZES = (6_000, 12_000, 12_100, 25_000, 49_999, 50_000, 50_100)
BOUNDS = {"a pool above 50,000": 50_000, "a pool above 12,000": base.POOLED}
QUERIES, D, CALLS = 16, 128, 100
OUT = Path(__file__).parents[2] / "benchmarks/results/sizes.json"


def matrix(n: int) -> StoredMatrix:
    """n items around 40 centres, and scores of which a part is in no vector."""
    rng = np.random.default_rng(0)
    items = rng.normal(size=(40, D))[rng.integers(40, size=n)] + 0.7 * rng.normal(size=(n, D))
    items = (items / np.linalg.norm(items, axis=1, keepdims=True)).astype(np.float32)
    queries = items[:QUERIES] + 0.05 * rng.normal(size=(QUERIES, D)).astype(np.float32)
    hidden = rng.normal(size=(D, D)).astype(np.float32) / 3
    scores = 5 * queries @ (items + np.tanh(items @ hidden)).T
    return StoredMatrix(
        scores=scores.astype(np.float32),
        n_anchors=0,
        dense_items=items,
        dense_queries=queries,
        firsts={
            "bm25": (queries @ items.T + 0.1 * rng.normal(size=scores.shape)).astype(np.float32)
        },
        query_ids=tuple(map(str, range(QUERIES))),
        anchor_items=np.arange(min(n, 500)),
    )


rows = []
for n in SIZES:
    index, queries, scores = matrix(n).rows(0, QUERIES)
    ms: dict[str, list[float]] = {name: [] for name in BOUNDS}
    recall: dict[str, list[list[float]]] = {name: [] for name in BOUNDS}
    for q in range(-1, QUERIES):  # the first is not counted: it fills caches
        for name, base.POOLED in BOUNDS.items():
            asked, exact = queries.take([max(q, 0)]), scores[[max(q, 0)]]
            began = time.perf_counter()
            found = (
                simulate(parse_method("auto").plan(index, CALLS, 0), asked, exact).best(100).items
            )
            if q >= 0:
                ms[name].append(1000 * (time.perf_counter() - began))
                true = top_k(exact, 100).items[0]
                recall[name].append([np.isin(true[:k], found[0, :k]).mean() for k in (10, 100)])
    rows.append(
        {
            "n": n,
            "ms": {name: float(np.median(values)) for name, values in ms.items()},
            "recall": {name: np.mean(values, axis=0).tolist() for name, values in recall.items()},
        }
    )
    print(rows[-1], flush=True)
    OUT.write_text(json.dumps(rows, indent=1) + "\n")
