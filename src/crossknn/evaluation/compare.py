"""Methods by what they find of exact search and by the task's measures, for what number of calls.

`compare` has the exact scores of your own queries, or asks a scorer for the pairs that the methods
choose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from crossknn.data.qrels import Qrels
from crossknn.data.queries import QuerySet, Texts, query_set
from crossknn.errors import InputError
from crossknn.evaluation.measures import Estimate, bootstrap, recall
from crossknn.evaluation.task import DEFAULT, Judgements, TaskMeasures
from crossknn.index.base import Index
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import top_k
from crossknn.methods import Method
from crossknn.methods.base import planned
from crossknn.methods.rerank import Exact
from crossknn.retrievers.base import VectorStore
from crossknn.scorers import as_scorer
from crossknn.scorers.base import Scorer
from crossknn.scores.store import ScoreStore
from crossknn.scores.stored import StoredScorer
from crossknn.search.fusion import Fusion
from crossknn.search.loop import Search, drive
from crossknn.types import (
    NO_ITEM,
    Artifact,
    FloatArray,
    IntArray,
    Named,
    Pairs,
    Progress,
    Queries,
    Scale,
    Value,
)

BATCH = 64
"""Queries searched together: bounds the memory to BATCH x n approximate scores."""


@dataclass(frozen=True, eq=False)
class Part:
    """Queries (r) that are searched together, the index as they see it, and where scores are from.

    `score` gives the exact scores (p,) of pairs of them, NaN where one cannot be scored; `exact`
    are all of them (r, n), where they are known.
    """

    index: Index
    queries: Queries
    score: Callable[[Pairs], FloatArray]
    exact: FloatArray | None = None

    @classmethod
    def known(cls, index: Index, queries: Queries, exact: FloatArray) -> Part:
        """Queries whose exact scores (r, n) are all known."""
        return cls(index, queries, lambda pairs: exact[pairs.query, pairs.item], exact)


@dataclass(frozen=True, slots=True)
class RecallRow:
    """One line of a replay; `recall` and `ci` in 0-1, `calls` and `seconds` per query.

    `index_calls` were made once, before all queries, for what the method reads. `measures` are the
    task's own (the same for every k), with their intervals and the number of queries that have a
    value; `unjudged` queries have none. Without exact search `k` is 0, and nothing known of recall.
    `fused` says that answers were ordered, and searched for, by final scores.
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
        """The row as JSON-ready values, without those that it lacks."""
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
    """Results of a method at one budget, query by query.

    Args:
        method: The method's name, as it was given.
        budget: Distinct pairs of a query.
        seed: The search's seed.
        recall: By k, the share (m,) of the true top k that was found, 0 to 1.
        calls: Calls (m,) of a search that begins without stored scores: the distinct pairs whose
            score was used.
        seconds: Seconds (m,) outside scoring: those of the query's batch, divided by its queries.
        task: By name, the task's measures (m,); NaN where a query has no value.
        unjudged: Number of queries without judgements.
        index_calls: Cross-encoder calls that the index needed once.
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
        """Means over the queries, with 95% intervals.

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
    """Stands for an index in a search, and notes what is read of what had cost cross-encoder calls
    (AXN, 3): anchors, fitted vectors and artifacts.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._read: set[str] = set()
        fitted = index.fitted if isinstance(index, ItemIndex) else {}
        self._costs = {name: vectors.cost.calls for name, vectors in fitted.items()}

    def __getattr__(self, name: str) -> Any:
        self._read.add(name)
        return getattr(self._index, name)

    @property
    def vectors(self) -> Named[FloatArray]:
        """Item vectors (n, d) by name."""
        return self._noting(self._index.vectors)

    def store(self, name: str) -> VectorStore:
        """Searches the item vectors `name`."""
        self._read.add(name)
        return self._index.store(name)

    @property
    def artifacts(self) -> Named[Artifact]:
        """What fits have left, by name."""
        return self._noting(self._index.artifacts)

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
        return calls + sum(cost for name, cost in self._costs.items() if name in read)

    def _noting(self, values: Mapping[str, Value]) -> Named[Value]:
        """The same values; that one was read is noted."""

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
    seed: int = 0,
    task: TaskMeasures | None = None,
    fusion: Fusion | None = None,
) -> Outcome:
    """Search all queries of `parts`, m in all.

    Args:
        truth: their exact top items (m, max(ks)), by final scores with a fusion; None: no recall.
        budget: calls per query; 0 for a method that makes none.
        ks: the depths of recall; answers are kept as deep as the largest.
        task: adds the task's measures; its judgements are of these queries in order.
        fusion: answers are ordered, and searched for, by its final scores.
    """
    depth = max(1, *ks, task.depth if task else 1)
    answers, calls, seconds, values = [], [], [], []
    start = index_calls = 0
    for part in parts:
        search, seen, took = _searched(part, method, budget, seed, fusion)
        best, observed, r = search.best(depth).items, search.observed(), len(part.queries)
        seconds.append(np.full(r, took / r))
        short = ((0, 0), (0, depth - best.shape[1]))
        answers.append(np.pad(best, short, constant_values=NO_ITEM))
        calls.append(observed.counts)
        scored = observed.items if method.calls else None
        values.append(task.values(answers[-1], scored, start=start) if task else {})
        index_calls, start = max(index_calls, seen.calls), start + r
    items = np.concatenate(answers)
    return Outcome(
        method=name,
        budget=budget,
        seed=seed,
        recall={} if truth is None else {k: recall(items[:, :k], truth[:, :k]) for k in ks},
        calls=np.concatenate(calls),
        seconds=np.concatenate(seconds),
        task={m: np.concatenate([part[m] for part in values]) for m in values[0]},
        unjudged=task.judgements.take(0, start).unjudged if task else 0,
        index_calls=index_calls,
        fused=fusion is not None,
        items=items,
    )


def _searched(
    part: Part, method: Method, budget: int, seed: int, fusion: Fusion | None
) -> tuple[Search, Replayed, float]:
    """The search of a part at its end, what it read of the index, and seconds outside scoring."""
    seen, scoring, began = Replayed(part.index), 0.0, time.perf_counter()

    def score(pairs: Pairs) -> FloatArray:
        nonlocal scoring
        asked = time.perf_counter()
        scores = part.score(pairs)
        scoring += time.perf_counter() - asked
        return scores

    plan = planned(method, seen, budget, seed)
    search = Search(fusion.plan(plan) if fusion else plan, part.queries, part.index.n)
    return drive(search, score), seen, time.perf_counter() - began - scoring


def truth_of(parts: Sequence[Part], k: int, fusion: Fusion | None = None) -> IntArray:
    """The exact top k of all queries of `parts`, by final scores with a fusion: (m, k).

    Raises `InputError` where not all exact scores are known.
    """
    found = []
    for part in parts:
        if part.exact is None:
            raise InputError("recall needs the exact scores of all pairs")
        known = fusion.added(part.queries) if fusion else 0
        found.append(top_k(part.exact + known, k).items)
    return np.concatenate(found)


def check(parts: Sequence[Part], methods: Mapping[str, Method], budget: int, seed: int) -> None:
    """Plan every method once: what one of them lacks is said before anything is searched."""
    for method in methods.values():
        planned(method, Replayed(parts[0].index), budget, seed)


def outcomes(
    parts: Sequence[Part],
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    seed: int = 0,
    task: TaskMeasures | None = None,
    fusion: Fusion | None = None,
) -> Iterator[Outcome]:
    """An iterator of one outcome for each method and budget.

    A method that makes no calls has one budget, 0. `task` adds the task's measures; with a `fusion`
    recall is measured against the exact top k of the final scores. Of parts whose exact scores are
    not known there is no recall, and `ks` may be empty.
    """
    truth = None if parts[0].exact is None else truth_of(parts, max(ks), fusion)
    options: dict[str, Any] = {"ks": ks, "seed": seed, "task": task, "fusion": fusion}
    for name, method in methods.items():
        for budget in budgets if method.calls else (0,):
            yield outcome(name, method, parts, truth, budget=budget, **options)


def compare(
    index: ItemIndex,
    queries: Texts,
    scores: FloatArray | Scorer,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    ks: Sequence[int] = (),
    *,
    qrels: Qrels | None = None,
    measures: Sequence[str] = DEFAULT,
    fusion: Fusion | None = None,
    keep_own: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Outcome]:
    """Compare methods at equal budgets: by recall of exact search, and by judgements.

    With all exact scores the first outcome is that of exact search. With a cross-encoder, only the
    pairs that the methods choose are scored, each once, and there is no recall.

    Args:
        index: The n items.
        queries: The m queries, with ids, as `read_queries` takes them.
        scores: Exact scores (m, n) of every query with every item, as `exact_scores` gives them; or
            a scorer, whose scores are kept in `index.scores`, or where a `StoredScorer` keeps them.
        methods: By name, such as `ck.parse_methods("rerank, axn(ridge=0.3)")`.
        budgets: Distinct pairs of each query. A method that makes no calls has one budget, 0.
        ks: The k of recall@k.
        qrels: Judgements, `{query id: {item id: grade}}`, for `measures`.
        measures: Names of ir-measures, such as "nDCG@10".
        fusion: Order answers, those of exact search too, by its final scores.
        keep_own: Count the item that has a query's id as any other, which `measures` do not see
            otherwise, as in BEIR.
        seed: Seed of all randomness.
        progress: Called with (done, total) pairs that the scorer scores, stored ones included.

    Raises:
        InputError: The index has deleted items, no query is judged, or a measure is unknown.
        ScorerError: The scorer fails as a whole.
    """
    index.check_compact("a comparison")
    queries, task = query_set(queries), None
    if qrels is not None and measures:
        judged = Judgements.from_qrels(qrels, queries, index.items.ids, keep_own=keep_own)
        task = TaskMeasures(judged, measures)
    options: dict[str, Any] = {"seed": seed, "task": task, "fusion": fusion}
    if not isinstance(scores, np.ndarray):
        if task is None:
            raise InputError("without all exact scores a comparison needs qrels and measures")
        calls = sum(min(b, index.n) for b in budgets) * sum(m.calls for m in methods.values())
        parts = parts_on_demand(index, as_scorer(scores), queries, progress, calls)
        return list(outcomes(parts, methods, budgets, (), **options))
    parts = [
        Part.known(index, Queries(queries.texts[s : s + BATCH]), scores[s : s + BATCH])
        for s in range(0, len(queries), BATCH)
    ]
    exact = outcomes(parts, {"exact": Exact()}, [index.n], ks, **options)
    return [*exact, *outcomes(parts, methods, budgets, ks, **options)]


def parts_on_demand(
    index: ItemIndex,
    scorer: Scorer,
    queries: QuerySet,
    progress: Progress | None = None,
    most: int = 0,
) -> list[Part]:
    """The queries in batches; pairs of them are scored as they are asked for, each one once.

    `progress` is called with the pairs asked for and with `most` of each query.
    """
    if not isinstance(scorer, StoredScorer):
        store = ScoreStore() if scorer.fingerprint is None else index.scores
        scorer = StoredScorer(scorer, store)
    index, done = index.for_scorer(scorer.scorer.fingerprint), 0

    def score(pairs: Pairs, start: int) -> FloatArray:
        nonlocal done
        scores = np.full(len(pairs), np.nan, np.float32)
        asked = replace(pairs, query=pairs.query + start)
        for where, found in scorer.score(asked, queries.texts, index.items.texts):
            scores[where] = found
        done += len(pairs)
        if progress:
            progress(done, len(queries) * most)
        return scores

    starts = range(0, len(queries), BATCH)
    texts = (Queries(queries.texts[start : start + BATCH]) for start in starts)
    return [Part(index, t, partial(score, start=s)) for t, s in zip(texts, starts, strict=True)]
