"""How scores are distributed, and how far approximate ones are off, by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from crossknn.evaluation.measures import Estimate
from crossknn.plots.panels import Target, bare, label_ends, picture, room
from crossknn.plots.style import OTHERS, QUIET, Styles, labels_of, styles_of
from crossknn.types import FloatArray

BINS = 90


@dataclass(frozen=True, kw_only=True, eq=False)
class Scores:
    """Scores of one kind: `values` (v,) of all pairs, `picked` (p,) of the retriever's picks."""

    name: str
    values: FloatArray
    picked: FloatArray | None = None


def score_distributions(
    panels: Mapping[str, Sequence[Scores]],
    path: Target,
    *,
    title: str,
    x_label: str = "score",
    picked_label: str = "the retriever's picks",
    note: str = "",
) -> None:
    """Save a picture of how scores are distributed, a line for each kind (AXN 4; ANNCUR 1).

    Cross-encoder and dual encoder, for instance, a panel for each matrix; the retriever's picks
    are drawn filled, with an area of their own. Raises MissingExtraError without matplotlib.
    """
    names = list(dict.fromkeys(s.name for found in panels.values() for s in found))
    colours = {name: OTHERS[n % len(OTHERS)] for n, name in enumerate(names)}
    with picture(path, title=title, note=note, panels=len(panels)) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            low = min(float(s.values.min()) for s in found)
            high = max(float(s.values.max()) for s in found)
            edges = np.linspace(low, high, BINS + 1)
            words = []
            for scores in found:
                colour = colours[scores.name]
                density, _ = np.histogram(scores.values, edges, density=True)
                panel.stairs(density, edges, color=colour, lw=1.6)
                words.append((scores.name, colour))
                if scores.picked is not None and len(scores.picked):
                    density, _ = np.histogram(scores.picked, edges, density=True)
                    panel.stairs(density, edges, color=colour, alpha=0.3, fill=True, lw=0)
            if any(scores.picked is not None for scores in found):
                words.append((f"filled: {picked_label}", QUIET))
            for n, (name, colour) in enumerate(words):
                place = {"xy": (0.98, 0.97 - 0.075 * n), "xycoords": "axes fraction"}
                panel.annotate(name, **place, color=colour, fontsize=8.5, ha="right", va="top")
            panel.set_title(head)
            panel.set_xlabel(x_label)
            panel.set_yticks([])
            panel.spines["left"].set_visible(False)
            panel.set_ylim(bottom=0)
            panel.margins(y=0.28)
        axes[0].set_ylabel("density")


def error_by_band(
    lines: Mapping[str, Mapping[str, Estimate]],
    path: Target,
    *,
    title: str,
    y_label: str = "mean absolute error",
    labels: Mapping[str, str] | None = None,
    styles: Styles | None = None,
    note: str = "",
) -> None:
    """Save a picture of the approximation error by exact rank, a line for each method (ADACUR 7).

    Bands (`1-10`, `11-100`, ..., `all`) in their order; intervals over queries. Raises
    MissingExtraError without matplotlib.
    """
    names = list(lines)
    said, looks = labels_of(names) | dict(labels or {}), styles_of(names) | dict(styles or {})
    bands = list(dict.fromkeys(band for found in lines.values() for band in found))
    size, side = (max(4.6, 1.0 + 0.9 * len(bands)), 3.6), room(said.values())
    with picture(path, title=title, note=note, size=size, side=side) as (panel,):
        ends = []
        for name, found in lines.items():
            at = [bands.index(band) for band in found]
            y = [e.mean for e in found.values()]
            reach = [
                [max(e.mean - e.low, 0.0) for e in found.values()],
                [max(e.high - e.mean, 0.0) for e in found.values()],
            ]
            panel.errorbar(at, y, yerr=reach, capsize=2, elinewidth=0.9, **looks[name].line())
            ends.append((y[-1], said[name], looks[name].colour))
        panel.set_xticks(range(len(bands)), bands)
        panel.set_xlabel("rank by exact score")
        panel.set_ylabel(y_label)
        panel.set_ylim(bottom=0)
        bare(panel)
        label_ends(panel, ends)
