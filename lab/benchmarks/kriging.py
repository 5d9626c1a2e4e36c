"""Kriging in parts: what each part is worth, how much settings matter, and what it promises.

    python lab/benchmarks/kriging.py scifact.npz wordnet-act.npz ...

Writes benchmarks/results/kriging.json; what is there already is kept, unless `--again`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from kept_rows import KeptRows, add_options
from threadpoolctl import threadpool_limits

from crossknn.evaluation.replay import check, outcome, parts_of, truth_of
from crossknn.index.base import Index
from crossknn.index.stored import StoredMatrix
from crossknn.methods import Method, method
from crossknn.methods.kriging import Kriging, Prior
from crossknn.spec import Spec

KS = (1, 10, 100)
BUDGETS = (50, 100, 200, 500)
FULL = "kriging(retriever=dense)"


@dataclass(frozen=True, kw_only=True)
class FlatPrior(Kriging):
    """Nothing is known of a query's weights before its scores."""

    def prior(self, index: Index, seed: int) -> Prior | None:
        found = super().prior(index, seed)
        return found and replace(found, precision=np.zeros_like(found.precision))


@dataclass(frozen=True, kw_only=True)
class NoMean(Kriging):
    """The items' mean scores say nothing: their column is 0."""

    def prior(self, index: Index, seed: int) -> Prior | None:
        found = super().prior(index, seed)
        return found and replace(found, mean=np.zeros_like(found.mean))


PARTS: dict[str, Method] = {
    "all of it": method(FULL),
    "without the prior of the weights": FlatPrior(first=Spec("dense")),
    "without the items' means": NoMean(first=Spec("dense")),
    "without the anchors' covariance": method("kriging(retriever=dense, share=0)"),
    "without content": method("kriging(retriever=dense, smooth=0.001, linear=0.001, noise=100)"),
    "without anchors": method("kriging(retriever=dense, anchors=false)"),
}
SETTINGS = [
    *(f"kriging(retriever=dense, rank={rank})" for rank in (10, 30, 300)),
    *(f"kriging(retriever=dense, share={share})" for share in (0.4, 1.0)),
    *(f"kriging(retriever=dense, scale={scale})" for scale in (1.0, 4.0)),
    *(f"kriging(retriever=dense, noise={noise})" for noise in (0.06, 1.0)),
    *(f"kriging(retriever=dense, beta={beta})" for beta in (0.5, 1.0)),
    *(f"kriging(retriever=dense, rounds={rounds})" for rounds in (3, 5, 20)),
    *(f"kriging(retriever=dense, shortlist={size})" for size in (500, 1000, 2000)),
    *("kriging(retriever=bm25)", "kriging(retriever=hybrid(bm25, dense))"),
]
TARGETS = (0.8, 0.9, 0.95)
TARGET = "kriging(retriever=dense, rounds=20, target_recall={}, k={})"


def searches(matrix: StoredMatrix) -> Iterator[tuple[str, Method, int]]:
    for name, one in PARTS.items():
        for budget in BUDGETS:
            yield name, one, budget
    for spec in SETTINGS:
        if "bm25" in matrix.firsts or "bm25" not in spec:
            for budget in BUDGETS:
                yield spec, method(spec), budget
    for budget in (75, 100, 125, 150, 175, 200, 225, 250, 300, 350, 400, 500):
        spec = f"kriging(retriever=dense, rounds={budget // 25})"
        yield f"fixed {spec}", method(spec), budget
    for k in (10, 50):
        for target in TARGETS:
            spec = TARGET.format(target, k)
            yield spec, method(spec), 500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", type=Path, nargs="+")
    add_options(parser, "kriging")
    options = parser.parse_args()
    kept = KeptRows(options.out, again=options.again)
    for path in options.matrices:
        matrix = StoredMatrix.load(path)
        known = {(row["name"], row["budget"]) for row in kept.of(path.stem)}
        parts = parts_of(matrix, matrix.n_tests)
        truth = truth_of(parts, max(KS))
        for name, one, budget in searches(matrix):
            if (name, budget) in known:
                continue
            with threadpool_limits(1):
                check(parts, {name: one}, budget, 0)
                made = outcome(name, one, parts, truth, budget=budget, ks=(*KS, 50))
            row = {
                "name": name,
                "budget": budget,
                "calls": made.calls.tolist(),
                "seconds": float(made.seconds.mean()),
                "recall": {k: values.tolist() for k, values in made.recall.items()},
            }
            kept.add(path.stem, [row])
            print(path.stem, name, budget, flush=True)


if __name__ == "__main__":
    main()
