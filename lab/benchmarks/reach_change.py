"""How another default method changes answers: compares fused search in two work folders of `reach.py`.

python lab/benchmarks/reach_change.py BEFORE NOW    # benchmarks/results/reach_change.json

Both have the same indexes, fusions and queries; of NOW's cells `search fused` those that are there are
compared, on the half "test".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

from crossknn.evaluation.measures import paired

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "reach_change.json"
MEASURES = ("nDCG@10", "R@10", "R@20")

if __name__ == "__main__":
    before, now = (Path(folder) / "cells" for folder in sys.argv[1:])
    rows = []
    for file in sorted(now.glob("*/test/search fused *.npz")):
        name, budget = file.parts[-3], int(file.stem.split()[-1])
        old, new = np.load(before / file.relative_to(now)), np.load(file)
        change = {m: paired(new[m] - old[m]) for m in MEASURES}
        told = {
            m: [round(float(v), 4) for v in (c.difference, c.low, c.high, c.p_value)]
            for m, c in change.items()
        }
        rows.append({"set": name, "calls": budget, "queries": len(new["nDCG@10"]), "change": told})
    rows.sort(key=lambda row: (row["set"], row["calls"]))
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
