"""Methods on known scores: what they find of exact search, for what number of calls."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.evaluation.measures import bootstrap, exact_top, recall
from crossknn.evaluation.oracle import OracleIndex
from crossknn.evaluation.task import TaskMeasures, summary
from crossknn.index.base import Index, Scale
from crossknn.index.item_index import ItemIndex
from crossknn.index.stored import StoredMatrix
from crossknn.methods import Method
from crossknn.search.loop import simulate
from crossknn.types import NO_ITEM, FloatArray, IntArray, Named, Neighbours, Queries

BATCH = 64
"""Queries searched together: bounds the memory to BATCH x n approximate scores."""

Part: TypeAlias = tuple[Index, Queries, FloatArray]
"""Queries (r) that are searched together: the index as they see it, they, their scores (r, n)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a method found for m queries: `items` (m, k) best first, padded with -1, and its cost.

    `scores` (m, k) are exact; `calls` and `seconds` (outside scoring) are sums over the queries.
    `scored` (m, b) are all items whose exact score was asked, padded with -1; of a method that
    makes no calls its answers.
    """

    items: IntArray
    scores: FloatArray
    calls: int
    seconds: float
    scored: IntArray


@dataclass(frozen=True, slots=True)
class RecallRow:
    """One line of a replay; `recall` and `ci` in 0-1, `calls` and `seconds` per query.

    `index_calls` were made once, before all queries, for what the method reads. `measures` are the
    task's own (the same for every k), with their intervals and the number of queries that have a
    value; `unjudged` queries have none.
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
    measures: Mapping[str, float | None] = field(default_factory=dict)
    measures_ci: Mapping[str, tuple[float, float] | None] = field(default_factory=dict)
    measures_n: Mapping[str, int] = field(default_factory=dict)
    unjudged: int = 0

    def as_dict(self) -> dict[str, object]:
        """The row as JSON-ready values; without the task's measures if there are none."""
        own = () if self.measures else ("measures", "measures_ci", "measures_n", "unjudged")
        return {name: value for name, value in asdict(self).items() if name not in own}


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """What a method did at a budget, query by query: every array is (m,).

    `recall[k]` is in 0-1, `calls` are distinct pairs whose score was used, `seconds` (outside
    scoring) those of the query's batch divided by its queries. `task` has the task's measures, NaN
    where a query has no value.
    """

    method: str
    budget: int
    seed: int
    recall: Mapping[int, FloatArray]
    calls: IntArray
    seconds: FloatArray
    task: Mapping[str, FloatArray]
    unjudged: int = 0
    index_calls: int = 0

    def rows(self) -> Iterator[RecallRow]:
        """A row for each k: means over the queries, and intervals."""
        measures = summary(self.task, seed=self.seed)
        known = {name: found for name, found in measures.items() if found.n}
        intervals = {n: (round(e.low, 5), round(e.high, 5)) for n, e in known.items()}
        for k, values in self.recall.items():
            found = bootstrap(values, seed=self.seed)
            yield RecallRow(
                method=self.method,
                k=k,
                budget=self.budget,
                recall=round(found.mean, 5),
                ci=(round(found.low, 5), round(found.high, 5)),
                n_queries=len(values),
                calls=round(float(self.calls.mean()), 2),
                seconds=round(float(self.seconds.mean()), 6),
                seed=self.seed,
                index_calls=self.index_calls,
                measures={n: round(e.mean, 5) if e.n else None for n, e in measures.items()},
                measures_ci={name: intervals.get(name) for name in measures},
                measures_n={name: found.n for name, found in measures.items()},
                unjudged=self.unjudged,
            )


class Metered:
    """An index that notes what a search reads of what had cost cross-encoder calls (AXN, 3).

    That is anchors, item scores, fitted vectors and artifacts. It stands for the index in a search.
    A stored matrix does not say what its fitted vectors had cost: they count as nothing.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._read: set[str] = set()
        fitted = index.fitted if isinstance(index, ItemIndex) else {}
        self._costs = {name: vectors.cost.calls for name, vectors in fitted.items()}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._index, name)
        self._read.update(value if name == "artifacts" else (name,))
        return value

    @property
    def vectors(self) -> Named[FloatArray]:
        """Item vectors (n, d) by name."""

        def read(name: str) -> FloatArray:
            self._read.add(name)
            return self._index.vectors[name]

        return Named(self._index.vectors, read)

    def graph(self, name: str, k: int) -> Neighbours:
        """The nearest other items of every item, by vectors or words: (n, k)."""
        self._read.add(name)
        return self._index.graph(name, k)

    def scale(self, name: str) -> Scale | None:
        """The scale of vectors: fitted with them, or on the anchors."""
        self._read.add(name if name in self._costs else "anchors")
        return self._index.scale(name)

    @property
    def calls(self) -> int:
        """Cross-encoder calls that went into what was read."""
        index, read = self._index, self._read
        anchors = index.anchors if "anchors" in read else None
        pairs = [a.meta.get("pairs", 0) for name, a in index.artifacts.items() if name in read]
        calls = max(anchors.scores.size if anchors else 0, *pairs, 0)  # fits include the anchors
        item_scores = index.item_scores if "item_scores" in read else None
        calls += item_scores.scores.size if item_scores else 0
        return calls + sum(cost for name, cost in self._costs.items() if name in read)


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
    """Search m queries with known exact `scores` (m, n). The retrievers of `oracle` are at hand."""
    began = time.perf_counter()
    search = simulate(method.plan(OracleIndex(index, scores), budget, seed), queries, scores)
    best = search.best(k)
    seconds = time.perf_counter() - began
    short = ((0, 0), (0, k - best.items.shape[1]))
    items = np.pad(best.items, short, constant_values=NO_ITEM)
    return Answer(
        items,
        np.pad(best.scores, short, constant_values=np.nan),
        int(search.n_scored.sum()),
        seconds,
        search.observed().items if method.calls else items,
    )


def outcome(
    name: str,
    method: Method,
    parts: Sequence[Part],
    truth: IntArray,
    *,
    budget: int,
    ks: Sequence[int],
    seed: int = 0,
    task: TaskMeasures | None = None,
) -> Outcome:
    """Search all queries of `parts`, m in all.

    Args:
        truth: their exact top items (m, max(ks)).
        budget: calls per query; 0 for a method that makes none.
        task: adds the task's measures; its judgements are of these queries in order.
    """
    depth = max(*ks, task.depth if task else 1)
    values: list[dict[str, FloatArray]] = []
    answers, calls, seconds, index_calls, start = [], [], [], 0, 0
    for index, queries, scores in parts:
        metered, r = Metered(index), len(queries)
        got = answer(method, metered, queries, scores, budget=budget, k=depth, seed=seed)
        answers.append(got.items)
        values.append(task.values(got.items, got.scored, start=start) if task else {})
        made = np.count_nonzero(got.scored != NO_ITEM, axis=1) if method.calls else 0
        calls.append(np.full(r, made))
        seconds.append(np.full(r, got.seconds / r))
        index_calls, start = max(index_calls, metered.calls), start + r
    items = np.concatenate(answers)
    return Outcome(
        method=name,
        budget=budget,
        seed=seed,
        recall={k: recall(items[:, :k], truth[:, :k]) for k in ks},
        calls=np.concatenate(calls),
        seconds=np.concatenate(seconds),
        task={m: np.concatenate([part[m] for part in values]) for m in values[0]},
        unjudged=task.judgements.take(0, start).unjudged if task else 0,
        index_calls=index_calls,
    )


def parts_of(matrix: StoredMatrix, queries: int | None = None) -> list[Part]:
    """The first `queries` test queries of a matrix, or all of them, in batches."""
    if queries is not None and queries < 1:
        raise InputError(f"queries is {queries}; it must be 1 or more")
    tests = matrix.n_tests if queries is None else min(queries, matrix.n_tests)
    return [matrix.rows(s, min(s + BATCH, tests)) for s in range(0, tests, BATCH)]


def truth_of(parts: Sequence[Part], k: int) -> IntArray:
    """The exact top k of all queries of `parts`: (m, k)."""
    return np.concatenate([exact_top(scores, k) for _, _, scores in parts])


def check(parts: Sequence[Part], methods: Mapping[str, Method], budget: int, seed: int) -> None:
    """Plan every method once: what one of them lacks is said before anything is searched."""
    index, _, scores = parts[0]
    for method in methods.values():
        method.plan(OracleIndex(index, scores), budget, seed)


def outcomes(
    parts: Sequence[Part],
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    seed: int = 0,
    task: TaskMeasures | None = None,
) -> Iterator[Outcome]:
    """Every method at every budget, searched as they are asked for.

    A method that makes no calls has one budget, 0. `task` adds the task's measures.
    """
    truth = truth_of(parts, max(ks))
    for name, method in methods.items():
        for budget in budgets if method.calls else (0,):
            yield outcome(name, method, parts, truth, budget=budget, ks=ks, seed=seed, task=task)


def replay(
    matrix: StoredMatrix,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    seed: int = 0,
    queries: int | None = None,
    task: TaskMeasures | None = None,
) -> Iterator[RecallRow]:
    """Rows of every method, budget and k, over the first `queries` test queries of a matrix."""
    parts = parts_of(matrix, queries)
    for found in outcomes(parts, methods, budgets, ks, seed=seed, task=task):
        yield from found.rows()
