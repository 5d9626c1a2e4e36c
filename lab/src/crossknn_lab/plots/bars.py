"""Bars: recall by group with intervals, and what a time is made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from crossknn.plots.panels import RECALL, Target, bare, label_ends, percent_axis, picture, room
from crossknn.plots.style import INK, OTHERS, PAPER, QUIET, Styles, labels_of, styles_of


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A method's value in a group (a matrix, a number of anchors), 95% interval beside it."""

    group: str
    name: str
    value: float
    low: float
    high: float


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
    y_label: str = RECALL,
    sizes: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    styles: Styles | None = None,
    note: str = "",
) -> None:
    """Save a picture of shares (0-1) in percent, a bar for each method in each group.

    ANNCUR 4 (groups are |Q_train|), 5 (domains, and below each its number of items, of `sizes`)
    and 7; AXN 3. Raises MissingExtraError without matplotlib.
    """
    groups = list(dict.fromkeys(bar.group for bar in bars))
    names = list(dict.fromkeys(bar.name for bar in bars))
    said, looks = labels_of(names) | dict(labels or {}), styles_of(names) | dict(styles or {})
    hatches, width = _hatches(names, looks), 0.84 / len(names)
    each = max(0.2 + 0.2 * len(names), 0.1 + 0.085 * max(map(len, groups)))
    size, side = (max(3.4, 0.8 + each * len(groups)), 3.7), room(said[name] for name in names)
    with picture(path, title=title, note=note, size=size, side=side) as (panel,):
        for place, name in enumerate(names):
            mine = [bar for bar in bars if bar.name == name]
            at = [groups.index(bar.group) + (place - (len(names) - 1) / 2) * width for bar in mine]
            heights = [100 * bar.value for bar in mine]
            reach = [
                [100 * max(bar.value - bar.low, 0.0) for bar in mine],
                [100 * max(bar.high - bar.value, 0.0) for bar in mine],
            ]
            look = {"fc": looks[name].colour, "ec": PAPER, "lw": 0, "hatch": hatches[name]}
            panel.bar(at, heights, width * 0.9, label=said[name], **look)
            panel.errorbar(at, heights, yerr=reach, fmt="none", ecolor=INK, lw=0.9)
        panel.set_xticks(range(len(groups)), groups)
        panel.tick_params(axis="x", length=0)
        for place, group in enumerate(groups if sizes else ()):
            below = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
            quiet = {"color": QUIET, "fontsize": 8, "ha": "center", "va": "top"}
            panel.annotate(
                f"{(sizes or {})[group]:,.0f} items", (place, 0), (0, -17), **below, **quiet
            )
        panel.set_ylabel(y_label)
        percent_axis(panel)
        bare(panel)
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
    """Save a picture of what a time is made of, a panel for each group.

    AXN 5 and ADACUR 4 (scoring, solving, multiplying, by rounds), AXN 2 (indexing). The whole
    stands above each bar. Raises MissingExtraError without matplotlib.
    """
    groups = list(dict.fromkeys(stack.group for stack in stacks))
    parts = list(dict.fromkeys(part for stack in stacks for part in stack.parts))
    most = max(len([s for s in stacks if s.group == group]) for group in groups)
    size = (max(2.6, 0.7 + 0.5 * most), 3.5)
    with picture(
        path, title=title, note=note, panels=len(groups), size=size, side=room(parts), share_y=True
    ) as axes:
        for panel, group in zip(axes, groups, strict=True):
            mine = [stack for stack in stacks if stack.group == group]
            below = [0.0] * len(mine)
            for n, part in enumerate(parts):
                values = [stack.parts.get(part, 0.0) for stack in mine]
                panel.bar(range(len(mine)), values, 0.72, bottom=below, color=OTHERS[n], lw=0)
                below = [b + v for b, v in zip(below, values, strict=True)]
            for place, whole in enumerate(below):
                over = {"ha": "center", "va": "bottom", "fontsize": 8.5, "color": INK}
                panel.annotate(
                    f"{whole:,.0f}" if whole >= 100 else f"{whole:.3g}", (place, whole), **over
                )
            panel.set_title(group)
            turned = {"rotation": 30, "ha": "right"} if max(len(s.name) for s in mine) > 6 else {}
            panel.set_xticks(range(len(mine)), [stack.name for stack in mine], **turned)
            panel.tick_params(axis="x", length=0)
            bare(panel)
        axes[0].set_ylabel(y_label)
        top, height = 1.16 * max(sum(stack.parts.values()) for stack in stacks), 0.0
        axes[0].set_ylim(0, top)  # room for the numbers above the bars
        ends = []
        for n, part in enumerate(parts):
            share = [stack for stack in stacks if stack.group == groups[-1]][-1].parts.get(
                part, 0.0
            )
            ends.append((min(height + share / 2, top), part, OTHERS[n]))
            height += share
        label_ends(axes[-1], ends)


def _hatches(names: Sequence[str], looks: Styles) -> dict[str, str]:
    """Variants of a method share their colour, so that their bars need another mark."""
    seen: dict[str, int] = {}
    found = {}
    for name in names:
        place = seen.get(looks[name].colour, 0)
        seen[looks[name].colour] = place + 1
        found[name] = ("", "///", "...", "xxx", "---")[place % 5]
    return found
