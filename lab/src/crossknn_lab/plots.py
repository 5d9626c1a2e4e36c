"""Plots of score matrices and of what methods make of them, beyond `curves`.

Each function takes arrays by name and where to save.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from crossknn.types import FloatArray, IntArray
from crossknn_lab.analysis import CurCell, ScoreDensity
from crossknn_lab.curves import OTHERS, PAPER, QUIET, Target, picture

RAMPS = {"recall": ("#eef5fb", "#08519c"), "error": ("#fef1e6", "#a63603")}
"""Few to many, of the maps."""

LEGEND = {"frameon": False, "fontsize": 8.5}


def heat_map(
    grids: Mapping[str, Sequence[CurCell]],
    path: Target,
    *,
    what: Literal["recall", "error"] = "recall",
    title: str,
    note: str = "",
) -> None:
    """Save a plot of ANNCUR over k_q x k_i, a panel for each matrix (ANNCUR 6, 8 and 9).

    Darker is more, and the panels share their colours (errors above 1 look like 1).
    """
    from matplotlib.colors import LinearSegmentedColormap

    scale = 100 if what == "recall" else 1
    k_qs = sorted({cell.k_q for cells in grids.values() for cell in cells})
    k_is = sorted({cell.k_i for cells in grids.values() for cell in cells})
    colours = LinearSegmentedColormap.from_list(what, RAMPS[what])
    size = (max(3.2, 0.62 * len(k_is) + 0.9), 0.5 * len(k_qs) + 1.4)
    with picture(path, title=title, note=note, panels=len(grids), size=size) as axes:
        for panel, (name, cells) in zip(axes, grids.items(), strict=True):
            table = np.full((len(k_qs), len(k_is)), np.nan)
            for cell in cells:
                place = k_qs.index(cell.k_q), k_is.index(cell.k_i)
                table[place] = value = scale * getattr(cell, what)
                text = f"{value:.0f}" if what == "recall" else f"{value:.2g}"
                ink = PAPER if value > 0.55 * scale else "black"
                middle = {"ha": "center", "va": "center_baseline", "fontsize": 9}
                panel.text(place[1] + 0.5, place[0] + 0.5, text, color=ink, **middle)
            panel.pcolormesh(table, cmap=colours, vmin=0, vmax=scale, edgecolors=PAPER, lw=1.5)
            panel.set_title(name)
            panel.set_xticks(np.arange(len(k_is)) + 0.5, [str(k) for k in k_is])
            panel.set_yticks(np.arange(len(k_qs)) + 0.5, [str(k) for k in k_qs])
            panel.set_xlabel("anchor items")
        axes[0].set_ylabel("anchor queries")


def score_densities(
    panels: Mapping[str, Mapping[str, ScoreDensity]],
    path: Target,
    *,
    title: str,
    x_label: str = "score",
    log: bool = False,
) -> None:
    """Save a plot of how scores are distributed, a line for each kind (ANNCUR 1b, AXN 4).

    On a logarithmic axis (`log`) the few items that score high can be seen.
    """
    names = list(dict.fromkeys(name for found in panels.values() for name in found))
    with picture(path, title=title, panels=len(panels)) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            for name, of in found.items():
                colour = OTHERS[names.index(name) % len(OTHERS)]
                label = f"{name}: skewness {of.skewness:z.1f}"
                panel.stairs(of.density, of.edges, color=colour, lw=1.6, label=label)
            panel.set_title(head)
            panel.set_xlabel(x_label)
            panel.legend(**LEGEND)
            if log:
                panel.set_yscale("log")
        axes[0].set_ylabel("density")


@dataclass(frozen=True, kw_only=True, eq=False)
class Approximation:
    """One query's scores with all items: `exact` (n,), `approx` (n,), and the `anchors` (b,)."""

    exact: FloatArray
    approx: FloatArray
    anchors: IntArray


def exact_against_approx(panels: Mapping[str, Approximation], path: Target, *, title: str) -> None:
    """Save a plot of a query's approximate scores over the exact ones (ADACUR 1, 6 and 8).

    A point for each item, on the diagonal if the approximation is right; anchor items are marked.
    """
    ends = np.concatenate([scores for p in panels.values() for scores in (p.exact, p.approx)])
    line = [float(ends.min()), float(ends.max())]
    small: dict[str, Any] = {"s": 4, "lw": 0, "rasterized": True}
    with picture(path, title=title, panels=len(panels), size=(3.6, 3.7)) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            rest = np.setdiff1d(np.arange(len(found.exact)), found.anchors)
            for items, colour, label in (
                (rest, "#8b97a5", "other items"),
                (found.anchors, OTHERS[1], "anchor items"),
            ):
                points = found.exact[items], found.approx[items]
                panel.scatter(*points, color=colour, label=label, **small)
            panel.plot(line, line, color=QUIET, lw=0.8, ls="--")
            panel.set_title(head)
            panel.set_xlabel("exact score")
        axes[0].set_ylabel("approximate score")
        axes[0].legend(markerscale=3, **LEGEND)
