"""What the time of a search is made of (ADACUR, figure 4; AXN, figure 5)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from crossknn.errors import InputError
from crossknn.evaluation.replay import Part, parts_of
from crossknn.methods import Method, method
from crossknn.search.loop import simulate
from crossknn.search.predictor import Predictor
from crossknn.types import Candidates, Observed
from crossknn_lab.approximation import Wrapped
from crossknn_lab.plots import Stack, stacked_bars
from crossknn_lab.report.data import Data
from crossknn_lab.report.exhibits.found import nearest
from crossknn_lab.report.page import Block, draw
from crossknn_lab.report.study import Study

MS_PER_CALL = 2.0
"""A cross-encoder call of six layers on a GPU (AXN B.1): no call is made here."""

CALLS, SOLVE, MULTIPLY, REST = "cross-encoder", "solving", "scores of all items", "the rest"
QUERIES = 16


def breakdown(study: Study, methods: Mapping[str, str]) -> list[Block]:
    """Milliseconds per query by step: a group for each method, a bar for each number of rounds.

    `methods` are specs by name, with `{rounds}` where rounds are varied.
    """
    data = max(study.data, key=lambda data: data.file.n_items)
    if not data.file.n_anchors or "dense" not in data.vectors:
        raise InputError(f"{data.name}, the largest matrix, lacks anchor queries or a dual encoder")
    budgets = sorted({nearest(study.budgets, 100), nearest(study.budgets, 500)})

    def measured() -> list[dict[str, Any]]:
        return [
            {"group": f"{name}, {budget} calls", "name": str(r), "parts": parts}
            for name, spec in methods.items()
            for budget in budgets
            for r in study.preset.rounds
            if (parts := _steps(study, data, spec.format(rounds=r), budget))
        ]

    options = {"methods": dict(methods), "budgets": budgets, "rounds": study.preset.rounds}
    stacks = [Stack(**found) for found in study.once("latency", data, measured, **options)]
    title = f"{data.name}: what a query's time is made of, by rounds"
    note = (
        f"Calls at {MS_PER_CALL:g} ms each, the papers' figure for a small cross-encoder on a GPU; "
        f"the rest was measured here, {QUERIES} queries together: seconds of one core."
    )
    alt = f"{title}. Stacked bars of milliseconds, a panel for each method and budget."
    return [draw(stacked_bars, stacks, title=title, alt=alt, note=note)]


def _steps(study: Study, data: Data, spec: str, budget: int) -> dict[str, float]:
    """Milliseconds of a query in each step: the second of two runs, caches being warm."""
    part = parts_of(study.matrix(data), QUERIES)[0]
    found = method(spec)
    _timed(found, part, budget)
    return _timed(found, part, budget)


def _timed(found: Method, part: Part, budget: int) -> dict[str, float]:
    index, queries, scores = part
    spent = Clock()
    began = time.thread_time()
    plan = found.plan(index, budget, 0)
    simulate(replace(plan, predictor=Timed(plan.predictor, spent)), queries, scores)
    whole = time.thread_time() - began
    each = 1000 / len(queries)
    return {
        CALLS: MS_PER_CALL * budget,
        SOLVE: each * spent.update,
        MULTIPLY: each * spent.top,
        REST: each * max(0.0, whole - spent.update - spent.top),
    }


class Clock:
    """Seconds spent in a predictor's two steps."""

    def __init__(self) -> None:
        self.update = self.top = 0.0


class Timed(Wrapped):
    """A predictor that notes how long it takes to learn, and to find what promises most."""

    def __init__(self, predictor: Predictor[Any], spent: Clock) -> None:
        super().__init__(predictor)
        self.spent = spent

    def update(self, state: Any, observed: Observed) -> Any:
        began = time.thread_time()
        found = self.predictor.update(state, observed)
        self.spent.update += time.thread_time() - began
        return found

    def top(self, *asked: Any, **also: Any) -> Candidates:
        began = time.thread_time()
        found = self.predictor.top(*asked, **also)
        self.spent.top += time.thread_time() - began
        return found
