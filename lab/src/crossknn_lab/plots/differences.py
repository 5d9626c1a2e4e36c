"""Paired differences with their intervals, a row for each method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossknn.plots.panels import Target, bare, picture
from crossknn.plots.style import INK, QUIET, Styles, labels_of, styles_of


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How much better a method is than the baseline, in a `group`; all in 0-1."""

    group: str
    name: str
    value: float
    low: float
    high: float


def differences(
    rows: Sequence[Difference],
    path: Target,
    *,
    title: str,
    x_label: str = "points of recall above the baseline",
    labels: Mapping[str, str] | None = None,
    styles: Styles | None = None,
    note: str = "",
) -> None:
    """Save a picture of differences in points, a panel for each group and a row for each method.

    An interval that does not touch the line at zero is a difference that these queries support.
    Raises MissingExtraError without matplotlib.
    """
    groups = list(dict.fromkeys(row.group for row in rows))
    names = list(dict.fromkeys(row.name for row in rows))
    said, looks = labels_of(names) | dict(labels or {}), styles_of(names) | dict(styles or {})
    side = 0.072 * max(len(said[name]) for name in names)
    size = (2.8, 1.1 + 0.21 * len(names))
    with picture(
        path, title=title, note=note, panels=len(groups), size=size, side=side, share_y=True
    ) as axes:
        for panel, group in zip(axes, groups, strict=True):
            panel.axvline(0, color=QUIET, lw=1)
            for row in (row for row in rows if row.group == group):
                place, style = names.index(row.name), looks[row.name]
                panel.plot(
                    [100 * row.low, 100 * row.high], [place, place], color=style.colour, lw=2
                )
                face = style.line()["mfc"]
                panel.plot(100 * row.value, place, style.marker, ms=6, mfc=face, mec=style.colour)
            panel.set_title(group)
            panel.set_xlabel(x_label)
            bare(panel, axis="x")
            panel.spines["left"].set_visible(False)
            panel.tick_params(axis="y", length=0)
        axes[0].set_yticks(range(len(names)), [said[name] for name in names], color=INK)
        axes[0].set_ylim(len(names) - 0.4, -0.6)
