"""How many items above a score are missing, and how many are expected to be, on test queries.

python lab/benchmarks/min_score.py MATRIX.npz ... writes benchmarks/results/min_score.json.
Thresholds are percentiles of the anchors' scores. `error` is expected / missing - 1 in the mean
over queries, with its 95% interval over queries; `normal` the same without calibration."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.index.stored import StoredMatrix
from crossknn.search.loop import simulate
from crossknn.search.missing import expected_missing, rehearse

METHODS, BUDGETS, PERCENTILES = ("kriging", "gp"), (100, 50, 200), (99, 99.5, 99.9)
OUT = Path(__file__).parents[2] / "benchmarks/results/min_score.json"


def error(expected, missing, rng):
    """Relative error of the mean, and its interval; None where nothing is missing."""
    drawn = rng.integers(len(missing), size=(2000, len(missing)))
    ratios = expected[drawn].sum(axis=1) / np.maximum(missing[drawn].sum(axis=1), 1e-9) - 1
    if not missing.sum():
        return None
    low, high = np.quantile(ratios, [0.025, 0.975])
    return np.round([expected.sum() / missing.sum() - 1, low, high], 3).tolist()


rows = []
for budget, file, name in product(BUDGETS, map(Path, sys.argv[1:]), METHODS):
    matrix, method = StoredMatrix.load(file), ck.parse_method(name)
    index, queries, scores = matrix.rows(0, matrix.n_tests)
    outcomes = rehearse(method.rehearsals(index, budget, 0), matrix.n_anchors)
    search = simulate(method.plan(index, budget, 0), queries, scores)
    scored = np.zeros(scores.shape, bool)
    np.put_along_axis(scored, search.picks().items, True, axis=1)
    for percentile in PERCENTILES:
        score = float(np.percentile(matrix.scores[: matrix.n_anchors], percentile))
        above, rng = scores >= score, np.random.default_rng(0)
        missing = np.count_nonzero(above & ~scored, axis=1)
        found = {"matrix": file.stem, "method": name, "budget": budget, "percentile": percentile}
        found |= {"score": round(score, 3), "queries": len(missing)}
        found["above"] = round(float(above.sum(axis=1).mean()), 2)
        found["missing"] = round(float(missing.mean()), 3)
        for kind, known in (("error", outcomes), ("normal", None)):
            expected = np.array(expected_missing(search, score, known), float)
            if kind == "error":
                found["expected"] = round(float(expected.mean()), 3)
            found[kind] = error(expected, missing, rng)
        rows.append(found)
        print(json.dumps(found), flush=True)
    OUT.write_text(json.dumps(rows, indent=1) + "\n")
