"""What learning from use is worth: recall after so many searches that were learned from.

    python lab/benchmarks/learning.py MATRIX.npz...     # benchmarks/results/learning.json

The first anchor queries are searched with the default method and 100 calls, nothing being known;
kriging's prior is fitted to these scores, and the test queries are searched with it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
from auto import AUTO, KS, learned

from crossknn.evaluation.measures import bootstrap, recall
from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn.search.loop import simulate
from crossknn.types import FloatArray
from crossknn_lab.stored import StoredMatrix

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "learning.json"
SEARCHES, BUDGET = (10, 20, 40, 80), 100


def measured(index: StoredMatrix, drawn: StoredMatrix) -> dict[int, FloatArray]:
    """Recall of the test queries by k, as percentages."""
    tests = slice(drawn.n_anchors, None)
    plan, scores = parse_method(AUTO).plan(index, BUDGET, 0), drawn.scores[tests]
    picks = simulate(plan, index.queries(tests), scores).picks().items
    return {k: 100 * recall(picks, top_k(scores, k).items) for k in KS}


def main(paths: list[Path]) -> None:
    gains: dict[tuple[int, int], list[FloatArray]] = {}
    for path in paths:
        drawn = StoredMatrix.load(path)
        nothing = replace(drawn, n_anchors=0)
        cold = measured(nothing, drawn)
        for count in (c for c in SEARCHES if c <= drawn.n_anchors):
            _, index = learned(nothing, drawn, count, BUDGET, AUTO)
            for k, warm in measured(index, drawn).items():
                gains.setdefault((count, k), []).append(warm - cold[k])
                print(path.stem, count, k, f"{np.mean(gains[count, k][-1]):+.1f}", flush=True)
    rows = []
    for (count, k), differences in gains.items():
        gain = bootstrap(*differences)
        values = [round(float(v), 2) for v in (gain.mean, gain.low, gain.high)]
        rows.append({"searches": count, "k": k, "matrices": len(differences), "gain": values})
    RESULTS.write_text(json.dumps({"budget": BUDGET, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
