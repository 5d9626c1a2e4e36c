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
from itertools import product
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from crossknn.errors import SpecError, needs_extra
from crossknn.evaluation.measures import Estimate
from crossknn.evaluation.replay import RecallRow
from crossknn.retrievers.base import KINDS
from crossknn.spec import Spec, parse

Target: TypeAlias = str | Path | BinaryIO
"""Where a plot goes: a file, whose suffix says what it is, or an open one, which gets SVG."""

Styles: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Matplotlib's arguments for the line of each name."""

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
"""Colours of lines that are no methods, in order."""

DASHES: Sequence[Any] = ("-", (0, (5, 1.6)), (0, (1.2, 1.4)), (0, (6, 1.4, 1.2, 1.4)), (0, (10, 3)))
"""Of a method's variants, one after the other."""

SIZES = {1: (7.2, 3.9), 2: (5.0, 3.5), 3: (4.0, 3.2)}
"""Inches of a panel, by how many stand beside each other (three at most)."""

_RC = {
    "font.size": 9.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "crossknn",
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.titlecolor"), INK),
    **dict.fromkeys(("xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), QUIET),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.color": RULE,
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


def recall_against_cost(rows: Sequence[RecallRow], path: Target, *, title: str) -> None:
    """Save a plot of recall over calls per query: a panel for each k, a line for each method.

    A method without calls is drawn across (ANNCUR 3b, ADACUR 2, AXN 7).
    """
    curves(_by_k(rows, "budget"), path, title=title, x_label="cross-encoder calls per query")


def recall_against_indexing(rows: Sequence[RecallRow], path: Target, *, title: str) -> None:
    """Save a plot of recall over the calls spent before the first query (AXN 1, 9, 10).

    A panel for each k at the largest budget, a point for each row, those of one method joined;
    methods that need nothing offline are drawn across.
    """
    budget = max(row.budget for row in rows)
    curves(
        _by_k([row for row in rows if row.budget in (budget, 0)], "index_calls"),
        path,
        title=title,
        x_label="cross-encoder calls for the index",
        y_label=f"recall (%) at {budget} calls per query",
        note="Lines across: no calls were made for the index.",
    )


def _by_k(rows: Sequence[RecallRow], cost: str) -> dict[str, list[Curve]]:
    """A panel for each k, a curve for each method: recall over a cost of the rows."""
    panels: dict[str, list[Curve]] = {}
    methods = dict.fromkeys(row.method for row in rows)
    for k, name in product(sorted({row.k for row in rows}), methods):
        line = [row for row in rows if (row.k, row.method) == (k, name)]
        line.sort(key=attrgetter(cost))
        places = [getattr(row, cost) or None for row in line]
        estimates = [Estimate(row.recall, *row.ci) for row in line]
        panels.setdefault(f"top {k}", []).append(Curve.through(name, places, estimates))
    return panels


def curves(
    panels: Mapping[str, Sequence[Curve]],
    path: Target,
    *,
    title: str,
    x_label: str,
    y_label: str = "recall against exact search (%)",
    log: bool = True,
    percent: bool = True,
    labels: Mapping[str, str] | None = None,
    styles: Styles | None = None,
    note: str = "",
) -> None:
    """Save a plot with a panel for each title and a line for each of its curves.

    Args:
        log: Whether the x axis is logarithmic.
        percent: Values are in 0-1, drawn from 0 to 100%; otherwise they are drawn as they are, on
            a logarithmic axis.
        labels, styles: By the curves' names; `labels_of` and `styles_of` by default.
    """
    names = list(dict.fromkeys(curve.name for found in panels.values() for curve in found))
    said, looks = labels_of(names) | dict(labels or {}), styles_of(names) | dict(styles or {})
    with picture(path, title=title, note=note, panels=len(panels)) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            panel.set(title=head, xlabel=x_label)
            for curve in found:
                look = {**looks[curve.name], "label": said[curve.name]}
                _draw(panel, curve, look, 100.0 if percent else 1.0)
            if log:
                _logarithmic(panel, {x for curve in found for x in curve.x if x is not None})
            if percent:  # the same for all, so that plots beside each other can be compared
                panel.set(ylim=(0, 103), yticks=range(0, 101, 20))
            else:
                panel.set_yscale("log")
                panel.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
            panel.grid(axis="y")
            if panel.get_subplotspec().is_first_col():
                panel.set_ylabel(y_label)
        _legend(axes)


def _draw(panel: Any, curve: Curve, look: dict[str, Any], scale: float) -> None:
    y, low, high = ([scale * v for v in values] for values in (curve.y, curve.low, curve.high))
    if None in curve.x:
        panel.axhline(y[-1], color=look["color"], ls=look["ls"], lw=1.2, label=look["label"])
        return
    panel.plot(curve.x, y, **look)
    if low:
        panel.fill_between(curve.x, low, high, color=look["color"], alpha=0.1, lw=0)


def _logarithmic(panel: Any, values: Iterable[float]) -> None:
    """A logarithmic x axis with ticks at the values themselves, but for those that would touch."""
    known = sorted(values)
    shown: dict[float, str] = {}
    for value in known:
        text = f"{value:,.10g}"
        space = 0.035 * len(text) * math.log(known[-1] / known[0])
        if not shown or math.log(value / max(shown)) > space:
            shown[value] = text
    if shown:
        panel.set_xscale("log")
        panel.set_xticks(list(shown), list(shown.values()))
        panel.minorticks_off()


def _legend(axes: Sequence[Any]) -> None:
    """One legend for all panels, in the order in which the lines end, the highest first."""
    lines = {line.get_label(): line for panel in axes for line in panel.get_lines()}
    ordered = sorted(lines.values(), key=lambda line: -line.get_ydata()[-1])
    look = {"frameon": False, "fontsize": 8.5, "handlelength": 3.2}
    if ordered:
        axes[0].get_figure().legend(handles=ordered, loc="outside right upper", **look)


def training_curve(log: str | Path, path: Target) -> None:
    """Save a plot of a training log: the loss over the steps, and the dev measures beside it."""
    lines = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    losses = np.array([(line["step"], line["loss"]) for line in lines if "loss" in line])
    means = [part.mean(0) for part in np.array_split(losses, min(100, len(losses)))]
    dev = [line for line in lines if "dev" in line]
    with picture(path, title="Training", panels=2) as (left, right):
        left.plot(*np.transpose(means), color=OTHERS[0])
        left.set(ylabel="training loss", xlabel="step", ylim=(0, None))
        for name, colour in zip(dev[0]["dev"] if dev else (), OTHERS, strict=False):
            values = [100 * line["dev"][name] for line in dev]
            look = {"color": colour, "label": name.replace("_", " ")}
            right.plot([line["step"] for line in dev], values, "o-", ms=4, **look)
        right.set(ylabel="on dev queries (%)", xlabel="step")
        _legend([right])


def reliability_plot(found: Mapping[str, Any], path: Target, *, title: str = "Reliability") -> None:
    """Save what `fit_calibration` returned: shares of relevant items against probabilities."""
    kinds = {"logistic of the score": "reliability_logistic", "calibrated": "reliability"}
    with picture(path, title=title) as (panel,):
        panel.plot([0, 100], [0, 100], color=RULE, lw=1.2)
        for (name, key), colour in zip(kinds.items(), ("#555c66", OTHERS[0]), strict=True):
            means, shares, _ = np.transpose(found[key])
            ece = found["ece" + key.removeprefix("reliability")]
            label = f"{name}: error {100 * ece:.1f}"
            panel.plot(100 * means, 100 * shares, "o-", color=colour, ms=4.6, lw=1.7, label=label)
        panel.set(xlabel="predicted (%)", ylabel="relevant (%)", xlim=(-2, 102), ylim=(-2, 102))
        panel.legend(frameon=False, fontsize=8.5)


def family(name: str) -> str:
    """The method that a spec or a label begins with, `retrieve` for late interaction; "" if none.

    >>> family("axn(retriever=dense, rounds=5)"), family("CMC"), family("wordnet-act")
    ('axn', 'retrieve', '')
    """
    found = re.match(r"[A-Za-z]+", name)
    word = found[0].lower() if found else ""
    word = "retrieve" if word in KINDS else word
    return word if word in FAMILIES else ""


def styles_of(names: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """A style for each name: colour and marker by its method, dashes by its place among its like.

    A report asks once for all its methods and hands the same styles to every plot.
    """
    found: dict[str, Mapping[str, Any]] = {}
    seen: Counter[str] = Counter()
    for name in dict.fromkeys(names):
        like = family(name)
        place = seen[like]
        seen[like] += 1
        colour, marker = FAMILIES.get(like, (OTHERS[place % len(OTHERS)], "o"))
        variant = place if like else place // len(OTHERS)
        look = {"color": colour, "marker": marker, "ls": DASHES[variant % len(DASHES)]}
        hollow = {"mfc": PAPER} if variant % 2 else {}
        found[name] = look | {"ms": 4.6, "lw": 1.7} | hollow
    return found


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """Short names: the method, and the options in which it differs from others of its name.

    >>> list(labels_of(["rerank(retriever=dense)", "rerank(retriever=bm25)", "axn"]).values())
    ['rerank dense', 'rerank bm25', 'axn']
    """
    parsed = {name: _parsed(name) for name in names}
    found = {}
    for name, spec in parsed.items():
        said = [spec.name if spec else name]
        like = [other.options for other in parsed.values() if other and other.name == said[0]]
        for option, value in spec.options.items() if spec else ():
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
    with needs_extra("the plot", "plots"):
        import matplotlib
        from matplotlib.figure import Figure
    rows = -(-panels // max(SIZES))
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
        is_file = isinstance(path, str | Path)
        about = {} if is_file else {"format": "svg", "metadata": {"Date": None}}
        figure.savefig(path, dpi=150, transparent=not is_file, **about)
