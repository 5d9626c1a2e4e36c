"""Plots of reports beyond `crossknn.plots`: bars, differences, maps, distributions, scatter.

Each function takes plain rows or arrays and where to save; all raise MissingExtraError without
matplotlib. `labels` and `styles` are by name, those of `labels_of` and `styles_of` by default.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from crossknn.evaluation.measures import Estimate
from crossknn.plots import (
    INK,
    OTHERS,
    PAPER,
    QUIET,
    RECALL,
    Styles,
    Target,
    label_ends,
    label_width,
    labels_and_styles,
    percent_axis,
    picture,
    plain_numbers,
    spread,
)
from crossknn.types import FloatArray, IntArray
from crossknn_lab.analysis import CurCell, ScoreDensity, components

RAMPS = {"recall": ("#eef5fb", "#08519c"), "error": ("#fef1e6", "#a63603")}
"""Few to many, of the maps."""

TOPS = (1, 10, 100)
"""The top items by exact score that scatter plots mark."""

# ------------------------------------------------------------------------------------ bars


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A method's value in a group (a matrix, a number of anchors), with its 95% interval: 0-1."""

    group: str
    name: str
    value: float
    low: float
    high: float

    @classmethod
    def of(cls, group: str, name: str, found: Estimate) -> Bar:
        """A mean and its interval."""
        return cls(group=group, name=name, value=found.mean, low=found.low, high=found.high)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A bar of `parts` on top of each other (milliseconds per query), in a group of bars."""

    group: str
    name: str
    parts: Mapping[str, float]


def grouped_bars(
    bars: Sequence[Bar],
    path: Target,
    *,
    title: str,
    sizes: Mapping[str, int] | None = None,
) -> None:
    """Save a plot in percent, a bar for each method in each group (ANNCUR 4, 5 and 7; AXN 3).

    `sizes` are numbers of items, written below the groups (ANNCUR 5).
    """
    groups = list(dict.fromkeys(bar.group for bar in bars))
    names = list(dict.fromkeys(bar.name for bar in bars))
    said, looks = labels_and_styles(names, None, None)
    hatches, width = _hatches(names, looks), 0.84 / len(names)
    each = max(0.2 + 0.2 * len(names), 0.1 + 0.085 * max(map(len, groups)))
    size, side = (max(3.4, 0.8 + each * len(groups)), 3.7), label_width(said.values())
    with picture(path, title=title, size=size, side=side) as (panel,):
        for place, name in enumerate(names):
            mine = [bar for bar in bars if bar.name == name]
            at = [groups.index(bar.group) + (place - (len(names) - 1) / 2) * width for bar in mine]
            heights = [100 * bar.value for bar in mine]
            reach = _reach([(bar.value, bar.low, bar.high) for bar in mine])
            look = {"fc": looks[name].colour, "ec": PAPER, "lw": 0, "hatch": hatches[name]}
            panel.bar(at, heights, width * 0.9, label=said[name], **look)
            panel.errorbar(at, heights, yerr=reach, fmt="none", ecolor=INK, lw=0.9)
        panel.set_xticks(range(len(groups)), groups)
        panel.tick_params(axis="x", length=0)
        for place, group in enumerate(groups if sizes else ()):
            below = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            quiet = {"color": QUIET, "fontsize": 8, "ha": "center", "va": "top"}
            text = f"{(sizes or {})[group]:,.0f} items"
            panel.annotate(text, (place, 0), (0, -17), **below, **quiet)
        panel.set_ylabel(RECALL)
        percent_axis(panel)
        panel.grid(axis="y")
        key = {"frameon": False, "handlelength": 1.2, "fontsize": 8.5}
        panel.legend(loc="upper left", bbox_to_anchor=(1.0, 1.02), **key)


def stacked_bars(
    stacks: Sequence[Stack],
    path: Target,
    *,
    title: str,
    y_label: str = "milliseconds per query",
    note: str = "",
) -> None:
    """Save a plot of what a time is made of, a panel for each group (AXN 2 and 5, ADACUR 4)."""
    groups = list(dict.fromkeys(stack.group for stack in stacks))
    parts = list(dict.fromkeys(part for stack in stacks for part in stack.parts))
    most = max(len([s for s in stacks if s.group == group]) for group in groups)
    size, side = (max(2.6, 0.7 + 0.5 * most), 3.5), label_width(parts)
    with picture(
        path, title=title, note=note, panels=len(groups), size=size, side=side, share_y=True
    ) as axes:
        for panel, group in zip(axes, groups, strict=True):
            _stack(panel, group, [stack for stack in stacks if stack.group == group], parts)
        axes[0].set_ylabel(y_label)
        top, height = 1.16 * max(sum(stack.parts.values()) for stack in stacks), 0.0
        axes[0].set_ylim(0, top)  # space for the numbers above the bars
        last = [stack for stack in stacks if stack.group == groups[-1]][-1].parts
        ends = []
        for n, part in enumerate(parts):
            share = last.get(part, 0.0)
            ends.append((min(height + share / 2, top), part, OTHERS[n]))
            height += share
        label_ends(axes[-1], ends)


def _stack(panel: Any, group: str, stacks: Sequence[Stack], parts: Sequence[str]) -> None:
    below = np.zeros(len(stacks))
    for n, part in enumerate(parts):
        values = np.array([stack.parts.get(part, 0.0) for stack in stacks])
        panel.bar(range(len(stacks)), values, 0.72, bottom=below, color=OTHERS[n], lw=0)
        below += values
    for place, whole in enumerate(below):
        text = f"{whole:,.0f}" if whole >= 100 else f"{whole:.3g}"
        over = {"ha": "center", "va": "bottom", "fontsize": 8.5, "color": INK}
        panel.annotate(text, (place, whole), **over)
    panel.set_title(group)
    turned = {"rotation": 30, "ha": "right"} if max(len(s.name) for s in stacks) > 6 else {}
    panel.set_xticks(range(len(stacks)), [stack.name for stack in stacks], **turned)
    panel.tick_params(axis="x", length=0)
    panel.grid(axis="y")


def _hatches(names: Sequence[str], looks: Styles) -> dict[str, str]:
    """Variants of a method share their colour, so that their bars need another mark."""
    found: dict[str, str] = {}
    for name in names:
        place = sum(looks[other].colour == looks[name].colour for other in found)
        found[name] = ("", "///", "...", "xxx", "---")[place % 5]
    return found


# ------------------------------------------------------------------------- score matrices


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
    tables = [np.full((len(k_qs), len(k_is)), np.nan) for _ in grids]
    for table, cells in zip(tables, grids.values(), strict=True):
        for cell in cells:
            table[k_qs.index(cell.k_q), k_is.index(cell.k_i)] = scale * getattr(cell, what)
    high = 100.0 if what == "recall" else min(1.0, max(float(np.nanmax(t)) for t in tables) or 1.0)
    size = (max(3.2, 0.62 * len(k_is) + 0.9), 0.5 * len(k_qs) + 1.4)
    colours = LinearSegmentedColormap.from_list(what, RAMPS[what])
    with picture(path, title=title, note=note, panels=len(tables), size=size, share_y=True) as axes:
        for panel, name, table in zip(axes, grids, tables, strict=True):
            panel.pcolormesh(table, cmap=colours, vmin=0, vmax=high, edgecolors=PAPER, lw=1.5)
            for (row, column), value in np.ndenumerate(table):
                if np.isfinite(value):
                    colour = _readable_on(colours(min(value / high, 1.0)))
                    text = f"{value:.0f}" if what == "recall" else _short_number(float(value))
                    place = {"ha": "center", "va": "center_baseline", "fontsize": 9}
                    panel.text(column + 0.5, row + 0.5, text, color=colour, **place)
            panel.set_title(name)
            panel.set_xticks(np.arange(len(k_is)) + 0.5, [str(k) for k in k_is])
            panel.set_yticks(np.arange(len(k_qs)) + 0.5, [str(k) for k in k_qs])
            panel.tick_params(which="both", length=0)
            panel.set_xlabel("anchor items")
            panel.spines[:].set_visible(False)
        axes[0].set_ylabel("anchor queries")


def score_histogram(densities: Mapping[str, ScoreDensity], path: Target, *, title: str) -> None:
    """Save a plot of the scores about their query's mean, a line each (ANNCUR 1).

    On a logarithmic axis, where the few items that score high can be seen.
    """
    names = [f"{name}: skewness {found.skewness:z.1f}" for name, found in densities.items()]
    with picture(path, title=title, side=label_width(names)) as (panel,):
        for n, found in enumerate(densities.values()):
            middle, seen = (found.edges[1:] + found.edges[:-1]) / 2, found.density > 0
            look = {"color": _colour(n), "lw": 1.6, "drawstyle": "steps-mid"}
            panel.plot(middle[seen], found.density[seen], **look)
        standard = any(found.unit != 1 for found in densities.values())
        panel.set_yscale("log")
        plain_numbers(panel.yaxis)
        panel.set_xlabel("score less the query's mean" + (", in standard deviations" * standard))
        panel.set_ylabel("density, all queries pooled")
        _name_lines(panel, [(name, _colour(n)) for n, name in enumerate(names)], at=1.03)
        panel.grid(axis="y")


def singular_values(spectra: Mapping[str, FloatArray], path: Target, *, title: str) -> None:
    """Save a plot of how the singular values fall, relative to the largest, a line each.

    The points are where 90% and 99% of the squared norm is held.
    """
    note = "Points: how many hold 90% and 99% of the squared norm."
    with picture(path, title=title, note=note) as (panel,):
        ends = []
        for n, (name, values) in enumerate(spectra.items()):
            colour, relative = _colour(n), values / (values[0] or 1)
            kept = relative > 1e-6  # below, all is rounding
            panel.plot(np.arange(1, len(values) + 1)[kept], relative[kept], color=colour, lw=1.8)
            counts = {share: components(values, share / 100) for share in (90, 99)}
            for count in counts.values():
                panel.plot(count, relative[max(count - 1, 0)], "o", color=colour, ms=5)
            held = ", ".join(f"{share}% in {count}" for share, count in counts.items())
            ends.append((f"{name}: {held}", colour))
        _name_lines(panel, ends)
        panel.set_yscale("log")
        plain_numbers(panel.yaxis)
        panel.set_xlabel("number of the singular value")
        panel.set_ylabel("relative to the largest")
        panel.grid(axis="y")


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
) -> None:
    """Save a plot of how scores are distributed, a line for each kind (AXN 4; ANNCUR 1).

    The retriever's picks are drawn filled, with an area of their own.
    """
    names = list(dict.fromkeys(s.name for found in panels.values() for s in found))
    colours = {name: _colour(n) for n, name in enumerate(names)}
    with picture(path, title=title, panels=len(panels)) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            low = min(float(s.values.min()) for s in found)
            high = max(float(s.values.max()) for s in found)
            edges = np.linspace(low, high, 91)
            for scores in found:
                colour = colours[scores.name]
                density, _ = np.histogram(scores.values, edges, density=True)
                panel.stairs(density, edges, color=colour, lw=1.6)
                if scores.picked is not None and len(scores.picked):
                    density, _ = np.histogram(scores.picked, edges, density=True)
                    panel.stairs(density, edges, color=colour, alpha=0.3, fill=True, lw=0)
            words = [(scores.name, colours[scores.name]) for scores in found]
            if any(scores.picked is not None for scores in found):
                words.append(("filled: the retriever's picks", QUIET))
            _name_lines(panel, words)
            panel.set_title(head)
            panel.set_xlabel("score")
            panel.set_yticks([])
            panel.spines["left"].set_visible(False)
            panel.set_ylim(bottom=0)
            panel.margins(y=0.28)
        axes[0].set_ylabel("density")


def _name_lines(panel: Any, names: Sequence[tuple[str, str]], *, at: float = 0.98) -> None:
    """Write (name, colour) below each other in the upper right corner, or `at` right of it."""
    for n, (name, colour) in enumerate(names):
        place = {"xy": (at, 0.96 - 0.07 * n), "xycoords": "axes fraction", "va": "top"}
        panel.annotate(name, **place, color=colour, fontsize=9, ha="left" if at > 1 else "right")


def _colour(place: int) -> str:
    return OTHERS[place % len(OTHERS)]


def _short_number(value: float) -> str:
    if value < 0.01:
        return f"{value:.1g}"
    return f"{value:.2f}" if value < 10 else f"{value:.0f}" if value < 1000 else f"{value:.0e}"


def _readable_on(colour: Sequence[float]) -> str:
    red, green, blue = colour[:3]
    return "#fefefe" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.5 else "black"


# ------------------------------------------------------------ approximations and measures


@dataclass(frozen=True, kw_only=True, eq=False)
class Approximation:
    """One query's scores with all items: `exact` (n,), `approx` (n,), and the `anchors` (b,)."""

    exact: FloatArray
    approx: FloatArray
    anchors: IntArray


def exact_against_approx(
    panels: Mapping[str, Approximation],
    path: Target,
    *,
    title: str,
) -> None:
    """Save a plot of a query's approximate scores over the exact ones (ADACUR 1, 6 and 8).

    A point for each item, on the diagonal if the approximation is right. Anchor items are marked,
    lines say where the top k by exact score begin, and the darker an item, the better its
    approximate rank.
    """
    ends = np.concatenate([scores for p in panels.values() for scores in (p.exact, p.approx)])
    edge = 0.04 * (float(np.ptp(ends)) or 1.0)
    low, high = float(ends.min()) - edge, float(ends.max()) + edge
    depths = {"the other items": (None, "#c9d1d9"), "approx. top 500": (500, "#8b97a5")}
    depths["approx. top 100"] = (100, "#4d5865")
    size = (3.6, 3.7)
    with picture(path, title=title, panels=len(panels), size=size, side=0.9) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            rank = np.argsort(np.argsort(-found.approx, kind="stable"), kind="stable")
            for depth, colour in depths.values():
                seen = rank < (len(rank) if depth is None else depth)
                look = {"s": 4, "lw": 0, "color": colour, "rasterized": True}
                panel.scatter(found.exact[seen], found.approx[seen], **look)
            anchors = {"s": 14, "lw": 0.9, "fc": "none", "ec": OTHERS[0], "rasterized": True}
            panel.scatter(found.exact[found.anchors], found.approx[found.anchors], **anchors)
            panel.plot([low, high], [low, high], color=QUIET, lw=0.8, ls=(0, (4, 3)))
            _mark_tops(panel, found.exact, [k for k in TOPS if k <= len(found.exact)])
            panel.set_title(head)
            panel.set_xlabel("exact score")
            panel.set_xlim(low, high)
            panel.set_ylim(low, high)
        axes[0].set_ylabel("approximate score")
        words = [("anchor items", OTHERS[0]), *((n, c) for n, (_, c) in reversed(depths.items()))]
        _name_lines(axes[-1], words, at=1.04)


def error_by_band(
    lines: Mapping[str, Mapping[str, Estimate]],
    path: Target,
    *,
    title: str,
    styles: Styles | None = None,
) -> None:
    """Save a plot of the mean absolute error by exact rank, a line for each method (ADACUR 7).

    Bands (`1-10`, `11-100`, ..., `all`) in their order, with intervals over queries.
    """
    said, looks = labels_and_styles(list(lines), None, styles)
    bands = list(dict.fromkeys(band for found in lines.values() for band in found))
    size, side = (max(4.6, 1.0 + 0.9 * len(bands)), 3.6), label_width(said.values())
    with picture(path, title=title, size=size, side=side) as (panel,):
        ends = []
        for name, found in lines.items():
            at, y = [bands.index(band) for band in found], [e.mean for e in found.values()]
            reach = _reach([(e.mean, e.low, e.high) for e in found.values()], scale=1)
            panel.errorbar(at, y, yerr=reach, capsize=2, elinewidth=0.9, **looks[name].line())
            ends.append((y[-1], said[name], looks[name].colour))
        panel.set_xticks(range(len(bands)), bands)
        panel.set_xlabel("rank by exact score")
        panel.set_ylabel("mean absolute error")
        panel.set_ylim(bottom=0)
        panel.grid(axis="y")
        label_ends(panel, ends)


def _reach(found: Sequence[tuple[float, float, float]], scale: float = 100) -> list[list[float]]:
    """How far (mean, low, high) reach below and above, as matplotlib takes it."""
    below = [scale * max(mean - low, 0.0) for mean, low, _ in found]
    return [below, [scale * max(high - mean, 0.0) for mean, _, high in found]]


def _mark_tops(panel: Any, exact: FloatArray, ks: Sequence[int]) -> None:
    """Where the top k begin on the x axis, k written at the lower edge, apart from each other."""
    order = np.sort(exact)[::-1]
    low, width = float(order[-1]), float(order[0] - order[-1]) or 1.0
    at = [float(order[k - 1]) for k in ks]
    for value in at:
        panel.axvline(value, color=QUIET, lw=0.6, ls=":")
    places = spread([(value - low) / width for value in reversed(at)], 0.085)
    for place, k in zip(places, reversed(ks), strict=True):
        text = {"fontsize": 7.5, "color": INK, "ha": "center", "va": "bottom"}
        at_edge = {"xy": (low + place * width, 0.0), "xycoords": ("data", "axes fraction")}
        panel.annotate(str(k), **at_edge, **text)
