"""The picture of calibrated probabilities on scifact, from benchmarks/results/calibration.json.

python lab/benchmarks/reliability.py    # docs/images/reliability.svg
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from crossknn_lab.curves import OTHERS, QUIET, RULE, picture
from crossknn_lab.score_figures import LEGEND

ROOT = Path(__file__).parents[2]
KINDS = {"logistic of the score": ("_logistic", QUIET), "calibrated": ("", OTHERS[0])}


def main() -> None:
    rows = json.loads((ROOT / "benchmarks/results/calibration.json").read_text(encoding="utf-8"))
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
