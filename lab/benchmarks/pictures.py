"""The pictures of README and docs that show what benchmarks/results holds.

python lab/benchmarks/pictures.py                  # docs/images, from benchmarks/results
python lab/benchmarks/pictures.py WORDNET_ACT.npz  # replays that matrix for recall.json first
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.evaluation.replay import RecallRow
from crossknn.methods import parse_method
from crossknn.plots import (
    OTHERS,
    Curve,
    conclusion,
    curves,
    end_label,
    picture,
    recall_against_cost,
)
from crossknn_lab.replay import replay as replay_of
from crossknn_lab.stored import StoredMatrix

ROOT = Path(__file__).parents[2]
RESULTS, IMAGES = ROOT / "benchmarks" / "results", ROOT / "docs" / "images"
REPLAYED = {
    "auto, 300 queries known": "auto",
    "adacur, 300 queries known": "adacur(retriever=dense)",
    "auto": "kriging(use_anchors=false)",
    "axn": "axn(retriever=dense)",
    "gar": "gar(retriever=dense)",
    "rerank": "rerank(retriever=hybrid)",
}
WAYS = {
    "search fused": "search",
    "rerank fused first": "rerank of the fused retriever",
    "rerank": "rerank",
}
"""What is drawn of `reach.json`, and how it is called."""


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def replay(path: Path) -> None:
    """Write recall.json: recall at 10 of every method, with what 300 queries left and without."""
    rows = []
    for name, spec in REPLAYED.items():
        found = replay_of(
            StoredMatrix.load(path), {spec: parse_method(spec)}, (50, 100, 200), (10,)
        )
        rows += [{**row.as_dict(), "method": name, "spec": spec} for row in found]
    (RESULTS / "recall.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def recall() -> None:
    """What finds the cross-encoder's top 10. The title is about what costs nothing beforehand."""
    fields = ("method", "k", "budget", "recall", "ci", "n_queries", "calls", "seconds", "seed")
    rows = [RecallRow(*(row[f] for f in fields), row["index_calls"]) for row in read("recall.json")]
    title = conclusion([row for row in rows if not row.index_calls])
    note = "6,567 word senses, 100 queries. Bands: 95% intervals."
    recall_against_cost(rows, IMAGES / "recall.png", title=title, note=note)


def gain() -> None:
    """Answers found over calls, in the largest set and in the one with most budgets."""
    sets = {"senses-of-96,523": "among 96,523 senses", "senses-artifact": "among 11,986 senses"}
    rows, panels = read("reach.json")["rows"], {}
    for name, head in sets.items():
        of = [row for row in rows if row["set"] == name]
        budgets = [row["budget"] for row in of]
        panels[head] = [
            Curve(name=said, x=budgets, y=[row["means"][way]["R@20"] for row in of])
            for way, said in WAYS.items()
        ]
        alone = of[0]["means"]["retriever"]["R@20"]
        panels[head].append(Curve(name="retriever alone", x=[None], y=[alone]))
    largest = next(row for row in rows if row["set"] == "senses-of-96,523" and row["budget"] == 50)
    share = {way: largest["means"][way]["R@20"] for way in WAYS}
    low = {way: largest["gain"][way]["R@20"][1:] for way in ("rerank", "rerank, all fused")}
    if not all(ends[0] > 0 and ends[2] <= 0.05 for ends in low.values()):
        raise SystemExit("the gain is not clear: write another title")
    difference = largest["gain"]["rerank, all fused"]["R@20"]
    points = "{:+.1f} points [{:+.1f}, {:+.1f}]".format(*(100 * d for d in difference[:3]))
    curves(
        panels,
        IMAGES / "gain.png",
        title=f"With 50 calls searching finds {share['search fused']:.0%} of the right senses "
        f"among 96,523, reranking {100 * share['rerank']:.0f} to {share['rerank fused first']:.0%}",
        x_label="cross-encoder calls per query",
        y_label="right one in the top 20",
        note=f"Search minus rerank of the fused retriever, 50 calls, 96,523 senses: {points}. "
        "Outside the cross-encoder a search takes 190 ms a query there, 22 among 11,986 "
        "(with today's default, auto: 275 and 41).",
    )


def reach() -> None:
    """Gain over reach: a point for each set and budget."""
    rows = read("reach.json")["rows"]
    title = "Searching can add answers that the retriever misses"
    note = (
        "Search minus rerank, both from the fused retriever and by final scores, on 15 sets; bars: "
        "95% intervals. Missed: not among the retriever's first 20, 50 or 100. Near zero on the right: members and kinds, whose cross-encoders order "
        "hardly better than their retrievers."
    )
    marks = dict(
        zip(
            sorted({row["budget"] for row in rows}),
            zip(OTHERS[:3], "oDv", strict=True),
            strict=True,
        )
    )
    with picture(IMAGES / "reach.png", title=title, note=note, panels=2) as panels:
        for panel, name in zip(panels, ("nDCG@10", "R@20"), strict=True):
            panel.axhline(0, color="#59636e", linewidth=0.8)
            for budget, (colour, marker) in marks.items():
                of = [row for row in rows if row["budget"] == budget]
                x = [100 * row["reach"][0] for row in of]
                cells = [row["gain"]["rerank, all fused"][name][:3] for row in of]
                y, low, high = 100 * np.transpose(cells)
                look = {"fmt": marker, "color": colour, "ms": 4.5, "elinewidth": 0.9}
                panel.errorbar(x, y, [y - low, high - y], label=f"{budget} calls", **look)
            panel.set_title(f"points of {name} gained")
            panel.set_yticks(range(0, 16, 5))
            panel.grid(axis="y")
        panels[0].legend(frameon=False, loc="upper right")
        panels[1].set_xlabel("relevant items that the retriever misses (%)")


def scale() -> None:
    """Milliseconds outside scoring over the number of items, beside the square root."""
    rows = read("scale.json")
    sizes = sorted({row["n"] for row in rows})
    names = {"auto": "auto", "auto, prior": "auto with a prior", "axn": "axn", "rerank": "rerank"}
    drawn = {name: [r["ms"] for r in rows if r["method"] == name] for name in names}
    times, larger = max(line[-1] / line[0] for line in drawn.values()), sizes[-1] / sizes[0]
    if times >= larger**0.5:
        raise SystemExit("the growth is that of the square root: write another title")
    title = f"{larger:.0f} times as many items cost at most {times:.1f} times the milliseconds"
    note = (
        "Outside scoring: 100 calls, one query at a time, one thread, d = 384. Dotted: the growth "
        "of the square root of the number of items."
    )
    with picture(IMAGES / "scale.png", title=title, note=note) as (panel,):
        for (name, line), colour in zip(drawn.items(), OTHERS, strict=False):
            panel.plot(sizes[: len(line)], line, color=colour, marker="o", ms=4)
            end_label(panel, names[name], (sizes[len(line) - 1], line[-1]), colour)
            root = [line[0] * (n / sizes[0]) ** 0.5 for n in sizes]
            panel.plot(sizes, root, color=colour, lw=0.8, ls=":", alpha=0.7)
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xticks(sizes, [f"{n:,}" for n in sizes])
        panel.set_yticks(ticks := [1, 3, 10, 30, 100], map(str, ticks))
        panel.minorticks_off()
        panel.set_xlabel("items")
        panel.set_title("milliseconds per query")
        panel.grid(axis="y")


if __name__ == "__main__":
    for file in sys.argv[1:]:
        replay(Path(file))
    for draw in (recall, gain, reach, scale):
        draw()
