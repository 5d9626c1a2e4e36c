"""Is a promised recall kept? Mean recall of test queries that end when they expect enough.

    python lab/benchmarks/promise.py MATRIX.npz... [--k 10,100] [--anchors 30,46]

Rows of benchmarks/results/promise.json that are measured again are replaced, others kept.

Three times it is drawn which queries are anchors and which are tests (in some matrices the stored
tests are harder than the anchors, and then nothing that anchors say of them holds). Of the anchors 30,
46, 60, 90, 100 and 300 are taken, as far as a matrix has them; at most 500 calls. A promise is kept if the mean over tests and draws is at least the promise less one standard error, that of the
draws included.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from crossknn.evaluation.measures import recall
from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn.search.loop import simulate
from crossknn.types import FloatArray
from crossknn_lab.cells import divided
from crossknn_lab.stored import StoredMatrix

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "promise.json"
ANCHORS, PROMISES, KS = (30, 46, 60, 90, 100, 300), (0.8, 0.9, 0.95), (10, 100)
BUDGET, DRAWS = 500, range(3)


def measured(path: Path, k: int, counts: Sequence[int]) -> Iterator[dict[str, float | str]]:
    """A row for each number of anchors and promise."""
    whole = StoredMatrix.load(path)
    for anchors in (a for a in counts if a <= whole.n_anchors):
        drawn = [divided(whole, anchors=anchors, seed=seed)[0] for seed in DRAWS]
        for promise in PROMISES:
            found = [searched(index, promise, k) for index in drawn]
            means = np.array([values.mean() for values, _ in found])
            within = np.mean([values.var() / len(values) for values, _ in found])
            # Draws share queries: their means' spread says what queries alone do not.
            error = np.sqrt((within + means.var(ddof=1)) / len(means))
            yield {
                "matrix": path.stem,
                "k": k,
                "anchors": anchors,
                "promise": promise,
                "recall": round(float(means.mean()), 4),
                "error": round(float(error), 4),
                "calls": round(float(np.mean([calls for _, calls in found])), 1),
                "kept": bool(means.mean() >= promise - error),
            }


def searched(index: StoredMatrix, promise: float, k: int) -> tuple[FloatArray, float]:
    """Recall of each test query, and the mean number of calls."""
    tests = slice(index.n_anchors, None)
    queries, scores = index.queries(tests), index.scores[tests]
    method = parse_method(f"auto(target_recall={promise}, k={k})")
    search = simulate(method.plan(index, min(BUDGET, index.n), 0), queries, scores)
    truth = top_k(scores, k).items
    return recall(search.picks().items, truth), float(search.n_scored.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", type=Path, nargs="+")
    for name, values in (("--k", KS), ("--anchors", ANCHORS)):
        parser.add_argument(name, type=lambda text: [*map(int, text.split(","))], default=values)
    options = parser.parse_args()
    kept = {key(row): row for row in json.loads(RESULTS.read_text())}
    with threadpool_limits(1):
        for k, path in product(options.k, options.matrices):
            for row in measured(path, k, options.anchors):
                kept[key(row)] = row
                print(*row.values(), flush=True)
                rows = sorted(kept.values(), key=key)
                RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    print(f"{sum(row['kept'] for row in rows)} of {len(rows)} promises kept")


def key(row: dict[str, float | str]) -> tuple[float | str, ...]:
    """What a row is of."""
    return tuple(row[name] for name in ("k", "matrix", "anchors", "promise"))


if __name__ == "__main__":
    main()
