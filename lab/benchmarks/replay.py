"""Recall of every method on stored score matrices, beside the figures a right implementation gives.

    python lab/benchmarks/replay.py PATH_OF_MATRICES [--budgets 50,100,200,500]

Writes benchmarks/results/replay.json; `lab/benchmarks/docs.py` makes the tables of it. What
is there already is kept, unless `--again`.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from crossknn.evaluation.replay import replay
from crossknn.index.stored import StoredMatrix
from crossknn.methods import methods

RESULTS = Path(__file__).parents[2] / "benchmarks/results/replay.json"

SPECS = """
rerank(retriever=bm25)
rerank(retriever=dense)
rerank(retriever=hybrid(bm25, dense))
anncur(anchors=0.5)
anncur(anchors=0.5, rcond=0.01)
anncur(anchors=0.5, retriever=dense)
anncur(anchors=0.5, center=none)
anncur(anchors=0.5, center=none, rcond=0.01)
adacur(retriever=dense, rounds=5)
adacur(retriever=dense, rounds=5, center=none)
adacur(retriever=dense, rounds=5, rcond=0.03)
adacur(retriever=dense, rounds=5, center=none, rcond=0.03)
adacur(retriever=dense, rounds=5, split=0.5)
adacur(retriever=dense, rounds=5, sample=softmax)
adacur(retriever=random, rounds=5)
axn(retriever=dense, rounds=5, blend=0.0)
axn(retriever=dense, rounds=5, blend=0.5)
axn(retriever=dense, rounds=5, blend=0.8)
axn(retriever=dense, rounds=10, blend=0.5)
axn(retriever=hybrid(bm25, dense), rounds=10, blend=0.5)
axn(retriever=dense, rounds=10, blend=0.5, rcond=0.01)
axn(retriever=dense, rounds=10, ridge=0.1)
axn(retriever=dense, rounds=10, ridge=0.3)
axn(retriever=dense, rounds=10, ridge=1.0)
axn(retriever=hybrid(bm25, dense), rounds=10, ridge=0.3)
tour(retriever=dense, loss=kl, rounds=5)
tour(retriever=dense, loss=mse, rounds=5)
tour(retriever=dense, loss=kl, rounds=10, lr=1.0)
gar(retriever=dense, neighbours=16, batch=10)
gar(retriever=hybrid(bm25, dense), neighbours=16, batch=10)
gar(retriever=dense, affinity=set)
gar(retriever=dense, affinity=set, softmax=raw)
ladr(retriever=dense)
ladr(retriever=dense, mode=proactive)
greedy(retriever=dense)
feedback(retriever=dense)
feedback(retriever=dense, sample=0.1, rounds=9)
refit(retriever=dense)
refit(retriever=dense, sample=0.1, rounds=9)
gp(retriever=dense)
gp(retriever=dense, query=true)
gp(retriever=dense, scale=2.0, mean=average)
gp(retriever=dense, scale=2.0, mean=first)
kriging(retriever=dense, anchors=false)
kriging(retriever=hybrid(bm25, dense), anchors=false)
kriging(retriever=dense, rounds=5)
kriging(retriever=dense)
kriging(retriever=hybrid(bm25, dense))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", type=Path, help="the folder of .npz files")
    parser.add_argument("--budgets", default="50,100,200,500")
    parser.add_argument("--k", default="1,10,100")
    parser.add_argument("--seeds", type=int, default=3, help="for the methods that draw at random")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    budgets = [int(b) for b in options.budgets.split(",")]
    ks = [int(k) for k in options.k.split(",")]
    kept = options.out.exists() and not options.again
    found = json.loads(options.out.read_text()) if kept else {}
    for path in sorted(options.matrices.glob("*.npz")):
        matrix = StoredMatrix.load(path)
        made = found.setdefault(path.stem, [])
        known = {row["method"] for row in made}
        for name, method in methods(SPECS).items():
            if name in known:
                continue
            random = "random" in name or "sample=softmax" in name
            made += [
                row.as_dict()
                for seed in range(options.seeds if random else 1)
                for row in replay(matrix, {name: method}, budgets, ks, seed=seed)
            ]
            options.out.write_text(json.dumps(found) + "\n")
            print(path.stem, name, flush=True)


if __name__ == "__main__":
    main()
