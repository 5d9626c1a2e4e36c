"""What fitting costs: seconds, and the memory that it needs beside its inputs.

    python lab/benchmarks/fitting.py [--out FILE] [--sizes 20000 100000 1000000]
    python lab/benchmarks/fitting.py --case anchors --n 100000

Inputs are synthetic (seeded), lie in files and are memory-mapped: item vectors (n, d) in float16,
exact scores (q, n) of anchors in float32, and 30,000 pairs of 300 other queries. Two retrievers,
by vectors. Cases:

    anchors    kriging's prior from the anchors (`fit_anchors`)
    searches   the prior from the pairs (`fit_sparse`)
    both       the prior from both
    kernel     the prior's kernel parameters, from searches of the anchors
    als        item vectors from the pairs, by alternating least squares
    scales     the scales of the index's vectors, by the anchors

Each case runs in a process of its own. `memory` is the most that was allocated beside the inputs
at any time (`RssAnon`, read every 10 ms); `peak` is VmHWM, in which pages of mapped files count
that the system may drop at any time.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from overhead import SyntheticIndex

from crossknn.fitting.anchors import _scales
from crossknn.fitting.factors import Targets, als
from crossknn.fitting.kriging import from_searches
from crossknn.methods.kriging import fit_anchors
from crossknn.scores.store import SparseScores
from crossknn.spec import parse
from crossknn.types import Anchors, Pairs, Queries

PAIRS, SEARCHED = 30_000, 300
BLOCK = 10_000


def memory_mb(name: str) -> float:
    """`VmHWM`, `RssAnon`, ... of this process."""
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


class Watched:
    """How much memory was allocated at most, above that at the start."""

    def __enter__(self) -> Watched:
        self.before = self.most = memory_mb("RssAnon")
        self.began, self._ended = time.perf_counter(), threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def _watch(self) -> None:
        while not self._ended.wait(0.01):
            self.most = max(self.most, memory_mb("RssAnon"))

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self.began
        self._ended.set()


def make_inputs(folder: Path, n: int, d: int, q: int) -> None:
    """Files of item vectors in two spaces, and of anchors' scores that follow the first."""
    rng = np.random.default_rng(0)
    likes = rng.standard_normal((q, d), np.float32)
    np.save(folder / "likes.npy", likes)
    shapes = {"dense": (n, d), "other": (n, d), "scores": (q, n)}
    kinds = {"scores": np.float32}
    dense, other, scores = (
        np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kinds.get(name, np.float16), shape)
        for name, shape in shapes.items()
    )
    mix = rng.standard_normal((64, d), np.float32)  # vectors lie near 64 directions
    for start in range(0, n, BLOCK):
        part = slice(start, min(start + BLOCK, n))
        size = part.stop - start
        items = rng.standard_normal((size, 64), np.float32) @ mix / 8
        items += rng.standard_normal((size, d), np.float32)
        items /= np.linalg.norm(items, axis=1, keepdims=True)
        dense[part], other[part] = items, items + 0.03 * rng.standard_normal((size, d), np.float32)
        own = rng.standard_normal(size, np.float32) + rng.standard_normal((q, size), np.float32)
        scores[:, part] = likes @ items.T + 0.5 * own


def run(case: str, folder: Path, n: int) -> None:
    """One case, with inputs that are mapped."""
    dense, other, scores = (
        np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("dense", "other", "scores")
    )
    likes = np.load(folder / "likes.npy")
    rng, d = np.random.default_rng(1), dense.shape[1]
    searched = likes[rng.integers(len(likes), size=SEARCHED)]
    searched = searched + rng.standard_normal((SEARCHED, d), np.float32)
    texts = [f"query {row}" for row in range(SEARCHED)]
    per = min(PAIRS // SEARCHED, n // 2)
    pairs = Pairs(
        np.repeat(np.arange(SEARCHED), per),
        np.concatenate([np.sort(rng.choice(n, per, replace=False)) for _ in range(SEARCHED)]),
    )
    exact = np.einsum("ed,ed->e", searched[pairs.query], dense[pairs.item].astype(np.float32))
    sparse = SparseScores.of(texts, n, pairs, exact + rng.standard_normal(len(exact), np.float32))
    names = [f"anchor {row}" for row in range(len(likes))]
    known = {text: row for texts, rows in ((names, likes), (texts, searched)) for text, row in
             zip(texts, rows, strict=True)}  # fmt: skip
    asked = Queries(names)
    index = SyntheticIndex(dense, Anchors(scores, 0.0, asked))
    index.vectors["other"] = other
    index.query_vectors = lambda queries, name: np.stack([known[text] for text in queries.texts])
    retriever = parse("hybrid(dense, other)")
    if case == "anchors":
        fit_anchors(index, retriever, 0)
    elif case in ("searches", "both"):
        if case == "searches":
            index.anchors = None
        from_searches(index, sparse, retriever)
    elif case == "als":
        als(Targets.of(sparse, dense, searched))
    else:
        _scales(index, scores, names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[20_000, 100_000, 1_000_000])
    parser.add_argument("--cases", nargs="*", default=[*CASES])
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--d", type=int, default=384)
    parser.add_argument("--anchors", type=int, default=100)
    parser.add_argument("--case", choices=CASES, help="only this one, in this process")
    parser.add_argument("--folder", type=Path, help="of inputs; made if it lacks them")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    if options.case:
        with Watched() as watched:
            run(options.case, options.folder, options.n)
        found = {"case": options.case, "n": options.n, "seconds": watched.seconds}
        found |= {"memory_mb": watched.most - watched.before, "peak_mb": memory_mb("VmHWM")}
        print(json.dumps(found))
        return
    rows = []
    for n in options.sizes:
        with tempfile.TemporaryDirectory() as made:
            folder = (options.folder and options.folder / str(n)) or Path(made)
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / "scores.npy").exists():
                make_inputs(folder, n, options.d, options.anchors)
            for case in options.cases:
                command = [sys.executable, __file__, "--case", case, f"--n={n}"]
                command += [f"--folder={folder}"]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                print(done.stdout.splitlines()[-1], flush=True)
                rows.append(json.loads(done.stdout.splitlines()[-1]))
    setting = {"d": options.d, "anchors": options.anchors, "pairs": PAIRS}
    threads = os.environ.get("OMP_NUM_THREADS")
    found = {"threads": threads, **setting, "rows": rows}
    options.out.write_text(json.dumps(found, indent=1) + "\n")


CASES = ("anchors", "searches", "both", "als", "scales")
OUT = Path(__file__).parents[2] / "benchmarks/results/fitting.json"

if __name__ == "__main__":
    main()
