"""How many items above a score are missing, and how many are expected to be, on test queries.

python lab/benchmarks/min_score.py MATRIX.npz ... writes benchmarks/results/min_score.json.
Thresholds are percentiles of the anchors' scores. `error` is expected / missing - 1 in the mean
over queries, with its 95% interval over queries; `_plain` is a search without the draw whose chances
are those of the normal distribution."""

from __future__ import annotations

import json
import sys
from itertools import product
from pathlib import Path

import numpy as np

import crossknn as ck
from crossknn.index.stored import StoredMatrix
from crossknn.search.loop import simulate
from crossknn.search.missing import expected_missing, normal, rehearse, with_draw

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
    plan = method.plan(index, budget, 0)
    plain = simulate(plan, queries, scores)
    for percentile in PERCENTILES:
        score = float(np.percentile(matrix.scores[: matrix.n_anchors], percentile))
        above, rng, chance = scores >= score, np.random.default_rng(0), outcomes.chance(score)
        search = simulate(with_draw(plan, chance, score, queries, 0), queries, scores)
        found = {"matrix": file.stem, "method": name, "budget": budget, "percentile": percentile}
        found |= {"score": round(score, 3), "queries": len(scores)}
        found["above"] = round(float(above.sum(axis=1).mean()), 2)
        for kind, done, known in (("", search, chance), ("_plain", plain, normal)):
            reached = np.take_along_axis(above, done.picks().items, axis=1).sum(axis=1)
            missing = above.sum(axis=1) - reached
            expected = np.array(expected_missing(done, score, known), float)
            for key, values in (("found", reached), ("missing", missing), ("expected", expected)):
                found[key + kind] = round(float(values.mean()), 3)
            found["error" + kind] = error(expected, missing, rng)
        rows.append(found)
        print(json.dumps(found), flush=True)
    OUT.write_text(json.dumps(rows, indent=1) + "\n")
