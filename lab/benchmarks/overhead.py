"""Milliseconds that a search of 100 calls takes outside the cross-encoder, by method and number of items.

    python lab/benchmarks/overhead.py OUT N ...     # without a number of items: print OUT as a table

Items are random vectors around random centres; one query is searched alone, and 32 together. OUT (JSON lines) gets
medians. To time an earlier commit, run this file with its package.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np

from crossknn.methods import parse_method
from crossknn.search.loop import simulate
from crossknn_lab.stored import StoredMatrix

METHODS, QUERIES, D = ("rerank", "axn(ridge=0.3)", "axn(blend=0.5)", "auto"), 64, 384


def of_size(n: int) -> StoredMatrix:
    """Make a matrix of n items, whose scores are related to the vectors."""
    rng = np.random.default_rng(0)
    items = rng.normal(size=(n // 50, D))[rng.integers(n // 50, size=n)].astype(np.float32)
    items += rng.normal(scale=0.7, size=(n, D)).astype(np.float32)
    items /= np.linalg.norm(items, axis=1, keepdims=True)
    queries = items[rng.choice(n, QUERIES)] + rng.normal(scale=0.05, size=(QUERIES, D)).astype("f4")
    others = queries + 0.3 * queries @ rng.normal(scale=D**-0.5, size=(D, D)).astype("f4")
    names = tuple(map(str, range(QUERIES)))
    return StoredMatrix(np.tanh(5 * others @ items.T), 0, items, queries, {}, names)


def milliseconds(matrix: StoredMatrix, spec: str, size: int) -> float:
    """Return the median time per query of searches of `size` queries."""
    plan, took = parse_method(spec).plan(matrix, 100, 0), []
    for start in range(0, QUERIES, max(size, 4)):
        _, queries, scores = matrix.rows(start, start + size)
        began = time.perf_counter()
        simulate(plan, queries, scores)
        took.append(1000 * (time.perf_counter() - began) / size)
    return round(float(np.median(took)), 1)


if __name__ == "__main__":
    out, sizes = Path(sys.argv[1]), [*map(int, sys.argv[2:])]
    for n in sizes:
        known = of_size(n)
        rows = [
            [n, spec, *(milliseconds(known, spec, size) for size in (1, 32))] for spec in METHODS
        ]
        with out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    for n, spec, alone, together in map(json.loads, out.open()):
        print(f"| {n:,} | `{spec}` | {alone} | {together} |")
