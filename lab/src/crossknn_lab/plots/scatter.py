"""Points: approximate against exact scores, and one measure against another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossknn.plots.panels import Target, bare, label_ends, picture, room, spread
from crossknn.plots.style import INK, OTHERS, QUIET, Styles, labels_of, styles_of
from crossknn.types import FloatArray, IntArray


@dataclass(frozen=True, kw_only=True, eq=False)
class Approximation:
    """One query's scores with all items: `exact` (n,), `approx` (n,), and the `anchors` (b,)."""

    exact: FloatArray
    approx: FloatArray
    anchors: IntArray


@dataclass(frozen=True, kw_only=True)
class MeasurePoint:
    """A method at a setting: two measures in 0-1, each with its 95% interval; `at` is the setting.

    Points of one name are joined in their order.
    """

    name: str
    at: str
    x: float
    x_ci: tuple[float, float]
    y: float
    y_ci: tuple[float, float]


def exact_against_approx(
    panels: Mapping[str, Approximation],
    path: Target,
    *,
    title: str,
    ks: Sequence[int] = (1, 10, 100),
    note: str = "",
) -> None:
    """Save a picture of a query's approximate scores over the exact ones (ADACUR 1, 6 and 8).

    A point for each item, on the diagonal if the approximation is right. Anchor items are marked,
    lines across say where the top k by exact score begin, and the darker an item, the better its
    approximate rank. Raises MissingExtraError without matplotlib.
    """
    low, high = _limits([scores for p in panels.values() for scores in (p.exact, p.approx)])
    with picture(
        path, title=title, note=note, panels=len(panels), size=(3.6, 3.7), side=0.9
    ) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            rank = np.argsort(np.argsort(-found.approx, kind="stable"), kind="stable")
            for depth, colour in ((None, "#c9d1d9"), (500, "#8b97a5"), (100, "#4d5865")):
                seen = rank < (len(rank) if depth is None else depth)
                look = {"s": 4, "lw": 0, "color": colour, "rasterized": True}
                panel.scatter(found.exact[seen], found.approx[seen], **look)
            anchors = {"s": 14, "lw": 0.9, "fc": "none", "ec": OTHERS[0], "rasterized": True}
            panel.scatter(found.exact[found.anchors], found.approx[found.anchors], **anchors)
            panel.plot([low, high], [low, high], color=QUIET, lw=0.8, ls=(0, (4, 3)))
            _mark_tops(panel, found.exact, [k for k in ks if k <= len(found.exact)])
            panel.set_title(head)
            panel.set_xlabel("exact score")
            panel.set_xlim(low, high)
            panel.set_ylim(low, high)
        axes[0].set_ylabel("approximate score")
        lines = [("anchor items", OTHERS[0]), ("approx. top 100", "#4d5865")]
        lines += [("approx. top 500", "#8b97a5"), ("the other items", "#a3abb6")]
        for n, (name, colour) in enumerate(lines):
            place = {"xy": (1.04, 0.98 - 0.08 * n), "xycoords": "axes fraction", "va": "top"}
            axes[-1].annotate(name, **place, color=colour, fontsize=8.5, annotation_clip=False)


def two_measures(
    points: Sequence[MeasurePoint],
    path: Target,
    *,
    title: str,
    x_label: str,
    y_label: str,
    across: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    styles: Styles | None = None,
    note: str = "",
) -> None:
    """Save a picture of one measure against another: is better k-NN better retrieval? (AXN 3)

    A line for each method through its settings (budgets, say), with the 95% intervals of the last;
    `across` are values of y drawn as lines, of exact search for instance. In percent. Raises
    MissingExtraError without matplotlib.
    """
    names = list(dict.fromkeys(point.name for point in points))
    said, looks = labels_of(names) | dict(labels or {}), styles_of(names) | dict(styles or {})
    lines = {name: [p for p in points if p.name == name] for name in names}
    across = across or {}
    settings = list(dict.fromkeys(p.at for line in lines.values() if len(line) > 1 for p in line))
    along = f"Along a line: {', '.join(settings)}. " if settings else ""
    note = note or f"{along}Crosses: 95% intervals of the last point."
    side = room([*(said[name] for name in names), *across])
    with picture(path, title=title, note=note, size=(6.0, 4.4), side=side) as (panel,):
        for name, line in lines.items():
            panel.plot([100 * p.x for p in line], [100 * p.y for p in line], **looks[name].line())
            last = line[-1]
            reach = {"xerr": _reach(last.x, last.x_ci), "yerr": _reach(last.y, last.y_ci)}
            faint = {"ecolor": looks[name].colour, "elinewidth": 0.9, "alpha": 0.5}
            panel.errorbar([100 * last.x], [100 * last.y], fmt="none", **reach, **faint)
        for value in across.values():
            panel.axhline(100 * value, color=QUIET, lw=1, ls=(0, (4, 3)))
        panel.set_xlabel(x_label)
        panel.set_ylabel(y_label)
        bare(panel, axis="both")
        ends = [(100 * lines[name][-1].y, said[name], looks[name].colour) for name in names]
        label_ends(panel, ends + [(100 * value, name, QUIET) for name, value in across.items()])


def _reach(value: float, ends: tuple[float, float]) -> list[list[float]]:
    """Below and above, in points of percent, of a value in 0-1."""
    return [[100 * max(value - ends[0], 0.0)], [100 * max(ends[1] - value, 0.0)]]


def _limits(values: Sequence[FloatArray]) -> tuple[float, float]:
    low = min(float(v.min()) for v in values)
    high = max(float(v.max()) for v in values)
    edge = 0.04 * (high - low or 1.0)
    return low - edge, high + edge


def _mark_tops(panel: Any, exact: FloatArray, ks: Sequence[int]) -> None:
    """Where the top k begin on the x axis, k written at the upper edge, apart from each other."""
    order = np.sort(exact)[::-1]
    low, high = float(order[-1]), float(order[0])
    at = [float(order[k - 1]) for k in ks]
    for value in at:
        panel.axvline(value, color=QUIET, lw=0.6, ls=":")
    width = high - low or 1.0
    places = spread([(value - low) / width for value in reversed(at)], 0.085)
    for place, k in zip(places, reversed(ks), strict=True):
        text = {"fontsize": 7.5, "color": INK, "ha": "center", "va": "bottom"}
        panel.annotate(
            str(k), (low + place * width, 0.0), **text, xycoords=("data", "axes fraction")
        )
