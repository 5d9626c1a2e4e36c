"""Milliseconds of one core that a search of 100 calls takes outside the cross-encoder, by method and number of items.

    python lab/benchmarks/overhead.py OUT N ... [--nearest]    # without a number of items: print OUT as a table

Items are random vectors around random centres; one query is searched alone, and 32 together. OUT (JSON lines) gets
medians of CPU time (set OMP_NUM_THREADS=1); with --nearest of an index with an approximate index of the vectors. To time
an earlier commit, run this file with its package.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import crossknn as ck
from crossknn.methods import parse_method
from crossknn.search.loop import simulate
from crossknn.types import Queries
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


def approximate(matrix: StoredMatrix, folder: str) -> ck.ItemIndex:
    """Make an index in a folder, with an approximate index of the vectors."""
    assert matrix.dense_queries is not None
    row = dict(zip(matrix.query_ids, matrix.dense_queries, strict=True))
    how: Any = {"vectors": matrix.dense_items, "bm25": False, "folder": folder}
    how["query_vectors"] = lambda texts: np.stack([row[text] for text in texts])
    index = ck.ItemIndex.build([*map(str, range(matrix.n))], **how)
    index.add_nearest()
    return ck.ItemIndex.load(folder, query_vectors=how["query_vectors"])


def milliseconds(matrix: StoredMatrix, index: Any, spec: str, size: int) -> float:
    """Return the median time per query of searches of `size` queries."""
    plan, took = parse_method(spec).plan(index, 100, 0), []
    for start in range(0, QUERIES, max(size, 4)):
        _, queries, scores = matrix.rows(start, start + size)
        queries = queries if index is matrix else Queries(queries.texts)
        began = time.process_time()
        simulate(plan, queries, scores)
        took.append(1000 * (time.process_time() - began) / size)
    return round(float(np.median(took)), 1)


if __name__ == "__main__":
    out, *given = sys.argv[1:]
    for n in (int(word) for word in given if word != "--nearest"):
        known, about = of_size(n), ""
        with tempfile.TemporaryDirectory() as folder:
            index: Any = known
            if "--nearest" in given:
                index, about = approximate(known, folder), ", approximate index"
            rows = [
                [n, spec + about, *(milliseconds(known, index, spec, size) for size in (1, 32))]
                for spec in METHODS
            ]
        with Path(out).open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    for n, spec, alone, together in map(json.loads, Path(out).read_text().splitlines()):
        print(f"| {n:,} | `{spec}` | {alone} | {together} |")
