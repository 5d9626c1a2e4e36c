"""What alternating least squares costs: seconds and memory on synthetic scores.

    python lab/benchmarks/als.py [--queries 10000] [--items 100000] [--per-query 100] [--d 128]

Asked: 10,000 train queries, 100,000 items and a million entries at d = 128 in under 60 s on 2
cores, with memory under 4 times the vectors. Items are drawn by popularity (a power law), scores
are low rank with noise. Memory is the peak of a process of its own: above what holds the vectors
and the scores, and with them.
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
from tempfile import TemporaryDirectory

import numpy as np

from crossknn.fitting.als import als
from crossknn.fitting.factors import Targets
from crossknn.scores.views import SparseScores


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make(folder: Path, options: argparse.Namespace) -> None:
    """Vectors of an encoder, and the entries of G, on the disk."""
    rng = np.random.default_rng(0)
    q, n, d = options.queries, options.items, options.d
    u, v = (rng.standard_normal((count, d), np.float32) / np.float32(d**0.5) for count in (q, n))
    popular = np.cumsum(1.0 / (np.arange(n) + 10.0) ** 0.7)
    item = np.stack([_draw(rng, popular, options.per_query) for _ in range(q)])
    item = rng.permutation(n)[item]
    item.sort(axis=1)
    query = np.repeat(np.arange(q), options.per_query)
    turn = np.eye(d) + 0.5 * rng.standard_normal((d, d)) / np.sqrt(d)
    moved = (u @ turn).astype(np.float32)
    score = np.concatenate([v[item[r]] @ moved[r] for r in range(q)])
    score = 10 * score + 0.2 * rng.standard_normal(len(score)) - 3
    for name, values in (("u", u), ("v", v), ("query", query), ("item", item.ravel())):
        np.save(folder / f"{name}.npy", values)
    np.save(folder / "score.npy", score.astype(np.float32))


def _draw(rng: np.random.Generator, popular: np.ndarray, count: int) -> np.ndarray:
    """`count` different items by popularity."""
    drawn = np.zeros(0, int)
    while len(drawn) < count:
        more = np.searchsorted(popular, rng.random(2 * count) * popular[-1])
        drawn = np.unique(np.concatenate([drawn, more]))
    return rng.permutation(drawn)[:count]


def measure(folder: Path, options: argparse.Namespace) -> dict[str, object]:
    """A fit in this process."""
    start = peak_mb()
    u, v, query, item, score = (
        np.load(folder / f"{name}.npy") for name in ("u", "v", "query", "item", "score")
    )
    scores = SparseScores([""] * len(u), len(v), query, item, score)
    loaded = peak_mb()
    began = time.process_time()
    fit = als(Targets.of(scores, v, u), sweeps=options.sweeps)
    worked = time.process_time() - began
    vectors = (u.nbytes + v.nbytes) / 2**20
    return {
        "seconds": round(fit.seconds, 2),
        "seconds_of_one_core": round(worked, 2),
        "sweeps": fit.details["sweeps"],
        "untouched": fit.untouched,
        "entries_of_the_most_popular": int(np.bincount(item).max()),
        "error_before": round(fit.initial, 5),
        "error_after": round(fit.held_out, 5),
        "vectors_mb": round(vectors, 1),
        "scores_mb": round((query.nbytes + item.nbytes + score.nbytes) / 2**20, 1),
        "memory_over_vectors": round((peak_mb() - loaded) / vectors, 2),
        "memory_with_input_over_vectors": round((peak_mb() - start) / vectors, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in (("queries", 10_000), ("items", 100_000), ("per-query", 100), ("d", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--sweeps", type=int, default=6)
    parser.add_argument("--make", type=Path, help="only put the data into this folder")
    parser.add_argument("--measure", type=Path, help="only fit the data in this folder")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[2] / "benchmarks/results/als.json"
    )
    options = parser.parse_args()
    if options.make:
        make(options.make, options)
        return
    if options.measure:
        print(json.dumps(measure(options.measure, options)))
        return
    sizes = {key: getattr(options, key) for key in ("queries", "items", "per_query", "d")}
    given = [f"--{key.replace('_', '-')}={size}" for key, size in sizes.items()]
    # Both in processes of their own: a child's peak memory begins with its parent's.
    command = [sys.executable, __file__, *given, "--sweeps", str(options.sweeps)]
    with TemporaryDirectory() as name:
        subprocess.run([*command, "--make", name], check=True)
        command += ["--measure", name]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    row = json.loads(done.stdout.splitlines()[-1])
    known = {"cores": len(os.sched_getaffinity(0)), **sizes, **row}
    print(json.dumps(known, indent=1))
    options.out.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
