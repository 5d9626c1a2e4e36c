"""Is a promised recall kept? Mean recall of test queries that end when they expect enough.

    python lab/benchmarks/promise.py MATRIX.npz...    # benchmarks/results/promise.json, a table

Three times it is drawn which queries are anchors and which are tests (in some matrices the stored
tests are harder than the anchors, and then nothing that anchors say of them holds). Of the anchors 30,
46, 60, 90, 100 and 300 are taken, as far as a matrix has them; k = 10, at most 500 calls. A promise is
kept if the mean over tests and draws is at least the promise less one standard error, that of the
draws included.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from crossknn.evaluation.measures import recall
from crossknn.index.stored import StoredMatrix
from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn.search.loop import simulate
from crossknn.types import FloatArray
from crossknn_lab.cells import divided

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "promise.json"
ANCHORS, PROMISES, K, BUDGET, DRAWS = (
    (30, 46, 60, 90, 100, 300),
    (0.8, 0.9, 0.95),
    10,
    500,
    range(3),
)


def measured(path: Path) -> list[dict[str, float | str]]:
    """A row for each number of anchors and promise."""
    whole, rows = StoredMatrix.load(path), []
    for anchors in (a for a in ANCHORS if a <= whole.n_anchors):
        drawn = [divided(whole, anchors=anchors, seed=seed)[0] for seed in DRAWS]
        for promise in PROMISES:
            found = [searched(index, promise) for index in drawn]
            means = np.array([values.mean() for values, _ in found])
            within = np.mean([values.var() / len(values) for values, _ in found])
            # Draws share queries: their means' spread says what queries alone do not.
            error = np.sqrt((within + means.var(ddof=1)) / len(means))
            rows.append(
                {
                    "matrix": path.stem,
                    "anchors": anchors,
                    "promise": promise,
                    "recall": round(float(means.mean()), 4),
                    "error": round(float(error), 4),
                    "calls": round(float(np.mean([calls for _, calls in found])), 1),
                    "kept": bool(means.mean() >= promise - error),
                }
            )
            print(*rows[-1].values(), flush=True)
    return rows


def searched(index: StoredMatrix, promise: float) -> tuple[FloatArray, float]:
    """Recall of each test query, and the mean number of calls."""
    tests = slice(index.n_anchors, None)
    queries, scores = index.queries(tests), index.scores[tests]
    method = parse_method(f"auto(target_recall={promise}, k={K})")
    search = simulate(method.plan(index, min(BUDGET, index.n), 0), queries, scores)
    truth = top_k(scores, K).items
    return recall(search.picks().items, truth), float(search.n_scored.mean())


if __name__ == "__main__":
    with threadpool_limits(1):
        found = [row for path in sys.argv[1:] for row in measured(Path(path))]
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    kept = sum(row["kept"] for row in found)
    print(f"{kept} of {len(found)} promises kept")
