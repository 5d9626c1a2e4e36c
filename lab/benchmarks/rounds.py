"""Recall of `auto` by how many rounds it takes, without other queries, as a service of a new index has it.

    python lab/benchmarks/rounds.py [--matrices FOLDER...] [--queries N] [--out FILE]

Each query of a stored matrix is searched with 100 calls. Recall is the mean of the matrices', in points, and so is the
difference from 20 rounds, with its 95% interval over queries (the bootstrap of `crossknn.evaluation.measures`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from crossknn.evaluation.measures import bootstrap, paired, recall
from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn.search.loop import simulate
from crossknn_lab.stored import StoredMatrix

ROOT = Path(__file__).parents[2]
ROUNDS, KS, CALLS = (20, 10, 5, 3), (10, 100), 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--matrices", type=Path, nargs="*", default=[ROOT / "benchmarks" / "data"])
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks/results/rounds.json")
    options = parser.parse_args()
    found = {(rounds, k): [] for rounds in ROUNDS for k in KS}
    names = []
    for path in (path for folder in options.matrices for path in sorted(folder.glob("*.npz"))):
        matrix = StoredMatrix.load(path)
        if "dense" not in matrix.vectors or not 2000 <= matrix.n <= 50_000:
            continue  # of more items a pool is predicted
        index, queries, scores = matrix.rows(0, options.queries)
        names.append(path.stem)
        for rounds in ROUNDS:
            method = parse_method(f"auto(use_anchors=false, rounds={rounds})")
            best = simulate(method.plan(index, CALLS, 0), queries, scores).best(max(KS)).items
            for k in KS:
                found[rounds, k].append(100 * recall(best[:, :k], top_k(scores, k).items))
        print(path.stem, *(f"{found[rounds, 10][-1].mean():.1f}" for rounds in ROUNDS), flush=True)
    rows = []
    for rounds in ROUNDS:
        row = {"rounds": rounds}
        for k in KS:
            shares, whole = found[rounds, k], found[ROUNDS[0], k]
            row[f"k={k}"] = bootstrap(*shares).mean
            if rounds != ROUNDS[0]:
                less = paired(*(a - b for a, b in zip(shares, whole, strict=True)))
                row[f"k={k}, difference"] = [less.difference, less.low, less.high]
        rows.append(row)
    options.out.write_text(json.dumps({"matrices": names, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
