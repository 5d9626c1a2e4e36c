"""What a search costs outside scoring at 10^5 to 5 x 10^6 items, one query at a time.

    python lab/benchmarks/scale.py build FOLDER --real INDEX --n 1000000
    python lab/benchmarks/scale.py measure FOLDER --n 1000000 [--out FILE]
    python lab/benchmarks/scale.py lost FOLDER --n 1000000

INDEX is one whose 384-dimensional vectors are real: that of lab/benchmarks/wide.py. Beyond its
items, vectors are drawn around its own: one of them, plus normal noise of length 0.5, brought to
unit length. So are the queries. The prior of rank 100 has factors that are linear in the vectors
but for half of their variance. Vectors are kept in half precision; the approximate indexes of
vectors and of points are built as `crossknn index prepare --nearest` does.

Each method runs in a process of its own: 100 queries to warm up, of which the first is timed apart,
then 50. Scores are made from the vectors; scoring is not timed. Nor are query vectors, which are
given, and BM25, which is timed apart. Memory is what the process holds beyond mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from unittest.mock import patch

import numpy as np

import crossknn as ck
from crossknn.evaluation.measures import recall
from crossknn.index import nearest
from crossknn.linalg import top_k
from crossknn.methods.kriging import NAME, points_of, stored_prior
from crossknn.methods.posterior import Trend
from crossknn.methods.prior import Prior, trend_columns

D, RANK, NOISE, BLOCK = 384, 100, 0.5, 100_000
METHODS = {
    "axn": ("axn", False),
    "kriging, 10 rounds, prior": ("kriging(rounds=10)", True),
    "auto, prior": ("auto", True),
    "auto": ("auto", False),
    "rerank": ("rerank(retriever=vectors)", False),
}


def around(real: np.ndarray, count: int, seed: int) -> np.ndarray:
    """Unit vectors (count, d) around real ones."""
    rng = np.random.default_rng(seed)
    vectors = real[rng.integers(len(real), size=count)].astype(np.float32)
    vectors += rng.standard_normal(vectors.shape, np.float32) * np.float32(NOISE / np.sqrt(D))
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def build(folder: Path, real: Path, n: int) -> None:
    """An index of n items, its prior and the approximate indexes; what is there is kept."""
    real_index = ck.ItemIndex.load(real)
    known, texts = np.asarray(real_index.vectors["dense"]), list(real_index.items.texts)
    said = {}
    if not (folder / "crossknn-index.json").exists():
        values = np.empty((n, D), np.float16)
        values[: len(known)] = known[:n]
        for start in range(len(known), n, BLOCK):
            stop = min(start + BLOCK, n)
            values[start:stop] = around(known, stop - start, start)
        began = time.perf_counter()
        items = [texts[i % len(texts)][:200] for i in range(n)]
        index = ck.ItemIndex.build(items, vectors={"vectors": values}, bm25=n <= 1_000_000, lsa=0)
        said["built"] = time.perf_counter() - began
        index.save(folder)
        said["saved"] = time.perf_counter() - began - said["built"]
    index = ck.ItemIndex.load(folder, query_vectors={"vectors": lambda texts: known[: len(texts)]})
    if NAME not in index.artifacts:
        rng = np.random.default_rng(1)
        turn = rng.standard_normal((D, RANK), np.float32) / np.sqrt(np.float32(RANK))
        factor = np.empty((n, RANK), np.float32)
        for start in range(0, n, BLOCK):
            rows = index.store("vectors").vectors(np.arange(start, min(start + BLOCK, n)))
            noise = rng.standard_normal((len(rows), RANK), np.float32) / np.sqrt(np.float32(RANK))
            factor[start : start + len(rows)] = (rows.astype(np.float32) @ turn + noise) / np.sqrt(
                2
            )
        columns = trend_columns(1, 0, False)
        trends = [Trend(c, np.array([0, 0.5, 0.3]) * c, np.eye(3)) for c in columns]
        prior = Prior(
            factor=factor,
            mean=factor[:, 0],
            trends=trends,
            variance=1.0,
            space="vectors",
            retriever="vectors",
            queries=1000,
            pairs=100_000,
        )
        meta, arrays = prior.kept()
        index.put_artifact(NAME, meta, arrays)
    for name in ("vectors", NAME):
        began = time.perf_counter()
        if name == NAME:
            index.add_nearest(NAME, points_of(index, stored_prior(index), "vectors"))
        else:
            index.add_nearest(name)
        said[f"lists of {name}"] = time.perf_counter() - began
    print(json.dumps({"n": n, "seconds": said}), flush=True)


def memory_mb() -> float:
    """What this process holds beyond mapped files."""
    return int(re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


class Clock:
    """Seconds spent in a retriever's methods."""

    def __init__(self, inner) -> None:
        self.inner, self.seconds = inner, 0.0

    def top(self, *given):
        return self._timed(self.inner.top, given)

    def scores(self, *given):
        return self._timed(self.inner.scores, given)

    def _timed(self, call, given):
        began = time.perf_counter()
        found = call(*given)
        self.seconds += time.perf_counter() - began
        return found


def opened(folder: Path) -> tuple[ck.ItemIndex, dict[str, np.ndarray]]:
    """The index, and where the vectors of queries are put, by text. Its texts are the items'
    numbers, so that a scorer knows which items these are."""
    asked: dict[str, np.ndarray] = {}
    index = ck.ItemIndex.load(
        folder, query_vectors={"vectors": lambda texts: np.stack([asked[t] for t in texts])}
    )

    class Numbers:
        def __len__(self):
            return index.n

        def __getitem__(self, i):
            return str(i)

    object.__setattr__(index.items, "texts", Numbers())
    return index, asked


def drawn(rows, count: int) -> np.ndarray:
    """Vectors of so many queries, around those of items."""
    some = np.random.default_rng(5).choice(rows.shape[0], 2000, replace=False)
    return around(rows.vectors(some).astype(np.float32), count, 7)


def scores_of(vector: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Scores (c,) of a query with items (c, d)."""
    target = np.random.default_rng(3).standard_normal((2, D)).astype(np.float32)
    return 10 * items @ vector + np.sin(9 * items @ target.T).sum(axis=1)


def measure(folder: Path, name: str, warm: int = 100, timed: int = 50, calls: int = 100) -> dict:
    """One method, in this process."""
    began = time.perf_counter()
    index, asked = opened(folder)
    took, rows = time.perf_counter() - began, index.store("vectors")
    spec, prior = METHODS[name]
    if not prior:
        index._parts.held.pop(f"artifacts/{NAME}", None)
    words = None
    if "bm25" in index.retrievers:
        words = Clock(index.retrievers["bm25"])
        index._parts.held["words/bm25"] = words

    def score(pairs):
        items = rows.vectors(np.array([int(text) for _, text in pairs])).astype(np.float32)
        return list(scores_of(asked[pairs[0][0]], items))

    searcher = ck.Searcher(index, ck.CallableScorer(score), spec, fuse=None)
    outside, apart = [], []
    for q, vector in enumerate(drawn(rows, warm + timed)):
        asked[f"query {q}"] = vector
        before = words.seconds if words else 0.0
        began = time.perf_counter()
        found = searcher.search(f"query {q}", 10, calls)
        spent = time.perf_counter() - began
        assert found.n_scored == calls
        in_words = (words.seconds if words else 0.0) - before
        outside.append(1000 * (spent - found.scoring_seconds - in_words))
        apart.append(1000 * in_words)
    later = outside[warm:]
    return {
        "n": index.n,
        "method": name,
        "spec": spec,
        "calls": calls,
        "open_seconds": took,
        "first_ms": outside[0],
        "ms": float(np.median(later)),
        "p95_ms": float(np.quantile(later, 0.95)),
        "bm25_ms": float(np.median(apart[warm:])),
        "memory_mb": memory_mb(),
        "cores": len(os.sched_getaffinity(0)),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
    }


def lost(folder: Path, count: int = 15) -> Iterator[dict]:
    """Recall of `axn` and `auto` without a prior, and where all lists are read."""
    index, asked = opened(folder)
    index._parts.held.pop(f"artifacts/{NAME}", None)
    rows = index.store("vectors")
    queries, exact = drawn(rows, count), np.empty((count, index.n), np.float32)
    for start in range(0, index.n, BLOCK):
        part = np.arange(start, min(start + BLOCK, index.n))
        items = rows.vectors(part).astype(np.float32)
        exact[:, part] = [scores_of(vector, items) for vector in queries]
    asked |= {str(q): vector for q, vector in enumerate(queries)}
    scorer = ck.CallableScorer(
        lambda pairs: list(exact[int(pairs[0][0]), [int(text) for _, text in pairs]])
    )
    for spec, calls, probes in product(("axn", "auto"), (100, 500), (nearest.PROBES, index.n)):
        searcher, found, ms = ck.Searcher(index, scorer, spec, fuse=None), [], []
        for text in asked:
            with patch.object(nearest, "PROBES", probes):
                began = time.process_time()
                hits = searcher.search(text, calls, calls)[0]
            ms.append(1000 * (time.process_time() - began))
            found.append(index.items.positions([hit.id for hit in hits]))
        row = {"n": index.n, "method": spec, "calls": calls, "all lists": probes == index.n}
        for k in (10, 100):
            truth = top_k(exact, k).items
            row[f"recall {k}"] = round(100 * float(recall(np.array(found), truth).mean()), 1)
        yield row | {"queries": count, "ms": round(float(np.median(ms)), 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", choices=["build", "measure", "lost"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--real", type=Path)
    parser.add_argument("--n", type=int, default=1_000_000)
    parser.add_argument("--method")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    folder = options.folder / str(options.n)
    if options.step == "build":
        build(folder, options.real, options.n)
    elif options.step == "lost":
        for row in lost(folder):
            print(json.dumps(row), flush=True)
    elif options.method:
        print(json.dumps(measure(folder, options.method)))
    else:
        rows = []
        for name in METHODS:
            command = [
                sys.executable,
                __file__,
                "measure",
                options.folder,
                "--n",
                str(options.n),
                "--method",
                name,
            ]
            done = subprocess.run(
                list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True
            )
            rows.append(json.loads(done.stdout.splitlines()[-1]))
            print(rows[-1], flush=True)
        if options.out:
            kept = json.loads(options.out.read_text()) if options.out.exists() else []
            kept = [row for row in kept if row["n"] != options.n]
            options.out.write_text(
                json.dumps(sorted(kept + rows, key=lambda r: r["n"]), indent=1) + "\n"
            )


if __name__ == "__main__":
    main()
