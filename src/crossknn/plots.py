"""Plots of what was measured (extra `plots`): recall against calls and offline calls, training.

Each function takes plain rows and where to save: a file (.png, .pdf, .svg) or an open one, which
gets SVG. A method has the same colour and marker everywhere (`styles_of`). Colours are near Okabe
and Ito's as far as these go; the markers tell methods apart where colours do not.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from crossknn.errors import MissingExtraError, SpecError
from crossknn.evaluation.measures import Estimate
from crossknn.evaluation.replay import RecallRow
from crossknn.retrievers.base import KINDS
from crossknn.spec import Spec, parse

Target: TypeAlias = str | Path | BinaryIO
"""Where a plot goes: a file, whose suffix says what it is, or an open one, which gets SVG."""

INK, QUIET, RULE, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"

FAMILIES: Mapping[str, tuple[str, str]] = {
    "rerank": ("#555c66", "s"),
    "axn": ("#0072b2", "o"),
    "adacur": ("#c44f00", "D"),
    "anncur": ("#c98500", "^"),
    "gp": ("#c2589a", "X"),
    "kriging": ("#882255", "P"),
    "gar": ("#009e73", "v"),
    "ladr": ("#5b9616", "<"),
    "greedy": ("#1b5e20", ">"),
    "tour": ("#2c9bd0", "p"),
    "refit": ("#4b3fa8", "h"),
    "feedback": ("#00868b", "8"),
    "fixeditem": ("#8c564b", "d"),
    "itemcur": ("#b07d62", "H"),
    "retrieve": ("#9a4db3", "*"),
    "exact": ("#333a42", "|"),
}
"""Colour and marker of each method, whatever its options."""

OTHERS = ("#0072b2", "#c44f00", "#009e73", "#c2589a", "#c98500", "#2c9bd0", "#555c66")
"""Colours of what is no method, in the order in which it comes."""

DASHES: Sequence[Any] = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.4, 1.2, 1.4)), (0, (10, 3)))
"""Of a method's variants, one after the other."""

RECALL = "recall against exact search (%)"
PER_ROW = 3
"""Panels beside each other, so that a page's width is enough to read them."""

SIZES = {1: (5.6, 3.7), 2: (4.3, 3.5), 3: (3.3, 3.2)}
"""Inches of a panel, by how many stand beside each other."""

_RC = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Geneva", "sans-serif"],
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "crossknn",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.edgecolor": QUIET,
    "axes.linewidth": 0.8,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": QUIET,
    "ytick.color": QUIET,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": RULE,
    "grid.linewidth": 0.7,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A line: `y` over `x` (p,), and the ends of the 95% intervals if they are known.

    `name` is a method's spec, or what else the line stands for. What does not depend on x has one
    point with `x` (None,): it is drawn across.
    """

    name: str
    x: Sequence[float | None]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()

    @classmethod
    def through(cls, name: str, x: Sequence[float | None], estimates: Sequence[Estimate]) -> Curve:
        """Means with their intervals, one for each x (p,)."""
        return cls(
            name=name,
            x=x,
            y=[estimate.mean for estimate in estimates],
            low=[estimate.low for estimate in estimates],
            high=[estimate.high for estimate in estimates],
        )


def recall_against_cost(
    rows: Sequence[RecallRow], path: Target, *, title: str, **options: Any
) -> None:
    """Save a plot of recall over calls per query: a panel for each k, a line for each method.

    A method without calls is drawn across (ANNCUR 3b, ADACUR 2, AXN 7).

    Args:
        rows: Recall of each method, budget and k, with its 95% interval, drawn as a band.
        options: `labels`, `styles` and `note` of `curves`.

    Raises:
        MissingExtraError: without matplotlib.
    """
    panels = {f"top {k}": curves_of(rows, k) for k in sorted({row.k for row in rows})}
    curves(panels, path, title=title, x_label="cross-encoder calls per query", **options)


def recall_against_indexing(
    rows: Sequence[RecallRow], path: Target, *, title: str, **options: Any
) -> None:
    """Save a plot of recall over the calls spent before the first query (AXN 1, 9, 10).

    A panel for each k at the largest budget, a point for each row, those of one method joined;
    methods that need nothing offline are drawn across.

    Args:
        rows: Recall of each method, budget and k, with its 95% interval, drawn as a bar.
        options: `labels` and `styles` of `curves`.

    Raises:
        MissingExtraError: without matplotlib.
    """
    budget = max(row.budget for row in rows)
    last = [row for row in rows if row.budget in (budget, 0)]
    curves(
        {f"top {k}": curves_of(last, k, offline=True) for k in sorted({row.k for row in rows})},
        path,
        title=title,
        x_label="cross-encoder calls for the index",
        y_label=f"recall (%) at {budget} calls per query",
        note="Lines across: no calls were made for the index.",
        bars=True,
        **options,
    )


def curves_of(rows: Sequence[RecallRow], k: int, *, offline: bool = False) -> list[Curve]:
    """Recall at k over the budgets, or over the offline calls: a curve for each method."""

    def cost(row: RecallRow) -> int:
        return row.index_calls if offline else row.budget

    found = []
    for name in dict.fromkeys(row.method for row in rows):
        line = sorted((row for row in rows if (row.method, row.k) == (name, k)), key=cost)
        estimates = [Estimate(row.recall, *row.ci) for row in line]
        found.append(Curve.through(name, [cost(row) or None for row in line], estimates))
    return found


def curves(
    panels: Mapping[str, Sequence[Curve]],
    path: Target,
    *,
    title: str,
    x_label: str,
    y_label: str = RECALL,
    log: bool = True,
    log_y: bool = False,
    percent: bool = True,
    bars: bool = False,
    labels: Mapping[str, str] | None = None,
    styles: Styles | None = None,
    note: str = "",
) -> None:
    """Save a plot with a panel for each title and a line for each of its curves.

    Args:
        log, log_y: Whether the axes are logarithmic.
        percent: Values are in 0-1, drawn from 0 to 100%.
        bars: Intervals are bars; bands by default.
        labels, styles: By the curves' names; `labels_of` and `styles_of` by default.

    Raises:
        MissingExtraError: without matplotlib.
    """
    names = list(dict.fromkeys(curve.name for found in panels.values() for curve in found))
    said, looks = labels_and_styles(names, labels, styles)
    scale = 100.0 if percent else 1.0
    side = label_width(said.values())
    with picture(path, title=title, note=note, panels=len(panels), side=side) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            panel.set_title(head)
            panel.set_xlabel(x_label)
            places = [x for curve in found for x in curve.x if x is not None]
            if log and places:
                logarithmic(panel, places)
            for curve in found:
                shade = 0.0 if bars else min(0.13, 0.4 / len(found))
                _draw(panel, curve, looks[curve.name].line(), scale, shade)
            if log_y:
                panel.set_yscale("log")
                plain_numbers(panel.yaxis)
            if percent:
                percent_axis(panel)
            panel.grid(axis="y")
        for panel in axes[:: -(-len(axes) // -(-len(axes) // PER_ROW))]:
            panel.set_ylabel(y_label)
        last = list(panels.values())[-1]
        ends = [(scale * c.y[-1], said[c.name], looks[c.name].colour) for c in last if len(c.y)]
        label_ends(axes[-1], ends)


def _draw(panel: Any, curve: Curve, look: dict[str, Any], scale: float, shade: float) -> None:
    y = [scale * value for value in curve.y]
    if None in curve.x:
        panel.axhline(y[-1], color=look["color"], ls=look["ls"], lw=1.2)
        return
    panel.plot(curve.x, y, **look)
    if not len(curve.low):
        return
    low, high = ([scale * v for v in ends] for ends in (curve.low, curve.high))
    if shade:
        panel.fill_between(curve.x, low, high, color=look["color"], alpha=shade, lw=0)
    else:
        panel.vlines(curve.x, low, high, color=look["color"], lw=1)


def training_curve(log: str | Path, path: Target) -> None:
    """Save a plot of a training log: the loss over the steps, and the dev measures beside it.

    Raises:
        MissingExtraError: without matplotlib.
    """
    lines = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    losses = [line for line in lines if "loss" in line]
    dev = [line for line in lines if "dev" in line]
    names = list(dev[0]["dev"]) if dev else []
    size, side = (5.4, 3.2), label_width(names)
    with picture(path, title="Training", panels=2, size=size, side=side) as (left, right):
        left.plot([x["step"] for x in losses], [x["loss"] for x in losses], color=OTHERS[0], lw=1.6)
        left.set_ylabel("training loss")
        left.set_ylim(bottom=0)
        ends = []
        for place, name in enumerate(names):
            colour, values = OTHERS[place % len(OTHERS)], [100 * x["dev"][name] for x in dev]
            right.plot([x["step"] for x in dev], values, "o-", color=colour, ms=4, lw=1.6)
            ends.append((values[-1], name.replace("_", " "), colour))
        label_ends(right, ends)
        right.set_ylabel("on dev queries (%)")
        for panel in (left, right):
            panel.set_xlabel("step")
            panel.grid(axis="y")


# ------------------------------------------------------------- how methods look and are called


@dataclass(frozen=True, kw_only=True)
class Style:
    """Of one line: `hollow` markers begin where the dashes are used up."""

    colour: str
    dash: Any = "-"
    marker: str = "o"
    hollow: bool = False

    def line(self) -> dict[str, Any]:
        """Arguments of matplotlib for a line with markers."""
        return {
            "color": self.colour,
            "ls": self.dash,
            "marker": self.marker,
            "ms": 4.6,
            "mfc": PAPER if self.hollow else self.colour,
            "lw": 1.7,
        }


Styles: TypeAlias = Mapping[str, Style]


def family(name: str) -> str:
    """The method that a spec or a label begins with, `retrieve` for late interaction; "" if none.

    >>> family("axn(retriever=dense, rounds=5)"), family("CMC"), family("wordnet-act")
    ('axn', 'retrieve', '')
    """
    found = re.match(r"[A-Za-z]+", name)
    word = found[0].lower() if found else ""
    word = "retrieve" if word in KINDS else word
    return word if word in FAMILIES else ""


def styles_of(names: Iterable[str]) -> dict[str, Style]:
    """A style for each name: colour and marker by its method, dashes by its place among its like.

    A report asks once for all its methods and hands the same styles to every plot.
    """
    found: dict[str, Style] = {}
    seen: dict[str, int] = {}
    for name in dict.fromkeys(names):
        like = family(name)
        place = seen.get(like, 0)
        seen[like] = place + 1
        if like:
            (colour, marker), (later, dash) = FAMILIES[like], divmod(place, len(DASHES))
            hollow = later % 2 == 1
            found[name] = Style(colour=colour, marker=marker, dash=DASHES[dash], hollow=hollow)
        else:
            later, colour_place = divmod(place, len(OTHERS))
            found[name] = Style(colour=OTHERS[colour_place], dash=DASHES[later % len(DASHES)])
    return found


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """Short names: the method, and the options in which it differs from others of its name.

    >>> list(labels_of(["rerank(retriever=dense)", "rerank(retriever=bm25)", "axn"]).values())
    ['rerank dense', 'rerank bm25', 'axn']
    """
    parsed = {name: _parsed(name) for name in names}
    found = {}
    for name, spec in parsed.items():
        if spec is None:
            found[name] = name
            continue
        like = [other for other in parsed.values() if other and other.name == spec.name]
        options = dict.fromkeys(option for other in like for option in other.options)
        differ = [o for o in options if len({str(other.options.get(o)) for other in like}) > 1]
        said = [
            str(spec.options[o]) if o == "retriever" else f"{o}={spec.options[o]}"
            for o in differ
            if o in spec.options
        ]
        found[name] = " ".join([spec.name, *said])
    return found


def labels_and_styles(
    names: Sequence[str], labels: Mapping[str, str] | None, styles: Styles | None
) -> tuple[dict[str, str], dict[str, Style]]:
    """Those given, and the default ones of all other names."""
    return labels_of(names) | dict(labels or {}), styles_of(names) | dict(styles or {})


def _parsed(name: str) -> Spec | None:
    try:
        return parse(re.sub(r"\{\w+\}", "chosen", name))
    except SpecError:
        return None


# --------------------------------------------------------------------------- panels to draw on


@contextmanager
def picture(
    path: Target,
    *,
    title: str,
    note: str = "",
    panels: int = 1,
    size: tuple[float, float] | None = None,
    side: float = 0.0,
    share_y: bool = False,
) -> Iterator[list[Any]]:
    """Panels of `size` inches each, with `side` inches for labels at the right; saved at the end.

    `note` stands below in small letters.

    Raises:
        MissingExtraError: without matplotlib.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("the plot", "plots") from None
    rows = -(-panels // PER_ROW)
    columns = -(-panels // rows)
    width, height = size or SIZES[columns]
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(width * columns + side, height * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y).ravel()
        for unused in grid[panels:]:
            unused.remove()
        yield list(grid[:panels])
        figure.suptitle(title, x=0.01, ha="left", fontsize=11, fontweight="bold")
        if note:
            figure.supxlabel(note, x=0.01, ha="left", fontsize=8.5, color=QUIET)
        if isinstance(path, str | Path):
            figure.savefig(path, dpi=150)
        else:
            figure.savefig(path, format="svg", transparent=True, metadata={"Date": None})


def label_width(labels: Iterable[str]) -> float:
    """Inches that the longest of the labels takes."""
    return 0.45 + 0.07 * max((len(label) for label in labels), default=0)


def logarithmic(panel: Any, values: Iterable[float]) -> None:
    """A logarithmic x axis with ticks at the values themselves, but for those that would touch."""
    known = sorted(set(values))
    span = math.log(known[-1] / known[0]) or 1.0
    shown: dict[float, str] = {}
    for value in known:
        text = f"{value:,.10g}"
        if not shown or math.log(value / max(shown)) > 0.035 * len(text) * span:
            shown[value] = text
    panel.set_xscale("log")
    panel.set_xticks(list(shown), list(shown.values()))
    panel.minorticks_off()


def percent_axis(panel: Any) -> None:
    """From 0 to 100, whatever the values: plots beside each other can be compared."""
    panel.set_ylim(0, 103)
    panel.set_yticks(range(0, 101, 20))


def plain_numbers(axis: Any) -> None:
    """Ticks of a logarithmic axis as numbers that can be read aloud: 0.01, not a power of ten."""
    axis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def label_ends(panel: Any, ends: Sequence[tuple[float, str, str]], *, size: float = 8.5) -> None:
    """Write each (height in data, name, colour) right of the panel, apart from each other."""
    if not ends:
        return
    ends = sorted(ends)
    scale = panel.yaxis.get_transform().transform
    low, high = scale(panel.get_ylim())
    box, whole = panel.get_position(), panel.get_figure().get_size_inches()
    gap = size * 1.35 / 72 / (box.height * whole[1])
    away = 0.3 / (box.width * whole[0])
    heights = [(scale(height) - low) / (high - low) for height, _, _ in ends]
    for (_, name, colour), height, place in zip(ends, heights, spread(heights, gap), strict=True):
        leader = {"arrowstyle": "-", "color": colour, "lw": 0.7, "shrinkA": 1, "shrinkB": 1}
        panel.annotate(
            name,
            xy=(1, height),
            xycoords="axes fraction",
            xytext=(1 + away, place),
            textcoords="axes fraction",
            color=colour,
            fontsize=size,
            va="center",
            annotation_clip=False,
            arrowprops=leader | {"relpos": (0, 0.5)},
        )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Places at least `gap` apart, in order and as near to the `heights` (sorted) as can be.

    Neighbours that are too near become a block about the mean of what they want.

    >>> [round(place, 2) for place in spread([0.5, 0.5, 0.9], 0.1)]
    [0.45, 0.55, 0.9]
    """
    blocks: list[tuple[float, int]] = []  # the first place, and how many there are
    for height in heights:
        start, count = float(height), 1
        while blocks and start < blocks[-1][0] + blocks[-1][1] * gap:
            before, others = blocks.pop()
            middle = (
                (before + (others - 1) * gap / 2) * others + (start + (count - 1) * gap / 2) * count
            ) / (others + count)
            count += others
            start = middle - (count - 1) * gap / 2
        blocks.append((start, count))
    return [start + i * gap for start, count in blocks for i in range(count)]
