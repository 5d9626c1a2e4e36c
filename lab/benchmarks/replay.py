"""Recall of every method on stored score matrices, beside the figures a right implementation gives.

    python lab/benchmarks/replay.py PATH_OF_MATRICES [--budgets 50,100,200,500]

Writes benchmarks/results/replay.json; `lab/benchmarks/make_docs.py` makes the tables of it. What
is there already is kept, unless `--again`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kept_rows import KeptRows, add_options

from crossknn.evaluation.replay import replay
from crossknn.indexes.stored import StoredMatrix
from crossknn.methods import methods

SPECS = """
rnr(first=bm25)
rnr(first=de)
rnr(first=hybrid(bm25, de))
anncur(anchors=0.5)
anncur(anchors=0.5, rcond=0.01)
anncur(anchors=0.5, first=de)
anncur(anchors=0.5, center=none)
anncur(anchors=0.5, center=none, rcond=0.01)
adacur(first=de, rounds=5)
adacur(first=de, rounds=5, center=none)
adacur(first=de, rounds=5, rcond=0.03)
adacur(first=de, rounds=5, center=none, rcond=0.03)
adacur(first=de, rounds=5, split=0.5)
adacur(first=de, rounds=5, sample=softmax)
adacur(first=random, rounds=5)
axn(first=de, rounds=5, blend=0.0)
axn(first=de, rounds=5, blend=0.5)
axn(first=de, rounds=5, blend=0.8)
axn(first=de, rounds=10, blend=0.5)
axn(first=hybrid(bm25, de), rounds=10, blend=0.5)
axn(first=de, rounds=10, blend=0.5, rcond=0.01)
axn(first=de, rounds=10, ridge=0.1)
axn(first=de, rounds=10, ridge=0.3)
axn(first=de, rounds=10, ridge=1.0)
axn(first=hybrid(bm25, de), rounds=10, ridge=0.3)
tour(first=de, loss=kl, rounds=5)
tour(first=de, loss=mse, rounds=5)
tour(first=de, loss=kl, rounds=10, lr=1.0)
gar(first=de, neighbours=16, batch=10)
gar(first=hybrid(bm25, de), neighbours=16, batch=10)
gar(first=de, affinity=set)
gar(first=de, affinity=set, softmax=raw)
ladr(first=de)
ladr(first=de, mode=proactive)
greedy(first=de)
feedback(first=de)
feedback(first=de, sample=0.1, rounds=9)
refit(first=de)
refit(first=de, sample=0.1, rounds=9)
gp(first=de)
gp(first=de, query=true)
gp(first=de, scale=2.0, mean=average)
gp(first=de, scale=2.0, mean=first)
kriging(first=de, anchors=false)
kriging(first=hybrid(bm25, de), anchors=false)
kriging(first=de, rounds=5)
kriging(first=de)
kriging(first=hybrid(bm25, de))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", type=Path, help="the folder of .npz files")
    parser.add_argument("--budgets", default="50,100,200,500")
    parser.add_argument("--k", default="1,10,100")
    parser.add_argument("--seeds", type=int, default=3, help="for the methods that draw at random")
    add_options(parser, "replay")
    options = parser.parse_args()
    budgets = [int(b) for b in options.budgets.split(",")]
    ks = [int(k) for k in options.k.split(",")]
    kept = KeptRows(options.out, again=options.again)
    for path in sorted(options.matrices.glob("*.npz")):
        matrix = StoredMatrix.load(path)
        known = {row["method"] for row in kept.of(path.stem)}
        for name, method in methods(SPECS).items():
            if name in known:
                continue
            random = "random" in name or "sample=softmax" in name
            rows = [
                row.as_dict()
                for seed in range(options.seeds if random else 1)
                for row in replay(matrix, {name: method}, budgets, ks, seed=seed)
            ]
            kept.add(path.stem, rows)
            print(path.stem, name, flush=True)


if __name__ == "__main__":
    main()
