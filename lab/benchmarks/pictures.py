"""Pictures of docs/images whose measurements are settled, drawn from what benchmarks/ keeps of them.

python lab/benchmarks/pictures.py [scale] [reliability] [heads]    # all of them without a name
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from crossknn_lab.analysis import components, cur_grid, score_density, singular_values
from crossknn_lab.curves import OTHERS, QUIET, RULE, Curve, curves, picture
from crossknn_lab.score_figures import LEGEND, heat_map, score_densities
from crossknn_lab.stored import StoredMatrix

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "images"
HEADS = {"[EMB]-CE": "emb", "[CLS]-CE": "cls"}
"""The matrices of both heads on WordNet's noun.act."""


def read(name: str) -> Any:
    return json.loads((ROOT / "benchmarks/results" / f"{name}.json").read_text(encoding="utf-8"))


def scale() -> None:
    """Milliseconds outside scoring over the number of items."""
    rows = read("scale")
    names = {"auto": "auto", "auto, prior": "auto with a prior", "axn": "axn", "rerank": "rerank"}
    lines = []
    for method, name in names.items():
        n, ms = zip(
            *((row["n"], row["ms"]) for row in rows if row["method"] == method), strict=True
        )
        lines.append(Curve(name=name, x=n, y=ms))
    note = "Outside scoring: 100 calls, one query at a time, one thread, d = 384."
    labels = {"x_label": "items", "y_label": "milliseconds per query", "note": note}
    title = "The time of a search, by the number of items"
    curves({"": lines}, IMAGES / "scale.svg", title=title, percent=False, **labels)


def reliability() -> None:
    """Shares of relevant items over predicted probabilities, on scifact."""
    found = next(row for row in read("calibration") if row["matrix"] == "scifact")
    kinds = {"logistic of the score": ("_logistic", QUIET), "calibrated": ("", OTHERS[0])}
    title = "Probabilities of held-out queries of scifact"
    with picture(IMAGES / "reliability.svg", title=title) as (panel,):
        panel.plot([0, 100], [0, 100], color=RULE, lw=1.2)
        for name, (key, colour) in kinds.items():
            means, shares, _ = np.transpose(found[f"reliability{key}"])
            label = f"{name}: error {100 * found[f'ece{key}']:.1f}"
            panel.plot(100 * means, 100 * shares, "o-", color=colour, ms=4.6, lw=1.7, label=label)
        panel.set(xlabel="predicted (%)", ylabel="relevant (%)", xlim=(-2, 102), ylim=(-2, 102))
        panel.legend(**LEGEND)


def heads() -> None:
    """Recall and error of ANNCUR, singular values and scores (ANNCUR, figures 1b, 6 and 8)."""
    scores = {
        name: StoredMatrix.load(ROOT / f"benchmarks/data/wordnet-act-{head}.npz").scores
        for name, head in HEADS.items()
    }
    grids = {name: cur_grid(of, (25, 50, 100), (50, 100, 200, 500)) for name, of in scores.items()}
    titles = {
        "recall": "ANNCUR: the ten best items in 500 (%)",
        "error": "ANNCUR: error |M - M~| / |M|",
    }
    for what, title in titles.items():
        heat_map(grids, IMAGES / f"heads-{what}.svg", what=what, title=title)
    lines, notes = [], []
    for name, of in scores.items():
        values = singular_values(of, center=True)
        shown = [*dict.fromkeys(np.geomspace(1, len(values) - 1, 60).astype(int).tolist())]
        lines.append(Curve(name=name, x=shown, y=[values[at - 1] / values[0] for at in shown]))
        notes.append(f"{name} {components(values, 0.9)} and {components(values, 0.99)}")
    labels = {"x_label": "number of the singular value", "y_label": "relative to the largest"}
    note = f"So many hold 90% and 99% of the squared norm: {', '.join(notes)}."
    title = "Singular values, each query's mean subtracted"
    file = IMAGES / "heads-singular-values.svg"
    curves({"": lines}, file, title=title, percent=False, note=note, **labels)
    densities = {"": {name: score_density(of) for name, of in scores.items()}}
    label = "standard deviations from the query's mean"
    file = IMAGES / "heads-histogram.svg"
    score_densities(
        densities, file, title="Scores of a query with all items", x_label=label, log=True
    )


if __name__ == "__main__":
    for name in sys.argv[1:] or ("scale", "reliability", "heads"):
        {"scale": scale, "reliability": reliability, "heads": heads}[name]()
