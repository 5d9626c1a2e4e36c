"""Pictures of recall against cost and of score matrices (extra `plots`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from crossknn.errors import MissingExtraError
from crossknn.types import FloatArray

if TYPE_CHECKING:
    from crossknn.evaluation.replay import RecallRow
    from crossknn.evaluation.score_matrix import CurCell, ScoreDensity

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""

FLOOR = 1e-6
"""Singular values below this share of the largest are not drawn: they are rounding."""


def recall_against_cost(
    rows: Sequence[RecallRow],
    path: str | Path,
    *,
    title: str,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Save a PNG: one panel for each k, one line for each method, 95% intervals as bands.

    `labels` gives methods shorter names. Raises MissingExtraError without matplotlib.
    """
    plt = _pyplot()
    ks = sorted({row.k for row in rows})
    names = list(dict.fromkeys(row.method for row in rows))
    figure, panels = plt.subplots(
        1, len(ks), figsize=(4.2 * len(ks) + 1.6, 4.2), squeeze=False, layout="constrained"
    )
    for panel, k in zip(panels[0], ks, strict=True):
        ends = []
        for name in names:
            line = sorted(
                (r for r in rows if r.k == k and r.method == name), key=lambda r: r.budget
            )
            colour = COLOURS[names.index(name) % len(COLOURS)]
            budgets = [r.budget for r in line]
            panel.plot(budgets, [100 * r.recall for r in line], "o-", color=colour, ms=3.5, lw=1.8)
            low, high = [100 * r.ci[0] for r in line], [100 * r.ci[1] for r in line]
            panel.fill_between(budgets, low, high, color=colour, alpha=0.10, lw=0)
            ends.append((100 * line[-1].recall, (labels or {}).get(name, name), colour))
        _label_ends(panel, ends, last=panel is panels[0][-1])
        _frame(panel, k, sorted({r.budget for r in rows}))
    panels[0][0].set_ylabel("recall against exact search (%)")
    _finish(plt, figure, path, title)


def recall_against_indexing(
    rows: Sequence[RecallRow],
    path: str | Path,
    *,
    title: str,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Save a PNG of recall against the calls paid once for the index (AXN, figures 1, 9 and 10).

    A panel for each k at the largest budget, a point for each row with its 95% interval, those of
    one method joined; methods that need nothing offline are broken lines. Raises MissingExtraError
    without matplotlib.
    """
    plt = _pyplot()
    ks, budget = sorted({row.k for row in rows}), max(row.budget for row in rows)
    names = list(dict.fromkeys(row.method for row in rows))
    size = (4.2 * len(ks) + 1.6, 4.2)
    figure, panels = plt.subplots(1, len(ks), figsize=size, squeeze=False, layout="constrained")
    for panel, k in zip(panels[0], ks, strict=True):
        ends = []
        for name in names:
            colour = COLOURS[names.index(name) % len(COLOURS)]
            line = sorted(
                (r for r in rows if (r.method, r.k, r.budget) == (name, k, budget)),
                key=lambda r: r.index_calls,
            )
            recalls = [100 * r.recall for r in line]
            if line[-1].index_calls:
                reach = [
                    [100 * (r.recall - r.ci[0]) for r in line],
                    [100 * (r.ci[1] - r.recall) for r in line],
                ]
                at = [r.index_calls for r in line]
                style = {"fmt": "o-", "ms": 5, "lw": 1.4, "capsize": 2}
                panel.errorbar(at, recalls, yerr=reach, color=colour, **style)
            else:
                panel.axhline(recalls[-1], color=colour, lw=1.4, ls="--")
            ends.append((recalls[-1], (labels or {}).get(name, name), colour))
        _label_ends(panel, ends, last=panel is panels[0][-1])
        panel.set_title(f"top {k}", loc="left", fontsize=10)
        panel.set_xlabel("cross-encoder calls for the index")
        panel.set_xscale("log")
        panel.set_ylim(bottom=0, top=103)
        _bare(panel)
    panels[0][0].set_ylabel(f"recall (%) at {budget} calls per query")
    note = "broken lines: nothing was paid for the index"
    _finish(plt, figure, path, title, note)


def training_curve(log: str | Path, path: str | Path) -> None:
    """Save a PNG of a training log: the loss over the steps, and the dev measures below it.

    Raises MissingExtraError without matplotlib.
    """
    plt = _pyplot()
    lines = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    losses = [line for line in lines if "loss" in line]
    dev = [line for line in lines if "dev" in line]
    figure, (top, bottom) = plt.subplots(
        2, 1, figsize=(6.4, 5.2), sharex=True, layout="constrained"
    )
    top.plot([x["step"] for x in losses], [x["loss"] for x in losses], color=COLOURS[0], lw=1.6)
    top.set_ylabel("training loss")
    top.set_ylim(bottom=0)
    ends = []
    for place, name in enumerate(dev[0]["dev"] if dev else ()):
        colour, values = COLOURS[place % len(COLOURS)], [100 * x["dev"][name] for x in dev]
        bottom.plot([x["step"] for x in dev], values, "o-", color=colour, ms=4, lw=1.6)
        ends.append((values[-1], name.replace("_", " "), colour))
    _label_ends(bottom, ends, last=True)
    bottom.set_ylabel("on dev queries (%)")
    bottom.set_xlabel("step")
    for panel in (top, bottom):
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
    _finish(plt, figure, path, "Training")


def _frame(panel: Any, k: int, budgets: Sequence[int]) -> None:
    panel.set_title(f"top {k}", loc="left", fontsize=10)
    panel.set_xlabel("cross-encoder calls per query")
    panel.set_xscale("log")
    panel.set_xticks(budgets, [str(b) for b in budgets])
    panel.minorticks_off()
    panel.set_ylim(bottom=0, top=103)
    panel.grid(axis="y", color="#dddddd", lw=0.6)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _label_ends(panel: Any, ends: Sequence[tuple[float, str, str]], *, last: bool) -> None:
    """Write each line's name at its end, pushed apart where lines meet; on the last panel only."""
    if not last:
        return
    gap, previous = 5.5, -100.0
    for height, name, colour in sorted(ends):
        place = max(height, previous + gap)
        previous = place
        panel.annotate(
            name,
            xy=(1, place),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            fontsize=8.5,
            va="center",
            annotation_clip=False,
        )


def heat_map(
    grids: Mapping[str, Sequence[CurCell]],
    path: str | Path,
    *,
    what: Literal["recall", "error"] = "recall",
    title: str,
    note: str = "",
) -> None:
    """Save a picture of ANNCUR over k_q x k_i, a panel for each matrix (figures 6 and 8).

    Darker is more, and the panels share their colours (errors above 1 look like 1). `note` is
    written small below. Raises MissingExtraError without matplotlib.
    """
    plt = _pyplot()
    scale = 100 if what == "recall" else 1
    k_qs = sorted({cell.k_q for cells in grids.values() for cell in cells})
    k_is = sorted({cell.k_i for cells in grids.values() for cell in cells})
    tables = [_table(cells, what, k_qs, k_is) * scale for cells in grids.values()]
    high = 100.0 if what == "recall" else min(1.0, max(float(np.nanmax(t)) for t in tables) or 1.0)
    colours = plt.get_cmap("Blues" if what == "recall" else "Oranges")
    size = (max(5.4, len(tables) * (0.62 * len(k_is) + 0.6) + 0.9), 0.5 * len(k_qs) + 1.6)
    figure, panels = plt.subplots(
        1, len(tables), figsize=size, squeeze=False, sharey=True, layout="constrained"
    )
    for panel, name, table in zip(panels[0], grids, tables, strict=True):
        panel.imshow(table, cmap=colours, vmin=0, vmax=high, aspect="auto", origin="lower")
        for (row, column), value in np.ndenumerate(table):
            if np.isfinite(value):
                colour = _readable_on(colours(min(value / high, 1.0)))
                text = _number(float(value), what)
                panel.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
        panel.set_title(name, loc="left", fontsize=10)
        panel.set_xticks(range(len(k_is)), [str(k) for k in k_is])
        panel.set_yticks(range(len(k_qs)), [str(k) for k in k_qs])
        panel.set_xticks(np.arange(len(k_is) + 1) - 0.5, minor=True)
        panel.set_yticks(np.arange(len(k_qs) + 1) - 0.5, minor=True)
        panel.grid(which="minor", color="white", lw=1.5)
        panel.tick_params(which="both", length=0)
        panel.set_xlabel("anchor items $k_i$")
        panel.spines[:].set_visible(False)
    panels[0][0].set_ylabel("anchor queries $k_q$")
    _finish(plt, figure, path, title, note)


def score_histogram(densities: Mapping[str, ScoreDensity], path: str | Path, *, title: str) -> None:
    """Save a picture of the scores about their query's mean, a line each (ANNCUR, figure 1b).

    On a logarithmic axis, where the few items that score high can be seen. Raises
    MissingExtraError without matplotlib.
    """
    plt = _pyplot()
    figure, panel = plt.subplots(figsize=(6.4, 4), layout="constrained")
    ends = []
    for n, (name, found) in enumerate(densities.items()):
        colour = COLOURS[n % len(COLOURS)]
        middle, seen = (found.edges[1:] + found.edges[:-1]) / 2, found.density > 0
        panel.plot(middle[seen], found.density[seen], color=colour, lw=1.6, drawstyle="steps-mid")
        ends.append((f"{name}: skewness {found.skewness:.1f}", colour))
    standard = any(found.unit != 1 for found in densities.values())
    panel.set_yscale("log")
    panel.set_xlabel("score less the query's mean" + (", in standard deviations" * standard))
    panel.set_ylabel("density, all queries pooled")
    _name_lines(panel, ends)
    _bare(panel)
    _finish(plt, figure, path, title)


def singular_values(spectra: Mapping[str, FloatArray], path: str | Path, *, title: str) -> None:
    """Save a picture of how the singular values fall, relative to the largest, a line each.

    The points are where 90% and 99% of the squared norm is held. Raises MissingExtraError without
    matplotlib.
    """
    from crossknn.evaluation.score_matrix import spectrum_components

    plt = _pyplot()
    figure, panel = plt.subplots(figsize=(6.4, 4), layout="constrained")
    counts = {
        name: {share: spectrum_components(values, share / 100) for share in (90, 99)}
        for name, values in spectra.items()
    }
    highest = max(found[90] for found in counts.values())
    ends = []
    for n, (name, values) in enumerate(spectra.items()):
        colour, relative = COLOURS[n % len(COLOURS)], values / (values[0] or 1)
        kept = relative > FLOOR
        panel.plot(np.arange(1, len(values) + 1)[kept], relative[kept], color=colour, lw=1.8)
        above = counts[name][90] == highest  # the others' labels go below their lines
        for share, count in counts[name].items():
            point = (count, relative[max(count - 1, 0)])
            panel.plot(*point, "o", color=colour, ms=5)
            panel.annotate(
                f"{share}%: {count}",
                xy=point,
                xytext=(5, 6) if above else (-5, -6),
                textcoords="offset points",
                color=colour,
                fontsize=8.5,
                ha="left" if above else "right",
                va="bottom" if above else "top",
            )
        ends.append((name, colour))
    _name_lines(panel, ends)
    panel.set_yscale("log")
    panel.set_xlabel("number of the singular value")
    panel.set_ylabel("relative to the largest")
    _bare(panel)
    _finish(plt, figure, path, title, "Points: how many hold 90% and 99% of the squared norm.")


def _pyplot() -> Any:
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtraError("the plot", "plots") from None
    return plt


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
    return f"{value:.2f}" if value < 10 else f"{value:.0f}" if value < 1000 else f"{value:.0e}"


def _readable_on(colour: Sequence[float]) -> str:
    red, green, blue = colour[:3]
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"


def _name_lines(panel: Any, names: Sequence[tuple[str, str]]) -> None:
    """Write (name, colour) below each other in the upper right corner."""
    for n, (name, colour) in enumerate(names):
        place = {"xy": (0.98, 0.96 - 0.07 * n), "xycoords": "axes fraction"}
        panel.annotate(name, **place, color=colour, fontsize=9, ha="right", va="top")


def _bare(panel: Any) -> None:
    panel.grid(axis="y", color="#dddddd", lw=0.6)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _finish(plt: Any, figure: Any, path: str | Path, title: str, note: str = "") -> None:
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    if note:
        figure.supxlabel(note, x=0.01, ha="left", fontsize=8, color="#555555")
    figure.savefig(path, dpi=150)
    plt.close(figure)
