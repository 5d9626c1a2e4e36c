"""Methods at equal budgets on the user's own queries, against exact search."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from crossknn.data.queries import Qrels, QuerySet
from crossknn.errors import InputError, ScorerError
from crossknn.evaluation.costs import Metered
from crossknn.evaluation.measures import exact_top
from crossknn.evaluation.replay import Answer, RecallRow, answer, recall_rows
from crossknn.indexes.item_index import ItemIndex
from crossknn.methods import Method, method
from crossknn.scorers.base import Scorer
from crossknn.types import NO_ITEM, FloatArray, Pairs, Progress, Queries

DEPTH = 100
"""How many items of each answer the task's measures see (R@100)."""


@dataclass(frozen=True, slots=True)
class MethodRows:
    """A method at a budget: recall against exact search, and the task's own measures if judged."""

    recall: tuple[RecallRow, ...]
    task: dict[str, float] = field(default_factory=dict)

    def as_dicts(self) -> Iterator[dict[str, object]]:
        """One JSON-ready row for each k, task measures included."""
        for row in self.recall:
            yield row.as_dict() | ({"measures": self.task} if self.task else {})


def dense_scores(
    scorer: Scorer,
    queries: Sequence[str],
    items: Sequence[str],
    progress: Progress | None = None,
    *,
    workers: int = 1,
) -> FloatArray:
    """Exact scores of every query with every item: (m, n) float32.

    Query by query, `workers` of them at a time: a scorer that computes in one thread uses as many
    cores. With a cache around the scorer an interrupted run goes on where it was. Raises
    ScorerError if a pair cannot be scored: without it there is no exact search to compare with.
    """
    m, n = len(queries), len(items)
    lock, stop, done = threading.Lock(), threading.Event(), 0

    def row(q: int) -> FloatArray:
        nonlocal done
        values = np.full(n, np.nan, np.float32)
        pairs = Pairs(np.full(n, q, np.int64), np.arange(n))
        for positions, scores in scorer.score(pairs, queries, items):
            values[positions] = scores
            with lock:
                done += len(positions)
                if progress:
                    progress(done, m * n)
            if stop.is_set():
                break
        return values

    with ThreadPoolExecutor(workers) as pool:
        try:
            scores = np.stack(list(pool.map(row, range(m))))
        except BaseException:
            stop.set()  # the others end after their batch
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    unknown = np.argwhere(np.isnan(scores))
    if len(unknown):
        q, item = unknown[0]
        raise ScorerError(
            f"query {q} and item {item} could not be scored, so exact search is not known"
        )
    return scores


def compare(
    index: ItemIndex,
    queries: QuerySet,
    scores: FloatArray,
    methods: Mapping[str, Method],
    budgets: Sequence[int],
    ks: Sequence[int],
    *,
    qrels: Qrels | None = None,
    measures: Sequence[str] = (),
    seed: int = 0,
) -> Iterator[tuple[str, MethodRows]]:
    """Rows of every method and budget, given the exact scores (m, n) of all pairs.

    Exact search itself comes first, under the name `exact`. A method that makes no calls has one
    budget, 0.
    """
    truth = exact_top(scores, max(ks))
    task = _TaskMeasures(index, queries, qrels, measures) if qrels and measures else None
    depth = min(max(DEPTH, *ks), index.n) if task else max(ks)
    batch = Queries(queries.texts)
    runs = [("exact", method("exact"), index.n)]
    for name, found in methods.items():
        runs += [(name, found, budget) for budget in (budgets if found.calls else (0,))]
    for name, found, budget in runs:
        metered = Metered(index)
        got = answer(found, metered, batch, scores, budget=budget, k=max(depth, *ks), seed=seed)
        rows = tuple(
            recall_rows(
                name, [got], truth, budget=budget, ks=ks, seed=seed, index_calls=metered.calls
            )
        )
        yield name, MethodRows(rows, task(got) if task else {})


class _TaskMeasures:
    """Aggregate measures by ir-measures, over the judged queries."""

    def __init__(
        self, index: ItemIndex, queries: QuerySet, qrels: Qrels, measures: Sequence[str]
    ) -> None:
        import ir_measures

        try:
            self.measures = [ir_measures.parse_measure(m) for m in measures]
        except (NameError, ValueError, SyntaxError) as error:
            raise InputError(f"unknown measure among {', '.join(measures)}: {error}") from None
        self.index, self.queries = index, queries
        self.qrels = {q: qrels[q] for q in queries.ids if q in qrels}
        if not self.qrels:
            raise InputError("no query is judged in the qrels: do their ids agree?")

    def __call__(self, got: Answer) -> dict[str, float]:
        import ir_measures

        run = {
            self.queries.ids[q]: {
                self.index.items.ids[int(i)]: float(s)
                for i, s in zip(got.items[q], got.scores[q], strict=True)
                if i != NO_ITEM
            }
            for q in range(len(self.queries))
        }
        found = ir_measures.calc_aggregate(self.measures, self.qrels, run)
        return {str(m): round(float(found[m]), 5) for m in self.measures}
