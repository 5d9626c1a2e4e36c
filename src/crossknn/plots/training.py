"""The course of a training."""

from __future__ import annotations

import json
from pathlib import Path

from crossknn.plots.panels import Target, bare, label_ends, picture, room
from crossknn.plots.style import OTHERS


def training_curve(log: str | Path, path: Target) -> None:
    """Save a picture of a training log: the loss over the steps, and the dev measures beside it.

    Raises MissingExtraError without matplotlib.
    """
    lines = [json.loads(line) for line in Path(log).read_text(encoding="utf-8").splitlines()]
    losses = [line for line in lines if "loss" in line]
    dev = [line for line in lines if "dev" in line]
    names = list(dev[0]["dev"]) if dev else []
    size = (5.4, 3.2)
    with picture(path, title="Training", panels=2, size=size, side=room(names)) as (left, right):
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
            bare(panel)
