"""Panels to draw on, and what is done to all of them: few lines, names at the ends of curves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from crossknn.errors import MissingExtraError
from crossknn.plots.style import INK, QUIET, RULE

Target: TypeAlias = str | Path | BinaryIO
"""Where a picture goes: a file, whose suffix says what it is, or an open one, which gets SVG."""

RECALL = "recall against exact search (%)"
"""What is drawn where nothing else is said."""

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
    """Panels to draw on, of `size` inches each, with `side` inches for labels at the right.

    The picture is saved when all is drawn, `note` in small letters below. Raises
    MissingExtraError without matplotlib.
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


def room(labels: Iterable[str]) -> float:
    """Inches that the longest of the labels takes."""
    return 0.45 + 0.07 * max((len(label) for label in labels), default=0)


def bare(panel: Any, *, axis: str = "y") -> None:
    """Nothing but thin lines across."""
    panel.grid(axis=axis)


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
    """From 0 to 100, whatever the values: pictures beside each other can be compared."""
    panel.set_ylim(0, 103)
    panel.set_yticks(range(0, 101, 20))


def powers(axis: Any) -> None:
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
