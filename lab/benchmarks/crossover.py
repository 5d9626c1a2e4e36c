"""Recall over milliseconds by the scorer's speed: where searching beats reranking, and in how many rounds.

    python lab/benchmarks/crossover.py OUT [MATRIX ...] [--picture FILE]    # prints tables of OUT

Each query of a stored matrix is searched alone, with the anchors' scores and without. OUT (JSON lines) gets the recall
of the cross-encoder's ten best items in percent, and the milliseconds of one core that choosing takes. The time of a
search is that, and what a scorer takes for its rounds: `fixed` ms for a batch of any size and `each` ms for a pair.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from itertools import product
from pathlib import Path

import numpy as np

from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn.scorers.streaming import Pace
from crossknn.search.loop import simulate
from crossknn_lab.curves import Curve, curves
from crossknn_lab.stored import StoredMatrix

QUERIES, K, ROUNDS = 40, 10, (20, 10, 5, 3, 2)
SCORERS = [(0, 0.05), (0, 0.5), (0, 1.6), (0, 10), (0, 100), (5, 0.05), (50, 1), (60, 0)]
"""Milliseconds for a batch and for a pair."""
FEW, MANY = (25, 50, 100, 200, 400), (25, 50, 100, 200, 400, 800, 1600, 2400)
METHODS = {("rerank", 1): MANY, ("axn(rounds=10, ridge=0.3)", 10): FEW}
METHODS |= {("axn(rounds=5, ridge=0.3)", 5): FEW} | {
    (f"auto(rounds={rounds}, use_anchors={use})", rounds): FEW
    for rounds in ROUNDS
    for use in ("true", "false")
}


def measured(path: Path) -> list[list[object]]:
    """Return rows of a matrix: its name, method, rounds, calls, recall and milliseconds."""
    index, queries, scores = StoredMatrix.load(path).rows(0, QUERIES)
    each = [queries.take([q]) for q in range(QUERIES)]
    best, rows = top_k(scores, K).items, list[list[object]]()
    for (spec, rounds), budgets in METHODS.items():
        for budget in budgets:
            plan, took, found = parse_method(spec).plan(index, budget, 0), [], []
            for q, query in enumerate(each):
                began = time.process_time()
                search = simulate(plan, query, scores[q : q + 1])
                took.append(1000 * (time.process_time() - began))
                found.append(np.isin(best[q], search.picks().items).mean())
            row = [path.stem, spec, rounds, budget, 100 * np.mean(found), np.median(took)]
            rows.append(row)
            print(*row, flush=True)
    return rows


class Means(dict[tuple[str, int, int], tuple[float, float]]):
    """Recall and milliseconds of choosing by (method, rounds, calls), means over the matrices."""

    def __init__(self, rows: list[list[object]]) -> None:
        cells = defaultdict(list)
        for _, spec, rounds, budget, *values in rows:
            name = str(spec).partition("(rounds")[0] + "+" * ("true" in str(spec))
            cells[name, rounds, budget].append(values)
        super().__init__({key: tuple(np.mean(found, axis=0)) for key, found in cells.items()})

    def line(self, name: str, fixed: float, each: float) -> tuple[list[float], list[float]]:
        """Return milliseconds and recall by calls; the rounds of `auto` are those of a searcher."""
        pace, points = Pace(), list[tuple[float, float]]()
        pace.curve = fixed / 1000, each / 1000
        for budget in MANY if name == "rerank" else FEW:
            allowed = pace.rounds(20, budget, 1, largest=0, workers=1, apart=False)
            rounds = {"rerank": 1, "axn": 10}.get(name, max(r for r in ROUNDS if r <= allowed))
            recall, ms = self[name, rounds, budget]
            points.append((ms + rounds * fixed + budget * each, recall))
        return [x for x, _ in points], [y for _, y in points]


def tables(means: Means) -> None:
    """Print recall by rounds, and at equal time by scorer."""
    for calls in (50, 100, 200):
        for name in ("auto", "auto+"):
            cells = [means[name, rounds, calls] for rounds in ROUNDS]
            shown = " | ".join(f"{recall:.1f}, {ms:.0f} ms" for recall, ms in cells)
            print(f"| {calls} | {name} | {means['rerank', 1, calls][0]:.1f} | {shown} |")
    for fixed, each in SCORERS:
        for name in ("auto", "auto+"):
            x, y = means.line(name, fixed, each)
            others = [np.interp(x, *means.line(other, fixed, each)) for other in ("rerank", "axn")]
            cells = zip(x, y, *others, strict=True)
            shown = " | ".join("{:,.0f} ms: {:.1f}, {:.1f}, {:.1f}".format(*c) for c in cells)
            print(f"| {fixed} + {each} | {name} | {shown} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("matrices", nargs="*", type=Path)
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    for path in given.matrices:
        rows = measured(path)
        with given.out.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    means = Means([*map(json.loads, given.out.open())])
    tables(means)
    if given.picture:
        names = {"auto+": "auto, with anchors", "auto": "auto", "axn": "axn", "rerank": "rerank"}
        panels = defaultdict(list)
        for (fixed, each), (key, name) in product(SCORERS, names.items()):
            x, y = means.line(key, fixed, each)
            if not fixed:
                shown = Curve(name=name, x=x, y=[recall / 100 for recall in y])
                panels[f"{each:g} ms a pair"].append(shown)
        labels = {"x_label": "milliseconds", "y_label": "its ten best items found"}
        title = "The time of a search, by the scorer's speed"
        curves(panels, given.picture, title=title, highlight=[*names.values()], **labels)


if __name__ == "__main__":
    main()
