"""What searching a pool by approximate vector search loses against predicting all items.

    python lab/benchmarks/pool.py [--matrices FOLDER] [--queries N] [--out FILE]

On each stored matrix every method searches twice: with all items predicted each round and exact
products, and over a pool of 400 items of each retriever, or three for each call, that grows by what
the linear part of the prediction ranks first, found by the codes of faiss (all lists are read). The difference in recall is given with its standard error
over queries. The approximate index is built whatever the number of items. Rows of other methods stay in FILE.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from crossknn.index.nearest import FaissStore, build_lists
from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn.methods.base import PER_CALL, POOL
from crossknn.search.loop import simulate
from crossknn_lab.stored import StoredMatrix

ROOT = Path(__file__).parents[2]
METHODS = {
    "kriging": ("kriging", "kriging(shortlist=1600)"),
    "kriging without anchors": (
        "kriging(use_anchors=false)",
        "kriging(use_anchors=false, shortlist={pool})",
    ),
    "gp": ("gp", "gp(shortlist={pool})"),
    "gp(mean=retriever)": ("gp(mean=retriever)", "gp(mean=retriever, shortlist={pool})"),
    "axn": ("axn", "axn"),
    "tour": ("tour", "tour"),
}
BUDGETS, KS = (50, 100, 200, 500), (10, 100)


class Approximate:
    """A stored matrix whose vectors, and points, faiss searches."""

    def __init__(self, matrix: StoredMatrix) -> None:
        self._matrix, self._lists = matrix, {}

    def __getattr__(self, name):
        return getattr(self._matrix, name)

    def store(self, name):
        return self._found(name, self._matrix.vectors[name], True)

    def lists(self, name, rows=None):
        return self._found(name, self._matrix.vectors[name] if rows is None else rows, False)

    def _found(self, name, rows, rescored):
        if name not in self._lists:
            self._lists[name] = build_lists(rows)
        key = name, rescored
        if key not in self._lists:
            self._lists[key] = FaissStore(rows, self._lists[name], rescored=rescored)
            self._lists[key].values = None
        return self._lists[key]


def difference(name, matrix, parts):
    """For each budget and k, the recall with all items and the loss, over the queries of parts."""
    found = {}
    for budget in BUDGETS:
        pool = max(POOL, PER_CALL * budget)
        full, pooled = (parse_method(spec.format(pool=pool)) for spec in METHODS[name])
        recalls = {k: [] for k in KS}
        for index, queries, scores in parts:
            both = []
            for method, over in ((full, index), (pooled, Approximate(index))):
                chosen = replace(method, k=100) if hasattr(method, "k") and budget > 100 else method
                plan = chosen.plan(over, min(budget, matrix.n), 0)
                best = simulate(plan, queries, scores).best(max(KS)).items
                both.append(best)
            for k in KS:
                truth = top_k(scores, k).items
                shares = [
                    [np.isin(t, b[:k]).mean() for t, b in zip(truth, best, strict=True)]
                    for best in both
                ]
                recalls[k].append(np.transpose(shares))
        for k, values in recalls.items():
            share = 100 * np.concatenate(values)
            loss = share[:, 0] - share[:, 1]
            found[f"{budget} calls, k={k}"] = {
                "full": float(share[:, 0].mean()),
                "loss": float(loss.mean()),
                "error": float(loss.std() / np.sqrt(len(loss))),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", type=Path, nargs="*", default=[ROOT / "benchmarks" / "data"])
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--methods", nargs="*", default=list(METHODS))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/pool.json")
    options = parser.parse_args()
    made = json.loads(options.out.read_text())["rows"] if options.out.exists() else []
    rows = [row for row in made if row["method"] not in options.methods]
    paths = [p for folder in options.matrices for p in sorted(folder.glob("*.npz"))]
    for path in paths:
        matrix = StoredMatrix.load(path)
        if "dense" not in matrix.vectors or matrix.n < 2000:
            continue
        parts = [matrix.rows(0, options.queries)]
        for name in options.methods:
            if name == "kriging" and not matrix.n_anchors:
                continue
            found = difference(name, matrix, parts)
            row = {"matrix": path.stem, "n": matrix.n, "method": name, "queries": len(parts[0][1])}
            rows.append(row | {"cells": found})
            worst = {
                k: max(c["loss"] for s, c in found.items() if s.endswith(f"k={k}")) for k in KS
            }
            print(
                f"{path.stem:18} {matrix.n:6} {name:26}",
                *(f"k={k}: {w:+.2f}" for k, w in worst.items()),
                flush=True,
            )
    options.out.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
