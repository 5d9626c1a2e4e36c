"""What the milliseconds of a search are, by method and number of rounds (ADACUR, figure 4; AXN, figure 5).

    python lab/benchmarks/steps.py OUT MATRIX ...       # without a matrix: print OUT as a table

Queries are searched one at a time, on one thread if OMP_NUM_THREADS is 1, and OUT (JSON) gets the median milliseconds
of each step: the linear system, the approximate scores of all items, the choice of the best items, and the rest. The
cross-encoder's time is the number of calls times `PAIR`, the 2 ms of AXN, B.1.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.methods import parse_method
from crossknn.methods.base import Prediction, Predictor
from crossknn.search.loop import simulate
from crossknn.types import Candidates, Queries
from crossknn_lab.stored import StoredMatrix

QUERIES, BUDGETS, ROUNDS, PAIR = 30, (100, 500), (1, 2, 5, 10, 20), 2.0
METHODS = {
    "anncur": "anncur(anchor_share=0.5)",
    "adacur": "adacur(retriever=dense, rounds={rounds})",
    "axn": "axn(retriever=dense, rounds={rounds}, blend=0.5)",
    "axn, ridge": "axn(retriever=dense, rounds={rounds}, ridge=0.3)",
}
STEPS = ("solve", "scores", "choose", "rest")


class Timed(Predictor[Any]):
    """A predictor whose seconds are added up by step."""

    def __init__(self, inner: Predictor[Any]) -> None:
        self.inner, self.seconds = inner, dict.fromkeys(STEPS, 0.0)

    def clocked(self, step: str, work: Callable[..., Any], *given: Any) -> Any:
        began = time.perf_counter()
        found = work(*given)
        self.seconds[step] += time.perf_counter() - began
        return found

    def start(self, queries: Queries) -> Any:
        return self.inner.start(queries)

    def update(self, *given: Any) -> Any:
        return self.clocked("solve", self.inner.update, *given)

    def predict(self, *given: Any) -> Prediction:
        return self.clocked("scores", self.inner.predict, *given)

    def top(self, *given: Any) -> Candidates:
        before = self.seconds["scores"]
        best = self.clocked("choose", super().top, *given)
        self.seconds["choose"] += before - self.seconds["scores"]
        return best


def measured(matrix: StoredMatrix, spec: str, budget: int) -> dict[str, float]:
    """Return the median milliseconds per query of each step."""
    plan = parse_method(spec).plan(matrix, budget, 0)
    rows = []
    for q in range(-1, min(QUERIES, matrix.n_tests)):  # the first query is searched twice
        _, queries, scores = matrix.rows(max(q, 0), max(q, 0) + 1)
        timed = Timed(plan.predictor)
        began = time.perf_counter()
        simulate(replace(plan, predictor=timed), queries, scores)
        whole = time.perf_counter() - began
        timed.seconds["rest"] = whole - sum(timed.seconds.values())
        rows.append([1000 * timed.seconds[step] for step in STEPS])
    return dict(zip(STEPS, np.median(rows[1:], axis=0).round(2).tolist(), strict=True))


def main() -> None:
    out, *matrices = map(Path, sys.argv[1:])
    rows: list[dict[str, Any]] = json.loads(out.read_text()) if out.exists() else []
    for path in matrices:
        matrix = StoredMatrix.load(path)
        for name, spec in METHODS.items():
            for budget in BUDGETS:
                for rounds in ROUNDS if "{" in spec else (2,):
                    steps = measured(matrix, spec.format(rounds=rounds), budget)
                    about = {"set": path.stem, "items": matrix.n, "anchors": matrix.n_anchors}
                    about |= {"method": name, "budget": budget, "rounds": rounds}
                    rows.append(about | steps)
        out.write_text(json.dumps(rows, indent=0) + "\n")
    print(
        "| method | calls | rounds | linear system | scores of all items | choice | rest ", end=""
    )
    print(f"| share of the whole at {PAIR:g} ms a pair |\n{'|---' * 8}|")
    for row in rows:
        took = [row[step] for step in STEPS]
        cells = [f"`{row['method']}`", row["budget"], row["rounds"], *(f"{x:.1f}" for x in took)]
        share = sum(took) / (sum(took) + PAIR * row["budget"])
        print(f"| {' | '.join(map(str, cells))} | {share:.0%} |")


if __name__ == "__main__":
    main()
