"""How long a study will search: each method is tried on a few queries first."""

from __future__ import annotations

import time
from collections.abc import Iterable

from threadpoolctl import threadpool_limits

from crossknn.errors import InputError
from crossknn.evaluation.replay import Part, check, outcome, parts_of, truth_of
from crossknn.methods import Method
from crossknn.types import IntArray
from crossknn_lab.report.study import SWEEPS, Study
from crossknn_lab.table import CELLS

SAMPLE = 2
"""Queries that every method is tried on."""


def hours(study: Study, names: Iterable[str]) -> float:
    """About how long `study.run` takes for what is not found yet, in hours.

    Every method is timed once, at the largest budget on the matrix with the most anchors; a search
    is taken to last in proportion to its queries, calls and items.
    """
    rows = {
        row.cell.key: row
        for name in dict.fromkeys(names)
        for sweep in study.sweeps(name)
        for row in study.rows(sweep)
    }
    known = {path.stem for path in (study.folder / SWEEPS / CELLS).glob("*.json")}
    left = [row for key, row in rows.items() if key not in known]
    largest = max(study.budgets)
    data = max(study.data, key=lambda data: (data.file.n_anchors, data.file.n_items))
    parts = parts_of(study.matrix(data), SAMPLE)
    truth = truth_of(parts, max(study.k))
    each: dict[str, float] = {}
    for row in left:
        if row.setting.spec not in each:
            each[row.setting.spec] = _seconds(row.setting.method, parts, truth, largest)
    seconds = sum(
        each[row.setting.spec]
        * row.cell.queries
        * (row.cell.budget or largest)
        / largest
        * row.matrix.n_items
        / data.file.n_items
        for row in left
    )
    return seconds / study.workers / 3600


def _seconds(method: Method, parts: list[Part], truth: IntArray, budget: int) -> float:
    """Of one query on one thread; 0 where the matrix lacks what the method needs."""
    with threadpool_limits(1):
        try:
            check(parts, {"": method}, budget, 0)
        except InputError:
            return 0.0
        began = time.process_time()
        outcome("", method, parts, truth, budget=budget, ks=[truth.shape[1]])
    return (time.process_time() - began) / len(truth)
