"""Walking the item graph: what is near the best scored items is scored next.

Axes: m queries, n items, b scored items of a query, s sources, k neighbours, f offered items.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field

import numpy as np

from crossknn.index.base import Neighbours
from crossknn.retrievers.base import Retriever
from crossknn.search.predictor import Prediction, Predictor
from crossknn.types import (
    NO_ITEM,
    BoolArray,
    Candidates,
    FloatArray,
    IntArray,
    Observed,
    Queries,
)


@dataclass(frozen=True, slots=True)
class Offer:
    """Unscored items that the graph leads a query to, in the order in which to score them.

    `items` (f,), each once; `values` (f,), what they are expected to score; `steps` (f,) rising
    numbers: items of one step are met from the same sources.
    """

    items: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    values: FloatArray = field(default_factory=lambda: np.empty(0))
    steps: IntArray = field(default_factory=lambda: np.empty(0, np.int64))

    def take(self, where: IntArray | BoolArray) -> Offer:
        """A part of it."""
        return Offer(self.items[where], self.values[where], self.steps[where])


class Ranking:
    """The retriever's ranking of a batch of queries, read when it is needed, `depth` at least."""

    def __init__(self, first: Retriever, queries: Queries, depth: int) -> None:
        self.first, self.queries, self.depth = first, queries, depth
        self._read: Candidates | None = None

    def top(self, count: int, allowed: BoolArray | None) -> Candidates:
        """The first `count` allowed items of each query, or more."""
        if self._read is None or count > self.depth:
            self.depth = max(count, self.depth)
            self._read = self.first.top(self.queries, self.depth, allowed)
        return self._read


@dataclass(frozen=True, slots=True)
class Walk:
    """Where a batch of queries stands.

    `offers` (m) are what the graph offers each; `seen` (m,) counts the exact scores they are made
    of; `batches` those that were told.
    """

    ranking: Ranking
    offers: tuple[Offer, ...]
    seen: IntArray
    batches: int = 0


class GraphWalk(Predictor[Walk]):
    """Offers unscored neighbours of scored items; where the graph has none, the retriever's rest.

    `graph` (n, k) are the items' neighbours. `depth` is how much of the retriever is read at
    once: the budget. Subclasses say what is offered, and in which order.
    """

    def __init__(self, first: Retriever, graph: Neighbours, *, depth: int) -> None:
        self.first, self.graph, self.depth = first, graph, depth

    @abstractmethod
    def offer(self, before: Offer, items: IntArray, scores: FloatArray, seen: int) -> Offer:
        """What the graph offers a query with these scored items (b,) and exact scores (b,).

        `before` was made of the first `seen` of them.
        """

    def graph_first(self, state: Walk) -> bool:
        """Whether the next batch is taken from the graph's offer, as far as that goes."""
        return True

    def start(self, queries: Queries) -> Walk:
        m = len(queries)
        ranking = Ranking(self.first, queries, self.depth)
        return Walk(ranking, (Offer(),) * m, np.zeros(m, np.int64))

    def update(self, state: Walk, observed: Observed) -> Walk:
        offers = list(state.offers)
        for row, items, scores in observed.rows():
            offers[row] = self.offer(
                offers[row], items, scores.astype(np.float64), int(state.seen[row])
            )
        return Walk(state.ranking, tuple(offers), observed.counts.copy(), state.batches + 1)

    def predict(self, state: Walk, items: IntArray | None = None) -> Prediction:
        """The values of offered items; -inf for the others, of which the graph says nothing."""
        mean = np.full((len(state.offers), len(self.graph)), -np.inf, np.float32)
        for row, offer in enumerate(state.offers):
            mean[row, offer.items] = offer.values
        return Prediction(mean if items is None else np.take_along_axis(mean, items, axis=1))

    def top(
        self,
        state: Walk,
        count: int,
        exclude: IntArray,
        allowed: BoolArray | None = None,
        pool: IntArray | None = None,
    ) -> Candidates:
        # So deep that `count` new ones are among them, if the retriever has so many.
        ranked = state.ranking.top(exclude.shape[1] + count, allowed)
        rows = []
        for row, (offer, out) in enumerate(zip(state.offers, exclude, strict=True)):
            parts = [(offer.items, offer.values), (ranked.items[row], ranked.scores[row])]
            if not self.graph_first(state):
                parts.reverse()
            items, values = map(np.concatenate, zip(*parts, strict=True))
            mine = allowed if pool is None else self._within(pool[row], allowed)
            chosen = _first_free(items, count, {NO_ITEM, *out.tolist()}, mine)
            rows.append((items[chosen], values[chosen]))
        return Candidates.from_rows(rows)

    def _within(self, pool: IntArray, allowed: BoolArray | None) -> BoolArray:
        """The items (n,) of the pool that are allowed."""
        inside = np.zeros(len(self.graph), np.bool_)
        inside[pool[pool != NO_ITEM]] = True
        return inside if allowed is None else inside & allowed


def _first_free(
    items: IntArray, count: int, taken: set[int], allowed: BoolArray | None
) -> list[int]:
    """Where the first `count` items stand that are allowed and not `taken`, each once."""
    places: list[int] = []
    for place, item in enumerate(items):
        if len(places) == count:
            break
        if item not in taken and (allowed is None or allowed[item]):
            taken.add(item)
            places.append(place)
    return places


def best_first(items: IntArray, scores: FloatArray) -> IntArray:
    """Where the items stand when ordered by score, ties by position: (b,) -> (b,)."""
    return np.lexsort((items, -scores))


def reach(graph: Neighbours, sources: IntArray, scores: FloatArray, scored: IntArray) -> Offer:
    """The neighbours of sources (s,) that are not `scored` (b,), source by source, nearest first.

    The value of each is its first source's score; a source is a step.
    """
    k = graph.shape[1]
    items = graph[sources].ravel().astype(np.int64)
    # Where each item stands first, the scored ones and none before all others.
    known = np.append(scored, NO_ITEM)
    first = np.unique(np.concatenate([known, items]), return_index=True)[1] - len(known)
    new = np.sort(first[first >= 0])
    source = new // k
    return Offer(items[new], scores[source], source)
