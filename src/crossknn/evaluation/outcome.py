"""The outcome of searching many queries by one method at one budget: answers and cost per query."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import numpy as np

from crossknn.evaluation.measures import Estimate, bootstrap, recall
from crossknn.evaluation.task import TaskMeasures
from crossknn.fitting.multitask import plan_together
from crossknn.index.base import Index
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import top_k
from crossknn.methods import Method
from crossknn.retrievers.base import VectorStore
from crossknn.search.fusion import Fusion
from crossknn.search.groups import Groups
from crossknn.search.loop import Search, drive
from crossknn.search.searcher import K
from crossknn.types import NO_ITEM, FloatArray, IntArray, Named, Pairs, Queries, Scale


@dataclass(frozen=True, eq=False)
class QueryBatch:
    """r queries that are searched together. `score` returns exact scores (p,) of pairs, NaN for a
    pair that cannot be scored; `exact` are all exact scores (r, n), if known."""

    index: Index
    queries: Queries
    score: Callable[[Pairs], FloatArray]
    exact: FloatArray | None = None

    @classmethod
    def scored(cls, index: Index, queries: Queries, exact: FloatArray) -> QueryBatch:
        """Make a batch whose exact scores (r, n) are all known."""
        return cls(index, queries, lambda pairs: exact[pairs.query, pairs.item], exact)


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """Results of a method at one budget, per query.

    Attributes:
        budget: Number of distinct pairs per query.
        recall: By k, the share (m,) of the true top k that was returned, 0 to 1.
        calls: Number (m,) of distinct pairs whose score was used, whether computed or stored.
        seconds: Seconds (m,) outside scoring: the time of a batch, divided by its queries.
        task: By name, the task's measures (m,); NaN where a query has no value.
        unjudged: Number of queries without judgements.
        index_calls: Cross-encoder calls made once, before all queries, for data the method reads.
        fused: Whether a fusion's final score guided the search and ordered the items.
        items: Positions (m, c) of the answers, best first, padded with -1.
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
    fused: bool = False
    items: IntArray = field(default_factory=lambda: np.empty((0, 0), np.int64))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield JSON-ready means over the queries with 95% intervals: one row for each k, or a
        single row without exact search. `recall` is 0-1, `calls` and `seconds` are per query."""
        common = {
            "method": self.method,
            "budget": self.budget,
            "n_queries": len(self.calls),
            "calls": round(float(self.calls.mean()), 2),
            "seconds": round(float(self.seconds.mean()), 6),
            "seed": self.seed,
            "index_calls": self.index_calls,
        }
        if self.fused:
            common["fused"] = True
        if self.task:
            measures = {n: bootstrap(values, seed=self.seed) for n, values in self.task.items()}
            common |= {
                "measures": {n: round(e.mean, 5) if e.n else None for n, e in measures.items()},
                "measures_ci": {n: _ends(e) if e.n else None for n, e in measures.items()},
                "measures_n": {n: e.n for n, e in measures.items()},
                "unjudged": self.unjudged,
            }
        for k, values in self.recall.items():
            share = bootstrap(values, seed=self.seed)
            yield {"k": k, "recall": round(share.mean, 5), "ci": _ends(share)} | common
        if not self.recall:
            yield common


def _ends(estimate: Estimate) -> tuple[float, float]:
    return round(estimate.low, 5), round(estimate.high, 5)


class Replayed:
    """An index that notes which data a search reads, to count the calls they cost (AXN, 3)."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._read: set[str] = set()
        fitted = index.fitted if isinstance(index, ItemIndex) else {}
        self._costs = {name: int(vectors.cost.get("calls", 0)) for name, vectors in fitted.items()}

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._index, name)
        if name not in ("vectors", "artifacts"):
            self._read.add(name)
            return value

        def read(key: str) -> Any:
            self._read.add(key)
            return value[key]

        return Named(value, read)

    def store(self, name: str) -> VectorStore:
        self._read.add(name)
        return self._index.store(name)

    def scale(self, name: str) -> Scale | None:
        self._read.add(name if name in self._costs else "anchors")  # what fitted it
        return self._index.scale(name)

    @property
    def calls(self) -> int:
        """Return how many cross-encoder calls it cost to make the data that the search has read."""
        index, read = self._index, self._read
        anchors = index.anchors if "anchors" in read else None
        pairs = [a.meta.get("pairs", 0) for name, a in index.artifacts.items() if name in read]
        calls = max(anchors.scores.size if anchors else 0, *pairs, 0)  # fits include the anchors
        return calls + sum(cost for name, cost in self._costs.items() if name in read)


def outcome(
    name: str,
    method: Method,
    batches: Sequence[QueryBatch],
    truth: IntArray | None,
    *,
    budget: int,
    ks: Sequence[int] = (),
    depth: int = 1,
    seed: int = 0,
    task: TaskMeasures | None = None,
    fusion: Fusion | None = None,
    scored: Callable[[int], None] | None = None,
) -> Outcome:
    """Search all queries of `batches`, m in all. `truth` (m', max(ks)) has the exact top items of
    the first m' queries, by final score if there is a fusion; the other queries have no recall.
    Answers keep as many items as `depth`, `ks` and the measures of `task` need."""
    depth = max(depth, *ks, task.depth if task else 1)
    answers, calls, seconds, values = [], [], [], []
    start = index_calls = 0
    for batch in batches:
        search, seen, took = _searched(batch, method, budget, seed, fusion, scored)
        observed, r = search.observed(), len(batch.queries)
        if (groups := search.groups) is None:
            best, revealed = search.best(depth).items, observed.items
        else:
            best = groups.named(replace(groups, k=depth).best(search.best(search.n))[0].items)
            revealed = groups.named(observed.items)
        seconds.append(np.full(r, took / r))
        short = ((0, 0), (0, depth - best.shape[1]))
        answers.append(np.pad(best, short, constant_values=NO_ITEM))
        calls.append(observed.counts)
        known = revealed if method.calls else None
        values.append(task.values(answers[-1], known, start=start) if task else {})
        index_calls, start = max(index_calls, seen.calls), start + r
    items, shares = np.concatenate(answers), dict[int, FloatArray]()
    if truth is not None:  # the other queries have no recall
        none = np.full(len(items) - len(truth), np.nan)
        shares = {k: np.append(recall(items[: len(truth), :k], truth[:, :k]), none) for k in ks}
    return Outcome(
        method=name,
        budget=budget,
        seed=seed,
        recall=shares,
        calls=np.concatenate(calls),
        seconds=np.concatenate(seconds),
        task={m: np.concatenate([of_batch[m] for of_batch in values]) for m in values[0]},
        unjudged=task.judgements.take(range(start)).unjudged if task else 0,
        index_calls=index_calls,
        fused=fusion is not None,
        items=items,
    )


def _searched(
    batch: QueryBatch,
    method: Method,
    budget: int,
    seed: int,
    fusion: Fusion | None,
    scored: Callable[[int], None] | None,
) -> tuple[Search, Replayed, float]:
    """Run the search of a batch, of an index of passages for `K` documents; return it, the data it
    read and the seconds outside scoring."""
    seen, scoring, began = Replayed(batch.index), 0.0, time.perf_counter()

    def score(pairs: Pairs) -> FloatArray:
        nonlocal scoring
        started = time.perf_counter()
        scores = batch.score(pairs)
        scoring += time.perf_counter() - started
        if scored is not None:
            scored(len(pairs))
        return scores

    plan = plan_together(method, cast(Index, seen), budget, seed)
    of = documents_of(batch.index)
    groups = None if of is None else Groups(of, K)
    plan = fusion.plan(plan) if fusion else plan
    search = Search(plan, batch.queries, batch.index.n, groups=groups)
    return drive(search, score), seen, time.perf_counter() - began - scoring


def truth_of(batches: Sequence[QueryBatch], k: int, fusion: Fusion | None = None) -> IntArray:
    """Return the top k (m', k), by final scores if there is a fusion, of the first m' queries,
    whose exact scores are all known."""
    best = [np.empty((0, k), np.int64)]
    for batch in batches:
        if batch.exact is not None:
            added = fusion.added(batch.queries) if fusion else 0
            scores = batch.exact + added
            if (of := documents_of(batch.index)) is not None:
                passages, scores = scores, np.full_like(scores, -np.inf)
                for row, own in zip(scores, passages, strict=True):
                    np.maximum.at(row, of, own)
            items = top_k(scores, k).items  # fewer documents than k are padded
            best.append(np.pad(items, ((0, 0), (0, k - items.shape[1])), constant_values=NO_ITEM))
    return np.concatenate(best)


def documents_of(index: Index) -> IntArray | None:
    """Return the position (n,) that stands for each passage's document, if items are passages."""
    documents: IntArray | None = getattr(index, "documents", None)
    return documents


def check(
    batches: Sequence[QueryBatch], methods: Mapping[str, Method], budget: int, seed: int
) -> None:
    """Plan every method once, so that missing data is reported before anything is searched."""
    for method in methods.values():
        plan_together(method, cast(Index, Replayed(batches[0].index)), budget, seed)
