"""Plots of what was measured (extra `plots`): recall against calls and offline calls, training.

Each function takes plain rows and where to save: a file (.png, .pdf, .svg) or an open one, which
gets SVG, and raises MissingExtraError without matplotlib. A method has the same colour and marker
everywhere (`styles_of`). Colours are near Okabe and Ito's as far as these go; the markers tell
methods apart where colours do not.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

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

SIZES = {1: (7.2, 3.9), 2: (5.0, 3.5), 3: (4.0, 3.2)}
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
        y, low, high = zip(*[(e.mean, e.low, e.high) for e in estimates], strict=True)
        return cls(name=name, x=x, y=y, low=low, high=high)


def recall_against_cost(
    rows: Sequence[RecallRow], path: Target, *, title: str, **options: Any
) -> None:
    """Save a plot of recall over calls per query: a panel for each k, a line for each method.

    A method without calls is drawn across (ANNCUR 3b, ADACUR 2, AXN 7). `options` are `labels`,
    `styles` and `note` of `curves`.
    """
    panels = {f"top {k}": curves_of(rows, k) for k in sorted({row.k for row in rows})}
    curves(panels, path, title=title, x_label="cross-encoder calls per query", **options)


def recall_against_indexing(
    rows: Sequence[RecallRow], path: Target, *, title: str, **options: Any
) -> None:
    """Save a plot of recall over the calls spent before the first query (AXN 1, 9, 10).

    A panel for each k at the largest budget, a point for each row, those of one method joined;
    methods that need nothing offline are drawn across. `options` are as above.
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
    """
    names = list(dict.fromkeys(curve.name for found in panels.values() for curve in found))
    said, looks = labels_of(names) | dict(labels or {}), styles_of(names) | dict(styles or {})
    with picture(path, title=title, note=note, panels=len(panels)) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            panel.set(title=head, xlabel=x_label)
            shade = 0.0 if bars else min(0.13, 0.4 / max(1, len(found)))
            for curve in found:
                look = looks[curve.name].line() | {"label": said[curve.name]}
                _draw(panel, curve, look, 100.0 if percent else 1.0, shade)
            places = [x for curve in found for x in curve.x if x is not None]
            if log and places:
                _logarithmic(panel, places)
            if log_y:
                panel.set_yscale("log")
                panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
            if percent:  # the same for all, so that plots beside each other can be compared
                panel.set(ylim=(0, 103), yticks=range(0, 101, 20))
            panel.grid(axis="y")
            if panel.get_subplotspec().is_first_col():
                panel.set_ylabel(y_label)
        _legend(axes)


def _draw(panel: Any, curve: Curve, look: dict[str, Any], scale: float, shade: float) -> None:
    """A curve, and its intervals as a band, or as bars if there is no shade."""
    y = [scale * value for value in curve.y]
    if None in curve.x:
        panel.axhline(y[-1], color=look["color"], ls=look["ls"], lw=1.2, label=look["label"])
        return
    panel.plot(curve.x, y, **look)
    low, high = ([scale * v for v in ends] for ends in (curve.low, curve.high))
    if low and shade:
        panel.fill_between(curve.x, low, high, color=look["color"], alpha=shade, lw=0)
    elif low:
        panel.vlines(curve.x, low, high, color=look["color"], lw=1)


def _logarithmic(panel: Any, values: Iterable[float]) -> None:
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


def _legend(axes: Sequence[Any]) -> None:
    """One legend for all panels, in the order in which the lines end, the highest first."""
    lines = {line.get_label(): line for panel in axes for line in panel.get_lines()}
    ordered = sorted(lines.values(), key=lambda line: -line.get_ydata()[-1])
    place = {"loc": "outside right upper", "borderaxespad": 1.0}
    if ordered:
        axes[0].get_figure().legend(
            handles=ordered, frameon=False, fontsize=8.5, handlelength=3.2, **place
        )


def training_curve(log: str | Path, path: Target) -> None:
    """Save a plot of a training log: the loss over the steps, and the dev measures beside it."""
    lines = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    losses = np.array([(line["step"], line["loss"]) for line in lines if "loss" in line])
    means = [part.mean(0) for part in np.array_split(losses, min(100, len(losses)))]
    dev = [line for line in lines if "dev" in line]
    with picture(path, title="Training", panels=2) as (left, right):
        left.plot(*np.transpose(means), color=OTHERS[0], lw=1.6)
        left.set(ylabel="training loss", xlabel="step", ylim=(0, None))
        for place, name in enumerate(dev[0]["dev"] if dev else ()):
            values = [100 * line["dev"][name] for line in dev]
            look = {"color": OTHERS[place % len(OTHERS)], "label": name.replace("_", " ")}
            right.plot([line["step"] for line in dev], values, "o-", ms=4, lw=1.6, **look)
        right.set(ylabel="on dev queries (%)", xlabel="step")
        for panel in (left, right):
            panel.grid(axis="y")
        _legend([right])


# ------------------------------------------------------------- how methods look and are called


@dataclass(frozen=True, kw_only=True)
class Style:
    """Of one line; markers are hollow for every other variant of a method."""

    colour: str
    dash: Any = "-"
    marker: str = "o"
    hollow: bool = False

    def line(self) -> dict[str, Any]:
        """Arguments of matplotlib for a line with markers."""
        look = {"color": self.colour, "ls": self.dash, "marker": self.marker, "ms": 4.6, "lw": 1.7}
        return look | ({"mfc": PAPER} if self.hollow else {})


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
    seen: Counter[str] = Counter()
    for name in dict.fromkeys(names):
        like = family(name)
        place = seen[like]
        seen[like] += 1
        colour, marker = FAMILIES.get(like, (OTHERS[place % len(OTHERS)], "o"))
        variant = place if like else place // len(OTHERS)
        dash = DASHES[variant % len(DASHES)]
        found[name] = Style(colour=colour, marker=marker, dash=dash, hollow=variant % 2 == 1)
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
        like = [other.options for other in parsed.values() if other and other.name == spec.name]
        said = [spec.name]
        for option, value in spec.options.items():
            if len({str(options.get(option)) for options in like}) > 1:
                said.append(str(value) if option == "retriever" else f"{option}={value}")
        found[name] = " ".join(said)
    return found


def _parsed(name: str) -> Spec | None:
    """A method's spec, settings that are still to be chosen included; None if it is none."""
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
) -> Iterator[list[Any]]:
    """Panels of `size` inches each; saved at the end. `note` stands below in small letters."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("the plot", "plots") from None
    rows = -(-panels // PER_ROW)
    columns = -(-panels // rows)
    width, height = size or SIZES[columns]
    with matplotlib.rc_context(_RC):
        figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False).ravel()
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
