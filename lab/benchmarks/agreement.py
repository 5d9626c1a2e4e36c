"""Weights of a fusion by agreement, without judgements, beside the shipped ones: nDCG@10 of the label
among the first 100 of `hybrid`, all queries of a stored matrix.

python lab/benchmarks/agreement.py MATRIX.npz ... writes benchmarks/results/agreement.json."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.fitting.fusion import BM25, VECTORS, by_agreement
from crossknn.index.stored import StoredMatrix

SHIPPED = {"dense": VECTORS, "bm25": BM25}
found = {}
for file in map(Path, sys.argv[1:]):
    matrix = replace(StoredMatrix.load(file), n_anchors=0)
    queries = matrix.queries(slice(0, len(matrix.scores)))
    kinds = [matrix.scores, *(ck.open_retriever(matrix, n).scores(queries) for n in SHIPPED)]
    first = ck.open_retriever(matrix, "hybrid").top(queries, 100).items
    drawn = np.random.default_rng(0).integers(matrix.n, size=first.shape)
    items = np.concatenate([first, drawn], axis=1)
    stack = np.stack([np.take_along_axis(kind, items, axis=1) for kind in kinds]).astype(float)
    fitted, deviations = by_agreement(stack, 100, [*SHIPPED.values()])
    unit = stack[:, :, :100] / deviations[:, None, None]
    row = {}
    for name, weights in (
        ("cross-encoder", (0, 0)),
        ("shipped weights", SHIPPED.values()),
        ("by agreement", fitted.tolist()),
    ):
        final = unit[0] + np.tensordot([*weights], unit[1:], axes=1)
        order = np.argsort(-final, axis=1, kind="stable")[:, :10]
        hits = np.take_along_axis(first, order, axis=1) == matrix.labels[:, None]
        ndcg = hits[matrix.labels >= 0] @ (1 / np.log2(np.arange(10) + 2))
        row[name] = round(float(ndcg.mean()), 4)
    found[file.stem] = row | {"weights": [round(w, 3) for w in fitted]}
out = Path(__file__).parents[2] / "benchmarks/results/agreement.json"
out.write_text(json.dumps(found, indent=1) + "\n")
