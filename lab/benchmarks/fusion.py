"""Fused search beside reranking by the shipped weights: nDCG@10 and R@20.

python lab/benchmarks/fusion.py MATRIX.npz ... writes benchmarks/results/fusion.json."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.evaluation.measures import paired
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.fitting.fusion import BM25, VECTORS
from crossknn.index.stored import StoredMatrix
from crossknn.retrievers.base import WeightedSum
from crossknn.search.fusion import Fusion
from crossknn.search.loop import simulate

DEFAULT = {"dense": VECTORS, "bm25": BM25}
rows = []
for file in map(Path, sys.argv[1:]):
    matrix = StoredMatrix.load(file)
    index, queries, scores = matrix.rows(0, matrix.n_tests)
    judged = Judgements.from_matrix(matrix)
    if judged is None:
        raise SystemExit(f"{file} has no judgements")
    task = TaskMeasures(judged, ["nDCG@10", "R@20"])
    known, asked = matrix.scores[: matrix.n_anchors], matrix.queries(slice(0, matrix.n_anchors))
    stages = [ck.open_retriever(index, name) for name in DEFAULT]
    first = ck.open_retriever(index, "hybrid").top(asked, 100).items
    all_scores = [known, *(stage.scores(asked) for stage in stages)]
    exact, *own = (np.take_along_axis(s, first, axis=1).std(axis=1).mean() for s in all_scores)
    weights = [w * exact / std for w, std in zip(DEFAULT.values(), own, strict=True)]
    fusion = Fusion(WeightedSum(stages, weights))
    for budget in (20, 50, 100):
        row = {"matrix": file.stem, "n": index.n, "queries": len(queries), "budget": budget}
        ndcg = {}
        for name in ("rerank", "axn(ridge=0.3)", "gp"):
            plan = ck.parse_method(name).plan(index, budget, 0)
            for kind, search in ((name, plan), (f"{name}, fused", fusion.plan(plan))):
                best = simulate(search, queries, scores).best(20).items
                values = task.values(best)
                ndcg[kind] = values["nDCG@10"]
                row[kind] = [round(float(np.nanmean(of)), 4) for of in values.values()]
        gain = paired(ndcg["axn(ridge=0.3), fused"] - ndcg["rerank, fused"])
        row["axn - rerank, fused"] = np.round([gain.difference, gain.low, gain.high], 4).tolist()
        rows.append(row)
out = Path(__file__).parents[2] / "benchmarks/results/fusion.json"
out.write_text(json.dumps(rows, indent=1) + "\n")
