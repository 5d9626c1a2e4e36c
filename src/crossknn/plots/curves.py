"""Lines with intervals: recall against calls, rounds, depth, or whatever was varied."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crossknn.plots.panels import (
    PER_ROW,
    RECALL,
    Target,
    bare,
    label_ends,
    logarithmic,
    percent_axis,
    picture,
    powers,
    room,
)
from crossknn.plots.style import Styles, labels_of, styles_of

if TYPE_CHECKING:
    from crossknn.evaluation.measures import Estimate
    from crossknn.evaluation.replay import RecallRow


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


Panels = Mapping[str, Sequence[Curve]]
"""Curves of each panel, by the panel's title."""


def curves(
    panels: Panels,
    path: Target,
    *,
    title: str,
    x_label: str,
    y_label: str = RECALL,
    log: bool = True,
    log_y: bool = False,
    percent: bool = True,
    labels: Mapping[str, str] | None = None,
    styles: Styles | None = None,
    note: str = "",
) -> None:
    """Save a picture with a panel for each title, a line for each curve, and bands for intervals.

    `log` and `log_y` say which axes are logarithmic. With `percent` values are shares, drawn from 0
    to 100%. `labels` and `styles` are by the
    curves' names; by default those of `labels_of` and `styles_of`. Raises MissingExtraError
    without matplotlib.
    """
    names = list(dict.fromkeys(curve.name for found in panels.values() for curve in found))
    said = labels_of(names) | dict(labels or {})
    looks = styles_of(names) | dict(styles or {})
    scale = 100.0 if percent else 1.0
    side = room(said[name] for name in names)
    with picture(path, title=title, note=note, panels=len(panels), side=side) as axes:
        for panel, (head, found) in zip(axes, panels.items(), strict=True):
            panel.set_title(head)
            panel.set_xlabel(x_label)
            places = [x for curve in found for x in curve.x if x is not None]
            if log and places:
                logarithmic(panel, places)
            for curve in found:
                _draw(panel, curve, looks[curve.name].line(), scale, min(0.13, 0.4 / len(found)))
            if log_y:
                panel.set_yscale("log")
                powers(panel.yaxis)
            if percent:
                percent_axis(panel)
            bare(panel)
        for panel in axes[:: -(-len(axes) // -(-len(axes) // PER_ROW))]:
            panel.set_ylabel(y_label)
        last = list(panels.values())[-1]
        ends = [(scale * c.y[-1], said[c.name], looks[c.name].colour) for c in last if len(c.y)]
        label_ends(axes[-1], ends)


def recall_against_cost(
    rows: Sequence[RecallRow],
    path: Target,
    *,
    title: str,
    labels: Mapping[str, str] | None = None,
    styles: Styles | None = None,
    note: str = "",
) -> None:
    """Save a picture: one panel for each k, one line for each method, 95% intervals as bands.

    ANNCUR 3b and 10-24, ADACUR 2 and 9-20, AXN 7. A method without calls is drawn across. `labels`
    gives methods shorter names. Raises MissingExtraError without matplotlib.
    """
    curves(
        {f"top {k}": curves_of(rows, k) for k in sorted({row.k for row in rows})},
        path,
        title=title,
        x_label="cross-encoder calls per query",
        labels=labels,
        styles=styles,
        note=note,
    )


def recall_against_rounds(
    panels: Panels,
    path: Target,
    *,
    title: str,
    labels: Mapping[str, str] | None = None,
    styles: Styles | None = None,
    note: str = "",
) -> None:
    """Save a picture of recall against the number of rounds (ADACUR 3, AXN 6).

    A curve for each budget or method; one round of a method that begins with a dual encoder is
    retrieve-and-rerank. Raises MissingExtraError without matplotlib.
    """
    curves(panels, path, title=title, x_label="rounds", labels=labels, styles=styles, note=note)


def recall_at_depth(
    panels: Panels,
    path: Target,
    *,
    title: str,
    labels: Mapping[str, str] | None = None,
    styles: Styles | None = None,
    note: str = "",
) -> None:
    """Save a picture of Top-k-Recall@m: the same number m retrieved and reranked (ANNCUR 3a).

    Raises MissingExtraError without matplotlib.
    """
    x_label = "items retrieved and reranked"
    curves(panels, path, title=title, x_label=x_label, labels=labels, styles=styles, note=note)


def curves_of(rows: Sequence[RecallRow], k: int) -> list[Curve]:
    """Recall over the budgets, a curve for each method, from the rows of one k."""
    found = []
    for name in dict.fromkeys(row.method for row in rows):
        line = sorted((r for r in rows if (r.method, r.k) == (name, k)), key=lambda r: r.budget)
        found.append(
            Curve(
                name=name,
                x=[r.budget or None for r in line],
                y=[r.recall for r in line],
                low=[r.ci[0] for r in line],
                high=[r.ci[1] for r in line],
            )
        )
    return found


def _draw(panel: Any, curve: Curve, look: dict[str, Any], scale: float, shade: float) -> None:
    y = [scale * value for value in curve.y]
    if None in curve.x:
        panel.axhline(y[-1], color=look["color"], ls=look["ls"], lw=1.2)
        return
    panel.plot(curve.x, y, **look)
    if len(curve.low):
        low, high = ([scale * v for v in ends] for ends in (curve.low, curve.high))
        panel.fill_between(curve.x, low, high, color=look["color"], alpha=shade, lw=0)
