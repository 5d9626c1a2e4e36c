"""Methods that walk the item graph: what is near the best scored items is scored next.

LADR (Kulkarni et al. 2023, 2307.16779)   here
lexical seeds                             `retriever`, `retriever_share` of the budget
corpus graph, k                           index.graphs[`graph`][:, :`neighbours`]
c                                         `depth`, in the adaptive mode

bi-metric search (2406.02891), RGS (2509.07163)   here: `Greedy`
d, D                                              what the graph is made of; the cross-encoder
Q, Q / 2                                          the budget; `retriever_share` of it

L2G (2510.00887)   here: `graph=scores`
reranker logs      the exact scores of the anchor queries
A^T A              `nearest_by_rankings`

GAR is in `gar`. Axes: m queries, n items, b scored items of a query, s sources, k neighbours,
f items of a frontier.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Index, lacking
from crossknn.methods.base import Method, Plan, Prediction, Predictor, part
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.specs import AUTO, open_retriever
from crossknn.spec import Spec, option
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Observed, Queries
from crossknn_lab.rivals.graphs import (
    NEIGHBOURS,
    SCORES,
    Neighbours,
    default_graph,
    item_graph,
    nearest_by_rankings,
)


@dataclass(frozen=True, kw_only=True)
class GraphMethod(Method):
    """A method that walks the item graph.

    Args:
        retriever: Picks what is scored first, and what the graph does not reach.
        graph: Name of the item graph; `scores` is made of the anchors' exact scores (L2G).
        neighbours: Neighbours of an item that are followed.
        batch: Pairs scored at once.
    """

    retriever: Spec = AUTO
    graph: str = "auto"
    neighbours: int = option(NEIGHBOURS, least=1)
    batch: int = option(16, least=1)

    def required_artifacts(self, index: Index) -> Collection[str]:
        """The anchors, where the graph is made of their scores."""
        return ("anchors",) if self.graph == SCORES else ()

    def walked(self, index: Index) -> Neighbours:
        """The graph; `InputError` where there is none."""
        if self.graph == SCORES:
            if (anchors := index.anchors) is None:
                raise InputError(
                    f"{self}: the graph of scores needs scores of anchor queries"
                    f"{lacking(index, 'anchors')}; collect them with  crossknn collect INDEX "
                    "--anchors QUERIES"
                )
            make = partial(nearest_by_rankings, anchors.scores, self.neighbours)
            return index.cache.get((SCORES, self.neighbours), (anchors.scores,), make)
        return item_graph(index, default_graph(index, self.graph), self.neighbours)


@dataclass(frozen=True, kw_only=True)
class LADR(GraphMethod):
    """Score seeds, then neighbours: of the best scored so far, again and again (adaptive), or of
    the seeds once, in the retriever's order (proactive).

    Args:
        retriever_share: Share of the budget for the seeds, 0 to 1.
        depth: So many of the best scored items are sources (adaptive).
        mode: `adaptive` or `proactive`.
        retriever, graph, neighbours, batch: See `GraphMethod`.
    """

    name = "ladr"
    retriever_share: float = option(0.5, least=0, most=1)
    depth: int = option(50, least=1)
    mode: Literal["adaptive", "proactive"] = "adaptive"

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        if self.mode == "proactive":
            return _from_seeds(self, index, budget, seed, _seed_neighbours, budget)
        expand = partial(_step_by_step, depth=self.depth, one_step=True)
        return _from_seeds(self, index, budget, seed, expand, self.batch)


@dataclass(frozen=True, kw_only=True)
class Greedy(GraphMethod):
    """Score the retriever's best, then again and again the neighbours of the best item scored.

    A batch may have neighbours of several items; with `batch=1` the search goes item by item, as
    published.

    Args:
        retriever_share: Share of the budget for the seeds; 0 starts from a single item (RGS).
        retriever, graph, neighbours, batch: See `GraphMethod`.
    """

    name = "greedy"
    retriever_share: float = option(0.5, least=0, most=1)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        return _from_seeds(self, index, budget, seed, _step_by_step, self.batch)


def _from_seeds(
    method: LADR | Greedy,
    index: Index,
    budget: int,
    seed: int,
    expand: Callable[..., Frontier],
    batch: int,
) -> Plan:
    """A share of the budget for the retriever's best, the rest for what the graph offers."""
    retriever = open_retriever(index, method.retriever, seed)
    seeds = part(budget, method.retriever_share)
    expand = partial(expand, method.walked(index))
    return Plan(
        retriever=retriever,
        predictor=GraphPredictor(retriever, index.n, budget, alike(expand)),
        batches=(seeds, *in_batches(budget - seeds, batch)),
    )


class Frontier(NamedTuple):
    """Unscored `items` (f,) in the order in which to score them, the `values` (f,) expected there,
    and `steps` (f,), rising numbers: items of one step are met from the same sources."""

    items: IntArray = np.empty(0, np.int64)
    values: FloatArray = np.empty(0)
    steps: IntArray = np.empty(0, np.int64)

    def take(self, where: slice | BoolArray) -> Frontier:
        return Frontier(self.items[where], self.values[where], self.steps[where])


Expand: TypeAlias = Callable[[Frontier, IntArray, FloatArray, int], Frontier]
"""The new frontier, from the one before, all scored items (b,), their exact scores (b,), and how
many of them the frontier before was made of."""


@dataclass(frozen=True, slots=True)
class GraphState:
    """Where m queries stand: how their frontiers grow, these frontiers, the number of scores they
    are made of (m,), and the number of batches scored. `read` keeps the retriever's ranking, by how
    deep it was read."""

    queries: Queries
    read: dict[int, Candidates]
    expands: Sequence[Expand]
    frontiers: tuple[Frontier, ...]
    n_seen: IntArray
    batches: int = 0


@dataclass(frozen=True, eq=False)
class GraphPredictor(Predictor[GraphState]):
    """The frontier's items first; where it has none, the rest of the retriever's ranking.

    Args:
        retriever: Its ranking goes on where the graph ends.
        n: Number of items.
        depth: How much of the ranking is read at once: the budget.
        expands: What the graph offers each of m queries, from its exact scores.
        alternate: Take every other batch from the ranking, as far as that goes (GAR).
    """

    retriever: Retriever
    n: int
    depth: int
    expands: Callable[[Queries], Sequence[Expand]]
    alternate: bool = False

    predicts_scores = False

    def start(self, queries: Queries) -> GraphState:
        m = len(queries)
        frontiers = (Frontier(),) * m
        return GraphState(queries, {}, self.expands(queries), frontiers, np.zeros(m, np.int64))

    def update(self, state: GraphState, observed: Observed) -> GraphState:
        frontiers = list(state.frontiers)
        for q, items, scores in observed.rows():
            known = scores.astype(np.float64)
            frontiers[q] = state.expands[q](frontiers[q], items, known, int(state.n_seen[q]))
        return replace(
            state,
            frontiers=tuple(frontiers),
            n_seen=observed.counts,
            batches=state.batches + 1,
        )

    def predict(self, state: GraphState, items: IntArray | None = None) -> Prediction:
        """The values of frontier items; -inf for the others."""
        mean = np.full((len(state.frontiers), self.n), -np.inf, np.float32)
        for q, frontier in enumerate(state.frontiers):
            mean[q, frontier.items] = frontier.values
        return Prediction(mean if items is None else np.take_along_axis(mean, items, axis=1))

    def top(
        self,
        state: GraphState,
        count: int,
        exclude: IntArray,
        allowed: BoolArray | None = None,
        pool: IntArray | None = None,
    ) -> Candidates:
        # So deep that `count` new ones are among them, if the retriever has so many.
        depth = max(self.depth, exclude.shape[1] + count)
        if depth not in state.read:
            state.read[depth] = self.retriever.top(state.queries, depth, allowed)
        ranked = state.read[depth]
        rows = []
        for q, (frontier, out) in enumerate(zip(state.frontiers, exclude, strict=True)):
            parts = [(frontier.items, frontier.values), (ranked.items[q], ranked.scores[q])]
            if self.alternate and state.batches % 2 == 0:
                parts.reverse()
            items, values = map(np.concatenate, zip(*parts, strict=True))
            free = np.ones(self.n, np.bool_) if allowed is None else allowed.copy()
            free[out[out != NO_ITEM]] = False
            where = np.flatnonzero((items != NO_ITEM) & free[items])
            once = np.sort(np.unique(items[where], return_index=True)[1])
            chosen = where[once[:count]]
            rows.append((items[chosen], values[chosen]))
        return Candidates.from_rows(rows)


def alike(expand: Expand) -> Callable[[Queries], Sequence[Expand]]:
    """The same for every query."""
    return lambda queries: [expand] * len(queries)


def in_batches(budget: int, size: int) -> tuple[int, ...]:
    """Batches of `size` that sum to the budget; the last one may be smaller.

    >>> in_batches(23, 10)
    (10, 10, 3)
    """
    return tuple(min(size, budget - done) for done in range(0, budget, size))


def best_first(items: IntArray, scores: FloatArray) -> IntArray:
    """Positions of the items ordered by score, ties by item: (b,) -> (b,)."""
    return np.lexsort((items, -scores))


def reach(
    graph: Neighbours, items: IntArray, scores: FloatArray, sources: IntArray | slice
) -> Frontier:
    """The unscored neighbours of scored items (b,), those at the positions `sources` (s,), source
    by source, nearest first. The value of each is its first source's score; a source is a step."""
    met = graph[items[sources]].ravel().astype(np.int64)
    new = np.flatnonzero(~np.isin(met, np.append(items, NO_ITEM)))
    new = new[np.sort(np.unique(met[new], return_index=True)[1])]
    source = new // graph.shape[1]
    return Frontier(met[new], scores[sources][source], source)


def _seed_neighbours(
    graph: Neighbours, before: Frontier, items: IntArray, scores: FloatArray, n_seen: int
) -> Frontier:
    """The neighbours of the first batch, in the order of that batch (LADR, proactive)."""
    if n_seen:
        return before.take(~np.isin(before.items, items))
    return reach(graph, items, scores, slice(None))


def _step_by_step(
    graph: Neighbours,
    before: Frontier,
    items: IntArray,
    scores: FloatArray,
    n_seen: int,
    *,
    depth: int | None = None,
    one_step: bool = False,
) -> Frontier:
    """The neighbours of the best `depth` scored, best first: one step in all, or one a source. A
    step once begun is finished; a batch that it does not fill takes the next one's."""
    ahead = reach(graph, items, scores, best_first(items, scores)[:depth])
    taken = np.flatnonzero(np.isin(before.items, items[n_seen:]))
    begun = before.take(slice(0))
    if len(taken):
        end = np.searchsorted(before.steps, before.steps[taken[-1]], side="right")
        begun = before.take(slice(taken[-1] + 1, end))
    more = ahead.take(~np.isin(ahead.items, begun.items))
    return Frontier(
        np.concatenate([begun.items, more.items]),
        np.concatenate([begun.values, more.values]),
        np.concatenate([0 * begun.steps, 1 + more.steps * (not one_step)]),
    )
