"""What score matrices are like, and how well ANNCUR approximates them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from crossknn.plots.panels import Target, bare, picture, powers, room
from crossknn.plots.style import OTHERS, PAPER
from crossknn.types import FloatArray

if TYPE_CHECKING:
    from crossknn_lab.score_matrix import CurCell, ScoreDensity

FLOOR = 1e-6
"""Singular values below this share of the largest are not drawn: they are rounding."""

RAMPS = {"recall": ("#eef5fb", "#08519c"), "error": ("#fef1e6", "#a63603")}
"""Few to many, of the maps."""


def heat_map(
    grids: Mapping[str, Sequence[CurCell]],
    path: Target,
    *,
    what: Literal["recall", "error"] = "recall",
    title: str,
    note: str = "",
) -> None:
    """Save a picture of ANNCUR over k_q x k_i, a panel for each matrix (ANNCUR 6, 8 and 9).

    Darker is more, and the panels share their colours (errors above 1 look like 1). `note` is
    written small below. Raises MissingExtraError without matplotlib.
    """
    scale = 100 if what == "recall" else 1
    k_qs = sorted({cell.k_q for cells in grids.values() for cell in cells})
    k_is = sorted({cell.k_i for cells in grids.values() for cell in cells})
    tables = [_table(cells, what, k_qs, k_is) * scale for cells in grids.values()]
    high = 100.0 if what == "recall" else min(1.0, max(float(np.nanmax(t)) for t in tables) or 1.0)
    size = (max(3.2, 0.62 * len(k_is) + 0.9), 0.5 * len(k_qs) + 1.4)
    with picture(path, title=title, note=note, panels=len(tables), size=size, share_y=True) as axes:
        colours = _ramp(what)
        for panel, name, table in zip(axes, grids, tables, strict=True):
            panel.pcolormesh(table, cmap=colours, vmin=0, vmax=high, edgecolors=PAPER, lw=1.5)
            for (row, column), value in np.ndenumerate(table):
                if np.isfinite(value):
                    colour = _readable_on(colours(min(value / high, 1.0)))
                    text = _number(float(value), what)
                    place = {"ha": "center", "va": "center_baseline", "fontsize": 9}
                    panel.text(column + 0.5, row + 0.5, text, color=colour, **place)
            panel.set_title(name)
            panel.set_xticks(np.arange(len(k_is)) + 0.5, [str(k) for k in k_is])
            panel.set_yticks(np.arange(len(k_qs)) + 0.5, [str(k) for k in k_qs])
            panel.tick_params(which="both", length=0)
            panel.set_xlabel("anchor items")
            panel.spines[:].set_visible(False)
        axes[0].set_ylabel("anchor queries")


def score_histogram(
    densities: Mapping[str, ScoreDensity], path: Target, *, title: str, note: str = ""
) -> None:
    """Save a picture of the scores about their query's mean, a line each (ANNCUR 1).

    On a logarithmic axis, where the few items that score high can be seen. Raises
    MissingExtraError without matplotlib.
    """
    names = [f"{name}: skewness {found.skewness:z.1f}" for name, found in densities.items()]
    with picture(path, title=title, note=note, side=room(names)) as (panel,):
        for n, found in enumerate(densities.values()):
            colour = OTHERS[n % len(OTHERS)]
            middle, seen = (found.edges[1:] + found.edges[:-1]) / 2, found.density > 0
            look = {"color": colour, "lw": 1.6, "drawstyle": "steps-mid"}
            panel.plot(middle[seen], found.density[seen], **look)
        standard = any(found.unit != 1 for found in densities.values())
        panel.set_yscale("log")
        powers(panel.yaxis)
        panel.set_xlabel("score less the query's mean" + (", in standard deviations" * standard))
        panel.set_ylabel("density, all queries pooled")
        name_lines(panel, [(n, OTHERS[i % len(OTHERS)]) for i, n in enumerate(names)], beside=True)
        bare(panel)


def singular_values(
    spectra: Mapping[str, FloatArray], path: Target, *, title: str, note: str = ""
) -> None:
    """Save a picture of how the singular values fall, relative to the largest, a line each.

    The points are where 90% and 99% of the squared norm is held. Raises MissingExtraError without
    matplotlib.
    """
    from crossknn_lab.score_matrix import spectrum_components

    counts = {
        name: {share: spectrum_components(values, share / 100) for share in (90, 99)}
        for name, values in spectra.items()
    }
    note = note or "Points: how many hold 90% and 99% of the squared norm."
    with picture(path, title=title, note=note) as (panel,):
        ends = []
        for n, (name, values) in enumerate(spectra.items()):
            colour, relative = OTHERS[n % len(OTHERS)], values / (values[0] or 1)
            kept = relative > FLOOR
            panel.plot(np.arange(1, len(values) + 1)[kept], relative[kept], color=colour, lw=1.8)
            for count in counts[name].values():
                panel.plot(count, relative[max(count - 1, 0)], "o", color=colour, ms=5)
            held = ", ".join(f"{share}% in {count}" for share, count in counts[name].items())
            ends.append((f"{name}: {held}", colour))
        name_lines(panel, ends)
        panel.set_yscale("log")
        powers(panel.yaxis)
        panel.set_xlabel("number of the singular value")
        panel.set_ylabel("relative to the largest")
        bare(panel)


def name_lines(panel: Any, names: Sequence[tuple[str, str]], *, beside: bool = False) -> None:
    """Write (name, colour) below each other in the upper right corner, or right of it."""
    left, side = (1.03, "left") if beside else (0.98, "right")
    for n, (name, colour) in enumerate(names):
        place = {"xy": (left, 0.96 - 0.07 * n), "xycoords": "axes fraction"}
        panel.annotate(name, **place, color=colour, fontsize=9, ha=side, va="top")


def _ramp(what: str) -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list(what, RAMPS[what])


def _table(
    cells: Sequence[CurCell], what: str, k_qs: Sequence[int], k_is: Sequence[int]
) -> FloatArray:
    """Values of the cells as (k_q, k_i), NaN where there is none."""
    table = np.full((len(k_qs), len(k_is)), np.nan)
    for cell in cells:
        table[k_qs.index(cell.k_q), k_is.index(cell.k_i)] = getattr(cell, what)
    return table


def _number(value: float, what: str) -> str:
    if what == "recall":
        return f"{value:.0f}"
    if value < 0.01:
        return f"{value:.1g}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}" if value < 1000 else f"{value:.0e}"


def _readable_on(colour: Sequence[float]) -> str:
    red, green, blue = colour[:3]
    return "#fefefe" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"
