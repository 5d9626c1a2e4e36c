"""What weights by agreement are worth without judgements, beside the shipped ones: nDCG@10 of the label
among the first 100 of `hybrid`, over all queries of a stored matrix.

python lab/benchmarks/agreement.py MATRIX.npz ... writes benchmarks/results/agreement.json."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.fitting.fusion import BM25, VECTORS, weigh
from crossknn.methods.rerank import Rerank
from crossknn.retrievers.specs import FUSION
from crossknn.search.fusion import open_fusion
from crossknn.search.loop import simulate
from crossknn.types import Artifact
from crossknn_lab.stored import StoredMatrix

SHIPPED = {"dense": VECTORS, "bm25": BM25}
found = {}
for file in map(Path, sys.argv[1:]):
    matrix = replace(StoredMatrix.load(file), n_anchors=0)
    scores, queries = matrix.scores, matrix.queries(slice(0, len(matrix.scores)))
    fitted = weigh(matrix, queries, lambda pairs, scores=scores: scores[pairs.query, pairs.item])
    index = replace(matrix, artifacts={FUSION: Artifact(fitted, {})})
    plan = Rerank(retriever="hybrid").plan(index, 100, 0)
    task, row = TaskMeasures(Judgements.from_labels(matrix.labels), ["nDCG@10"]), {}
    kinds = {"cross-encoder": None, "shipped weights": SHIPPED, "by agreement": fitted["weights"]}
    for name, weights in kinds.items():
        fusion = open_fusion(index, weights, 0)
        picks = simulate(fusion.plan(plan) if fusion else plan, queries, scores).picks()
        order = np.argsort(-picks.final, axis=1, kind="stable")  # ties: by hybrid
        values = task.values(np.take_along_axis(picks.items, order, axis=1))["nDCG@10"]
        row[name] = round(float(np.nanmean(values)), 4)
    found[file.stem] = row | {"weights": [round(w, 3) for w in fitted["weights"].values()]}
out = Path(__file__).parents[2] / "benchmarks/results/agreement.json"
out.write_text(json.dumps(found, indent=1) + "\n")
