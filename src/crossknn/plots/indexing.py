"""Recall against what was paid before the first query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from crossknn.plots.panels import (
    Target,
    bare,
    label_ends,
    logarithmic,
    percent_axis,
    picture,
    room,
)
from crossknn.plots.style import Styles, labels_of, styles_of

if TYPE_CHECKING:
    from crossknn.evaluation.replay import RecallRow


def recall_against_indexing(
    rows: Sequence[RecallRow],
    path: Target,
    *,
    title: str,
    labels: Mapping[str, str] | None = None,
    styles: Styles | None = None,
) -> None:
    """Save a picture of recall against the calls paid once for the index (AXN 1, 9, 10).

    A panel for each k at the largest budget, a point for each row with its 95% interval, those of
    one method joined; methods that need nothing offline are drawn across. Raises MissingExtraError
    without matplotlib.
    """
    ks, budget = sorted({row.k for row in rows}), max(row.budget for row in rows)
    names = list(dict.fromkeys(row.method for row in rows if row.budget in (budget, 0)))
    said, looks = labels_of(names) | dict(labels or {}), styles_of(names) | dict(styles or {})
    note = "Lines across: nothing was paid for the index."
    side = room(said[name] for name in names)
    with picture(path, title=title, note=note, panels=len(ks), side=side) as axes:
        for panel, k in zip(axes, ks, strict=True):
            ends = []
            for name in names:
                style = looks[name]
                line = sorted(
                    (r for r in rows if (r.method, r.k) == (name, k) and r.budget in (budget, 0)),
                    key=lambda r: r.index_calls,
                )
                recalls = [100 * r.recall for r in line]
                if line[-1].index_calls:
                    reach = [
                        [100 * (r.recall - r.ci[0]) for r in line],
                        [100 * (r.ci[1] - r.recall) for r in line],
                    ]
                    at = [r.index_calls for r in line]
                    panel.errorbar(at, recalls, yerr=reach, capsize=2, elinewidth=1, **style.line())
                else:
                    panel.axhline(recalls[-1], color=style.colour, lw=1.4, ls=style.dash)
                ends.append((recalls[-1], said[name], style.colour))
            panel.set_title(f"top {k}")
            panel.set_xlabel("cross-encoder calls for the index")
            if paid := [r.index_calls for r in rows if r.index_calls]:
                logarithmic(panel, paid)
            percent_axis(panel)
            bare(panel)
        axes[0].set_ylabel(f"recall (%) at {budget} calls per query")
        label_ends(axes[-1], ends)
