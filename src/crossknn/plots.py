"""Recall against cost, drawn (extra `plots`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crossknn.errors import MissingExtraError

if TYPE_CHECKING:
    from crossknn.evaluation.replay import RecallRow

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""


def recall_against_cost(
    rows: Sequence[RecallRow],
    path: str | Path,
    *,
    title: str,
    labels: Mapping[str, str] | None = None,
) -> None:
    """Save a PNG: one panel for each k, one line for each method, 95% intervals as bands.

    `labels` gives methods shorter names. Raises MissingExtraError without matplotlib.
    """
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot as plt
    except ImportError:
        raise MissingExtraError("the plot", "plots") from None
    ks = sorted({row.k for row in rows})
    names = list(dict.fromkeys(row.method for row in rows))
    figure, panels = plt.subplots(
        1, len(ks), figsize=(4.2 * len(ks) + 1.6, 4.2), squeeze=False, layout="constrained"
    )
    for panel, k in zip(panels[0], ks, strict=True):
        ends = []
        for name in names:
            line = sorted(
                (r for r in rows if r.k == k and r.method == name), key=lambda r: r.budget
            )
            colour = COLOURS[names.index(name) % len(COLOURS)]
            budgets = [r.budget for r in line]
            panel.plot(budgets, [100 * r.recall for r in line], "o-", color=colour, ms=3.5, lw=1.8)
            low, high = [100 * r.ci[0] for r in line], [100 * r.ci[1] for r in line]
            panel.fill_between(budgets, low, high, color=colour, alpha=0.10, lw=0)
            ends.append((100 * line[-1].recall, (labels or {}).get(name, name), colour))
        _label_ends(panel, ends, last=panel is panels[0][-1])
        _frame(panel, k, sorted({r.budget for r in rows}))
    panels[0][0].set_ylabel("recall against exact search (%)")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _frame(panel: Any, k: int, budgets: Sequence[int]) -> None:
    panel.set_title(f"top {k}", loc="left", fontsize=10)
    panel.set_xlabel("cross-encoder calls per query")
    panel.set_xscale("log")
    panel.set_xticks(budgets, [str(b) for b in budgets])
    panel.minorticks_off()
    panel.set_ylim(bottom=0, top=103)
    panel.grid(axis="y", color="#dddddd", lw=0.6)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)


def _label_ends(panel: Any, ends: Sequence[tuple[float, str, str]], *, last: bool) -> None:
    """Write each line's name at its end, pushed apart where lines meet; on the last panel only."""
    if not last:
        return
    gap, previous = 5.5, -100.0
    for height, name, colour in sorted(ends):
        place = max(height, previous + gap)
        previous = place
        panel.annotate(
            name,
            xy=(1, place),
            xycoords=("axes fraction", "data"),
            xytext=(6, 0),
            textcoords="offset points",
            color=colour,
            fontsize=8.5,
            va="center",
            annotation_clip=False,
        )
