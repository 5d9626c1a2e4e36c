"""Calibration error of the ten items that `auto` returns with 100 calls and no anchors, on held-out queries of matrices.

    python lab/benchmarks/reliability.py MATRIX.npz ...

Writes benchmarks/results/calibration.json and the picture of scifact, docs/images/reliability.svg. Every query is held
out once, of five parts; a calibration is fitted to the other four.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.fitting.calibration import BINS, FOLDS, calibration_error, fit_scores
from crossknn.methods import parse_method
from crossknn.search.loop import simulate
from crossknn.types import BoolArray, FloatArray
from crossknn_lab.curves import OTHERS, QUIET, RULE, picture
from crossknn_lab.score_figures import LEGEND
from crossknn_lab.stored import StoredMatrix

ROOT = Path(__file__).parents[2]
KINDS = {"logistic of the score": ("_logistic", QUIET), "calibrated": ("", OTHERS[0])}


def bins(chance: FloatArray, relevant: BoolArray) -> list[list[float]]:
    """Mean probability, relevant share and number of the items in bins of equal size."""
    parts = np.array_split(np.argsort(chance, kind="stable"), BINS)
    return [[chance[p].mean(), relevant[p].mean(), len(p)] for p in parts]


def measured(path: Path) -> dict[str, Any]:
    matrix = replace(StoredMatrix.load(path), n_anchors=0)  # every query is searched
    index, queries, scores = matrix.rows(0, len(matrix.scores))
    best = simulate(parse_method("auto").plan(index, 100, 0), queries, scores).best(10)
    items, scores = best.items, best.scores.astype(np.float64)
    if matrix.qrels is None:
        relevant = items == matrix.labels[:, None]
    else:
        good = {(q, i) for q, i, grade in matrix.qrels.tolist() if grade > 0}
        relevant = np.array([[(q, i) in good for i in row] for q, row in enumerate(items.tolist())])
    chance, fold = np.empty(scores.shape), np.random.default_rng(0).permutation(len(scores)) % FOLDS
    for part in range(FOLDS):
        fitted, _ = fit_scores(scores[fold != part], relevant[fold != part])
        chance[fold == part] = fitted.probabilities(scores[fold == part], scores[fold == part])
    row: dict[str, Any] = {"matrix": path.stem, "queries": len(scores), "relevant": relevant.mean()}
    for kind, p in (("", chance), ("_logistic", np.exp(-np.logaddexp(0, -scores)))):
        row["ece" + kind] = calibration_error(p.ravel(), relevant.ravel())
        row[f"ece{kind}_first"] = calibration_error(p[:, 0], relevant[:, 0], 5)
        row["reliability" + kind] = bins(p.ravel(), relevant.ravel())
    return row


def main() -> None:
    out = ROOT / "benchmarks/results/calibration.json"
    if len(sys.argv) > 1:
        rows = [measured(Path(path)) for path in sys.argv[1:]]
        out.write_text(json.dumps(rows, indent=1, default=float) + "\n")
    rows = json.loads(out.read_text(encoding="utf-8"))
    for each in rows:
        print({key: value for key, value in each.items() if "reliability" not in key})
    found = next(row for row in rows if row["matrix"] == "scifact")
    title = "Probabilities of held-out queries of scifact"
    with picture(ROOT / "docs/images/reliability.svg", title=title) as (panel,):
        panel.plot([0, 100], [0, 100], color=RULE, lw=1.2)
        for name, (key, colour) in KINDS.items():
            means, shares, _ = np.transpose(found[f"reliability{key}"])
            label = f"{name}: error {100 * found[f'ece{key}']:.1f}"
            panel.plot(100 * means, 100 * shares, "o-", color=colour, ms=4.6, lw=1.7, label=label)
        panel.set(xlabel="predicted (%)", ylabel="relevant (%)", xlim=(-2, 102), ylim=(-2, 102))
        panel.legend(**LEGEND)


if __name__ == "__main__":
    main()
