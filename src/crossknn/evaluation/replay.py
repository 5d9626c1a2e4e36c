"""Methods on known scores: what they find of exact search, for what number of calls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from crossknn.evaluation.measures import bootstrap, exact_top, recall
from crossknn.indexes.base import Index
from crossknn.indexes.stored import StoredMatrix
from crossknn.methods import Method
from crossknn.search import Search
from crossknn.types import NO_ITEM, FloatArray, IntArray, Queries

BATCH = 64
"""Queries searched together: bounds the memory to BATCH x n approximate scores."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method found for m queries: `items` (m, k) best first, padded with -1, and its cost.

    `scores` (m, k) are exact; `calls` and `seconds` (outside scoring) are sums over the queries.
    """

    items: IntArray
    scores: FloatArray
    calls: int
    seconds: float


@dataclass(frozen=True, slots=True)
class RecallRow:
    """One line of a replay; `recall` and `ci` in 0-1, `calls` and `seconds` per query.

    `index_calls` were paid once, before all queries, for what the method reads.
    """

    method: str
    k: int
    budget: int
    recall: float
    ci: tuple[float, float]
    n_queries: int
    calls: float
    seconds: float
    seed: int
    index_calls: int = 0

    def as_dict(self) -> dict[str, object]:
        """The row as JSON-ready values."""
        return asdict(self)


def answer(
    method: Method,
    index: Index,
    queries: Queries,
    scores: FloatArray,
    *,
    budget: int,
    k: int,
    seed: int,
) -> Answer:
    """Search with known exact `scores` (m, n)."""
    began = time.perf_counter()
    search = Search(method.plan(index, budget, seed), queries, index.n)
    while len(pairs := search.ask()):
        search.tell(pairs, scores[pairs.query, pairs.item])
    best = search.best(k)
    seconds = time.perf_counter() - began
    short = ((0, 0), (0, k - best.items.shape[1]))
    return Answer(
        np.pad(best.items, short, constant_values=NO_ITEM),
        np.pad(best.scores, short, constant_values=np.nan),
        int(search.revealed.sum()),
        seconds,
    )


def replay(
    matrix: StoredMatrix,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    seed: int = 0,
    queries: int | None = None,
) -> Iterator[RecallRow]:
    """Rows of every method, budget and k, over the test queries of a stored matrix.

    A method that makes no calls has one budget, 0. `queries` limits the test queries to the first
    so many.
    """
    tests = matrix.n_tests if queries is None else min(queries, matrix.n_tests)
    parts = [matrix.rows(s, min(s + BATCH, tests)) for s in range(0, tests, BATCH)]
    truth = exact_top(np.concatenate([scores for _, _, scores in parts]), max(ks))
    for name, method in methods.items():
        for budget in budgets if method.calls else (0,):
            answers = [answer(method, *part, budget=budget, k=max(ks), seed=seed) for part in parts]
            yield from recall_rows(name, answers, truth, budget=budget, ks=ks, seed=seed)


def recall_rows(
    name: str,
    answers: Sequence[Answer],
    truth: IntArray,
    *,
    budget: int,
    ks: Sequence[int],
    seed: int,
    index_calls: int = 0,
) -> Iterator[RecallRow]:
    """A row for each k, from the answers to all queries and the exact top (m, max(ks)) items."""
    found = np.concatenate([a.items for a in answers])
    m = len(found)
    for k in ks:
        interval = bootstrap(recall(found[:, :k], truth[:, :k]), seed=seed)
        yield RecallRow(
            method=name,
            k=k,
            budget=budget,
            recall=round(interval.mean, 5),
            ci=(round(interval.low, 5), round(interval.high, 5)),
            n_queries=m,
            calls=round(sum(a.calls for a in answers) / m, 2),
            seconds=round(sum(a.seconds for a in answers) / m, 6),
            seed=seed,
            index_calls=index_calls,
        )
