"""The outcome of a method's search of many queries at one budget: answers and cost per query."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from crossknn.evaluation.measures import Estimate, bootstrap, recall
from crossknn.evaluation.task import TaskMeasures
from crossknn.index.base import Index
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import top_k
from crossknn.methods import Method
from crossknn.methods.base import planned
from crossknn.retrievers.base import VectorStore
from crossknn.search.fusion import Fusion
from crossknn.search.loop import Search, drive
from crossknn.types import (
    NO_ITEM,
    Artifact,
    FloatArray,
    IntArray,
    Named,
    Pairs,
    Queries,
    Scale,
    Value,
)


@dataclass(frozen=True, eq=False)
class Part:
    """Queries (r) that are searched together, with their index and the source of their scores.

    `score` returns the exact scores (p,) of pairs, NaN for a pair that cannot be scored; `exact`
    are all exact scores (r, n), if known.
    """

    index: Index
    queries: Queries
    score: Callable[[Pairs], FloatArray]
    exact: FloatArray | None = None

    @classmethod
    def known(cls, index: Index, queries: Queries, exact: FloatArray) -> Part:
        """Make a part whose exact scores (r, n) are all known."""
        return cls(index, queries, lambda pairs: exact[pairs.query, pairs.item], exact)


@dataclass(frozen=True, slots=True)
class RecallRow:
    """A row of a comparison; `recall` and `ci` are 0-1, `calls` and `seconds` per query.

    `index_calls` are the cross-encoder calls made once, before all queries, for data that the
    method reads. `measures` are the task's own (the same for every k), with their intervals and the
    number of queries that have a value; `unjudged` queries have none. Without exact search `k` is 0
    and recall unknown. `fused` tells whether answers were searched for and ordered by final scores.
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
    fused: bool = False

    def as_dict(self) -> dict[str, object]:
        """Return the row as JSON-ready values, without missing ones."""
        row = asdict(self)
        if not self.measures:
            del row["measures"], row["measures_ci"], row["measures_n"], row["unjudged"]
        if not self.k:
            del row["k"], row["recall"], row["ci"]
        if not self.fused:
            del row["fused"]
        return row


@dataclass(frozen=True, eq=False, kw_only=True)
class Outcome:
    """Results of a method at one budget, per query.

    Args:
        method: The method's name, as it was given.
        budget: Number of distinct pairs per query.
        seed: The search's seed.
        recall: By k, the share (m,) of the true top k that was returned, 0 to 1.
        calls: Number (m,) of distinct pairs whose score was used, whether or not it was stored.
        seconds: Seconds (m,) outside scoring: those of the query's batch, divided by its queries.
        task: By name, the task's measures (m,); NaN where a query has no value.
        unjudged: Number of queries without judgements.
        index_calls: Cross-encoder calls made once for the index.
        fused: Whether answers are ordered by a final score.
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

    def rows(self) -> Iterator[RecallRow]:
        """Compute means over the queries, with 95% intervals.

        Yields:
            A row for each k; a single one without exact search.
        """
        measures = {n: bootstrap(values, seed=self.seed) for n, values in self.task.items()}
        for k, values in (self.recall or {0: np.empty(0)}).items():
            found = bootstrap(values, seed=self.seed)
            yield RecallRow(
                method=self.method,
                k=k,
                budget=self.budget,
                recall=round(found.mean, 5),
                ci=_ends(found),
                n_queries=len(self.calls),
                calls=round(float(self.calls.mean()), 2),
                seconds=round(float(self.seconds.mean()), 6),
                seed=self.seed,
                index_calls=self.index_calls,
                measures={n: round(e.mean, 5) if e.n else None for n, e in measures.items()},
                measures_ci={n: _ends(e) if e.n else None for n, e in measures.items()},
                measures_n={name: found.n for name, found in measures.items()},
                unjudged=self.unjudged,
                fused=self.fused,
            )


def _ends(found: Estimate) -> tuple[float, float]:
    return round(found.low, 5), round(found.high, 5)


class Replayed:
    """Wraps an index during a search, and records which data it reads that had cost cross-encoder
    calls (AXN, 3): anchors, fitted vectors and artifacts."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._read: set[str] = set()
        fitted = index.fitted if isinstance(index, ItemIndex) else {}
        self._costs = {name: int(vectors.cost.get("calls", 0)) for name, vectors in fitted.items()}

    def __getattr__(self, name: str) -> Any:
        self._read.add(name)
        return getattr(self._index, name)

    @property
    def vectors(self) -> Named[FloatArray]:
        """Item vectors (n, d) by name."""
        return self._noting(self._index.vectors)

    def store(self, name: str) -> VectorStore:
        """Return the store that searches the item vectors `name`."""
        self._read.add(name)
        return self._index.store(name)

    @property
    def artifacts(self) -> Named[Artifact]:
        """Results of fits, by name."""
        return self._noting(self._index.artifacts)

    def scale(self, name: str) -> Scale | None:
        """Return the scale of vectors, from their fit or from the anchors."""
        self._read.add(name if name in self._costs else "anchors")
        return self._index.scale(name)

    @property
    def calls(self) -> int:
        """Return the cross-encoder calls that the data read had cost."""
        index, read = self._index, self._read
        anchors = index.anchors if "anchors" in read else None
        pairs = [a.meta.get("pairs", 0) for name, a in index.artifacts.items() if name in read]
        calls = max(anchors.scores.size if anchors else 0, *pairs, 0)  # fits include the anchors
        return calls + sum(cost for name, cost in self._costs.items() if name in read)

    def _noting(self, values: Mapping[str, Value]) -> Named[Value]:
        """Return the same values, recording which are read."""

        def read(name: str) -> Value:
            self._read.add(name)
            return values[name]

        return Named(values, read)


def outcome(
    name: str,
    method: Method,
    parts: Sequence[Part],
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
    """Search all queries of `parts`, m in all.

    Args:
        truth: the exact top items (m', max(ks)) of the first m' queries, by final scores with a
            fusion; the others have no recall. None: no query has.
        budget: calls per query; 0 for a method that makes none.
        ks: the depths of recall.
        depth: answers are kept so deep, or as deep as the largest k or the task's measures.
        task: adds the task's measures; its judgements are of these queries in order.
        fusion: answers are ordered, and searched for, by its final scores.
        scored: called with the number of pairs of each batch that was scored.
    """
    depth = max(depth, *ks, task.depth if task else 1)
    answers, calls, seconds, values = [], [], [], []
    start = index_calls = 0
    for part in parts:
        search, seen, took = _searched(part, method, budget, seed, fusion, scored)
        best, observed, r = search.best(depth).items, search.observed(), len(part.queries)
        seconds.append(np.full(r, took / r))
        short = ((0, 0), (0, depth - best.shape[1]))
        answers.append(np.pad(best, short, constant_values=NO_ITEM))
        calls.append(observed.counts)
        revealed = observed.items if method.calls else None
        values.append(task.values(answers[-1], revealed, start=start) if task else {})
        index_calls, start = max(index_calls, seen.calls), start + r
    items = np.concatenate(answers)
    return Outcome(
        method=name,
        budget=budget,
        seed=seed,
        recall={} if truth is None else {k: _recall(items, truth, k) for k in ks},
        calls=np.concatenate(calls),
        seconds=np.concatenate(seconds),
        task={m: np.concatenate([part[m] for part in values]) for m in values[0]},
        unjudged=task.judgements.take(range(start)).unjudged if task else 0,
        index_calls=index_calls,
        fused=fusion is not None,
        items=items,
    )


def _recall(items: IntArray, truth: IntArray, k: int) -> FloatArray:
    """Compute recall at k (m,) of answers (m, c) for exact items (m', ..); NaN from the m'-th query
    on."""
    known = recall(items[: len(truth), :k], truth[:, :k])
    return np.pad(known, (0, len(items) - len(truth)), constant_values=np.nan)


def _searched(
    part: Part,
    method: Method,
    budget: int,
    seed: int,
    fusion: Fusion | None,
    scored: Callable[[int], None] | None,
) -> tuple[Search, Replayed, float]:
    """Run the search of a part; return it, the data it read and the seconds outside scoring."""
    seen, scoring, began = Replayed(part.index), 0.0, time.perf_counter()

    def score(pairs: Pairs) -> FloatArray:
        nonlocal scoring
        asked = time.perf_counter()
        scores = part.score(pairs)
        scoring += time.perf_counter() - asked
        if scored is not None:
            scored(len(pairs))
        return scores

    plan = planned(method, seen, budget, seed)
    search = Search(fusion.plan(plan) if fusion else plan, part.queries, part.index.n)
    return drive(search, score), seen, time.perf_counter() - began - scoring


def truth_of(parts: Sequence[Part], k: int, fusion: Fusion | None = None) -> IntArray:
    """Compute the exact top k of the queries with known exact scores, which come first: (m', k).

    With a fusion it is the top k by final scores.
    """
    best = [np.empty((0, k), np.int64)]
    for part in parts:
        if part.exact is not None:
            added = fusion.added(part.queries) if fusion else 0
            best.append(top_k(part.exact + added, k).items)
    return np.concatenate(best)


def check(parts: Sequence[Part], methods: Mapping[str, Method], budget: int, seed: int) -> None:
    """Plan every method once, so that missing data is reported before anything is searched."""
    for method in methods.values():
        planned(method, Replayed(parts[0].index), budget, seed)
