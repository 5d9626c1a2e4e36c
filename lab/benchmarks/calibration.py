"""Expected calibration error of the ten items returned, on held-out queries of stored matrices.

python lab/benchmarks/calibration.py MATRIX.npz ... writes benchmarks/results/calibration.json and
docs/images/reliability.png. Every query is held out once, of five parts; the parts before are
fitted to the other four, their choice of a way by cross-validation included."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.evaluation.task import Judgements
from crossknn.fitting.calibration import FOLDS, calibration_error, fit_scores, reliability
from crossknn.methods import DEFAULT
from crossknn.plots import reliability_plot
from crossknn.search.loop import simulate
from crossknn_lab.stored import StoredMatrix

ROOT, BUDGET, DRAWS = Path(__file__).parents[2], 100, 1000


def interval(chance, relevant):
    """Of the error, over queries: probabilities (m, 10), and which items are relevant."""
    rng, found = np.random.default_rng(0), []
    for _ in range(DRAWS):
        rows = rng.integers(len(chance), size=len(chance))
        found.append(calibration_error(chance[rows].ravel(), relevant[rows].ravel()))
    return np.round(np.quantile(found, [0.025, 0.975]), 4).tolist()


rows = []
for file in map(Path, sys.argv[1:]):
    matrix = StoredMatrix.load(file)
    queries = matrix.queries(slice(0, len(matrix.scores)))
    best = simulate(ck.parse_method(DEFAULT).plan(matrix, BUDGET, 0), queries, matrix.scores)
    best = best.best(10)
    judged = Judgements.from_matrix(replace(matrix, n_anchors=0)).rows
    both = zip(judged, best.items.tolist(), strict=True)
    relevant = np.array([[row.get(str(i), 0) > 0 for i in items] for row, items in both])
    scores = best.scores.astype(np.float64)
    chance, none, ways = np.empty(scores.shape), np.empty(len(scores)), []
    fold = np.random.default_rng(0).permutation(len(scores)) % FOLDS
    for part in range(FOLDS):
        out = fold == part
        fitted, found = fit_scores(scores[~out], relevant[~out])
        chance[out] = fitted.probabilities(scores[out], scores[out])
        none[out] = fitted.none_relevant(scores[out])
        ways.append(found["way"])
    logistic, missed = np.exp(-np.logaddexp(0, -scores)), ~relevant.any(axis=1)
    row = {
        "matrix": file.stem,
        "queries": len(scores),
        "relevant": round(float(relevant.mean()), 4),
    }
    row["ways"] = ways
    for kind, p in (("", chance), ("_logistic", logistic)):
        row["ece" + kind] = round(calibration_error(p.ravel(), relevant.ravel()), 4)
        row[f"ece{kind}_interval"] = interval(p, relevant)
        row[f"ece{kind}_first"] = round(calibration_error(p[:, 0], relevant[:, 0], 5), 4)
        row["brier" + kind] = round(float(np.square(p - relevant).mean()), 4)
        row["reliability" + kind] = reliability(p.ravel(), relevant.ravel()).round(4).tolist()
    row["none_relevant"] = round(float(missed.mean()), 4)
    row["none_relevant_expected"] = round(float(none.mean()), 4)
    row["none_relevant_ece"] = round(calibration_error(none, missed, 5), 4)
    rows.append(row)
    print({k: v for k, v in row.items() if "reliab" not in k}, flush=True)
(ROOT / "benchmarks/results/calibration.json").write_text(json.dumps(rows, indent=1) + "\n")
shown = next((row for row in rows if row["matrix"] == "scifact"), rows[0])
title = f"Reliability on held-out queries of {shown['matrix']}"
reliability_plot(shown, ROOT / "docs/images/reliability.png", title=title)
