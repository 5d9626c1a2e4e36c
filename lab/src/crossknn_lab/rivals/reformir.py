"""ReformIR: which reformulations of the query to trust, by the reranker's scores (2605.00560).

ReformIR                      here
lists of reformulations       the retriever's, and of the query's vector as it is `moved` to items
RM3 of the best reranked      the query moved to the mean of the best `feedback` scored
surrogate                     a weighted sum of the lists' scores, by `weights_of`

Axes: m queries, b scored items of a query, l lists, p items of all lists, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from crossknn.index.base import Index
from crossknn.methods.base import Method, Plan
from crossknn.retrievers.base import Retriever, VectorStore
from crossknn.retrievers.specs import AUTO, default_vectors, open_retriever
from crossknn.spec import Spec, option
from crossknn.types import NO_ITEM, FloatArray, IntArray, Queries
from crossknn_lab.rivals.graph_methods import (
    Expand,
    Frontier,
    GraphPredictor,
    best_first,
    in_batches,
)

Listed: TypeAlias = tuple[IntArray, FloatArray]
"""Items (c,) of a list, best first, `NO_ITEM` where it ends, and their scores (c,)."""

RIDGE = 1e-3
"""Penalty of squared weights: makes them unique where few items are scored."""


@dataclass(frozen=True, kw_only=True)
class ReformIR(Method):
    """Score the items that a weighted sum of lists ranks first, its weights fitted to the scores.

    The lists are those of the query by each stage of the retriever, and of the query as its
    vector is moved: towards each of the retriever's best items, and towards the mean of the best
    items scored so far. No language model writes reformulations.

    Args:
        retriever: Picks the first batch, and what no list has; each stage of a fusion is a list.
        reformulations: Items of the retriever that the query is moved towards, one list each.
        feedback: Best scored items whose mean the query is moved towards.
        blend: Weight of the query's own vector in a moved one, 0 to 1.
        depth: Items of a list, at least; as many as the budget if that is more.
        batch: Pairs scored at once.
        vectors: Name of the item vectors; by default the index chooses.
    """

    name = "reformir"
    retriever: Spec = AUTO
    reformulations: int = option(5, least=1)
    feedback: int = option(5, least=1)
    blend: float = option(0.3, least=0, most=1)
    depth: int = option(100, least=1)
    batch: int = option(16, least=1)
    vectors: str = "auto"

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        vectors = default_vectors(index, self.vectors)
        retriever = open_retriever(index, self.retriever, seed)
        known = index.has_query_vectors(vectors)
        lists = Lists(
            retriever=retriever,
            items=index.store(vectors),
            encode=partial(index.query_vectors, name=vectors) if known else None,
            depth=max(self.depth, budget),
            blend=self.blend,
        )
        expands = partial(lists.expands, count=self.reformulations, feedback=self.feedback)
        return Plan(
            retriever=retriever,
            predictor=GraphPredictor(retriever, index.n, budget, expands),
            batches=in_batches(budget, self.batch),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class Lists:
    """Ranked lists of m queries and of their vectors as they are moved.

    Args:
        retriever: Each stage of it gives a list.
        items: Item vectors, by inner product.
        encode: The queries' vectors (m, d); None where they have none.
        depth: Items of a list.
        blend: Weight of a query's own vector in a moved one.
    """

    retriever: Retriever
    items: VectorStore
    encode: Callable[[Queries], FloatArray] | None
    depth: int
    blend: float

    def expands(self, queries: Queries, *, count: int, feedback: int) -> Sequence[Expand]:
        """What the lists offer each query, one of them moved to each of its `count` best items."""
        shape = len(queries), self.items.shape[1]
        own = np.zeros(shape, np.float32) if self.encode is None else self.encode(queries)
        fused = getattr(self.retriever, "stages", (self.retriever,))
        stages = [stage.top(queries, self.depth) for stage in fused]
        found = []
        for q, best in enumerate(self.retriever.top(queries, count).items):
            lists = [(row.items[q], row.scores[q]) for row in stages]
            seeds = self.items.vectors(best[best != NO_ITEM])
            lists += [self.moved(own[q], seed[None]) for seed in seeds]
            found.append(partial(self.offered, own[q], lists, feedback))
        return found

    def moved(self, own: FloatArray, vectors: FloatArray) -> Listed:
        """The list of a query's vector (d,) that is moved to the mean of `vectors` (c, d)."""
        vector = self.blend * _unit(own) + (1 - self.blend) * _unit(vectors.mean(axis=0))
        found = self.items.top(vector[None].astype(np.float32), self.depth)
        return found.items[0], found.scores[0]

    def offered(
        self,
        own: FloatArray,
        lists: Sequence[Listed],
        feedback: int,
        before: Frontier,
        items: IntArray,
        scores: FloatArray,
        n_seen: int,
    ) -> Frontier:
        """The unscored items of the lists that the surrogate gives more than 0, best first.

        `own` (d,) is the query's vector, `lists` are its lists but for that of the best scored.
        """
        best = items[best_first(items, scores)[:feedback]]
        lists = [*lists, self.moved(own, self.items.vectors(best))]
        pool = np.unique(np.concatenate([items, *(listed for listed, _ in lists)]))
        pool = pool[pool != NO_ITEM]
        columns = np.zeros((len(pool), len(lists)))
        for column, (listed, values) in zip(columns.T, lists, strict=True):
            there = listed != NO_ITEM
            column[np.searchsorted(pool, listed[there])] = _spread(values[there])
        where = np.searchsorted(pool, items)
        estimates = columns @ weights_of(columns[where], _spread(scores))
        order = best_first(pool, estimates)
        order = order[(estimates[order] > 0) & ~np.isin(pool[order], items)]
        return Frontier(pool[order], estimates[order], np.zeros(len(order), np.int64))


def weights_of(columns: FloatArray, targets: FloatArray) -> FloatArray:
    """Least squares of `targets` (b,) by `columns` (b, l), each weight between 0 and 1: (l,)."""
    from scipy.optimize import lsq_linear

    count = columns.shape[1]
    rows = np.vstack([columns, np.sqrt(RIDGE) * np.eye(count)])
    known = np.concatenate([targets, np.zeros(count)])
    return np.asarray(lsq_linear(rows, known, bounds=(0, 1), method="bvls").x)


def _spread(values: FloatArray) -> FloatArray:
    """From 0 for the lowest to 1 for the highest; 0 where all are equal."""
    if not len(values):
        return values
    low, width = values.min(), np.ptp(values)
    return (values - low) / width if width > 0 else np.zeros(len(values))


def _unit(vector: FloatArray) -> FloatArray:
    return vector / (np.linalg.norm(vector) or 1.0)
