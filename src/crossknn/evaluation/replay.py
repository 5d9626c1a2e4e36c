"""Methods on a stored score matrix: what they find of exact search, for what number of calls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from crossknn.evaluation.measures import bootstrap, exact_top, recall
from crossknn.indexes.stored import StoredMatrix
from crossknn.methods import Method
from crossknn.search import Search

BATCH = 64
"""Queries searched together: bounds the memory to BATCH x n approximate scores."""


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One line of a replay; `recall` and `ci` in 0-1, `calls` and `seconds` per query."""

    method: str
    k: int
    budget: int
    recall: float
    ci: tuple[float, float]
    n_queries: int
    calls: float
    seconds: float
    seed: int

    def as_dict(self) -> dict[str, object]:
        """The row as JSON-ready values."""
        return asdict(self)


def replay(
    matrix: StoredMatrix,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    seed: int = 0,
    queries: int | None = None,
) -> Iterator[ReplayRow]:
    """Rows of every method and budget, for every k that the matrix has items for.

    `queries` limits the test queries to the first so many. `seconds` is time outside scoring.
    """
    n = matrix.scores.shape[1]
    tests = matrix.n_tests if queries is None else min(queries, matrix.n_tests)
    where = slice(matrix.n_anchors, matrix.n_anchors + tests)
    truths = {k: exact_top(matrix.scores[where], min(k, n)) for k in ks}
    for name, method in methods.items():
        for budget in budgets:
            found, calls, seconds = _search(matrix, method, budget, max(ks), tests, seed)
            for k in ks:
                values = recall(found[:, :k], truths[k])
                interval = bootstrap(values, seed=seed)
                yield ReplayRow(
                    method=name,
                    k=k,
                    budget=budget,
                    recall=round(interval.mean, 5),
                    ci=(round(interval.low, 5), round(interval.high, 5)),
                    n_queries=tests,
                    calls=round(calls / tests, 2),
                    seconds=round(seconds / tests, 6),
                    seed=seed,
                )


def _search(
    matrix: StoredMatrix, method: Method, budget: int, k: int, tests: int, seed: int
) -> tuple[np.ndarray, int, float]:
    """Positions found (tests, k), calls and seconds of all test queries."""
    found, calls, seconds = [], 0, 0.0
    for start in range(0, tests, BATCH):
        index, queries, scores = matrix.rows(start, min(start + BATCH, tests))
        began = time.perf_counter()
        search = Search(method.plan(index, budget, seed), queries, index.n)
        while len(pairs := search.ask()):
            search.tell(pairs, scores[pairs.query, pairs.item])
        best = search.best(k).items
        seconds += time.perf_counter() - began
        calls += int(search.revealed.sum())
        pad = np.full((len(best), max(0, k - best.shape[1])), -1)
        found.append(np.concatenate([best, pad], axis=1))
    return np.concatenate(found), calls, seconds
