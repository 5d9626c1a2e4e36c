"""Scores of past searches, query by query, in the units of the factor model.

Axes: q queries, e exact scores, b scored items of a query, k items with scores, n items,
d dimensions, g columns [1, retrievers' scores].
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from crossknn.linalg import directions_of
from crossknn.scores.sparse import SparseScores
from crossknn.types import BoolArray, FloatArray, IntArray

HELD_OUT = 0.1
"""Share of the scores that is held out to choose the number of EM steps."""


class Query(NamedTuple):
    """A query's scored items, as positions (b,) in `seen`; `basis` (b, g) is [1, x]."""

    items: IntArray
    basis: FloatArray
    scores: FloatArray

    def take(self, kept: BoolArray) -> Query:
        """Select the items of a mask (b,)."""
        return Query(self.items[kept], self.basis[kept], self.scores[kept])


@dataclass(frozen=True, eq=False)
class Observations:
    """All scores, query by query. [score, x] are centered and divided by their deviations within
    queries, `size` (g,). `seen` (k,) has the positions of the items with scores, `directions` (k,
    d) their vectors' directions."""

    queries: Sequence[Query]
    seen: IntArray
    directions: FloatArray
    size: FloatArray

    @staticmethod
    def of(scores: SparseScores, cheap: Sequence[FloatArray], vectors: FloatArray) -> Observations:
        """Make observations from e pairs, each retriever's scores of them, (e,), and items' vectors
        (n, d)."""
        values, seen = np.column_stack([scores.score, *cheap]), np.unique(scores.item)
        values = values.astype(np.float64)
        begin = np.searchsorted(scores.query, scores.scored_queries)[1:]
        by_query = np.split(values, begin) if len(scores) else []
        squares = sum(np.square(each - each.mean(axis=0)).sum(axis=0) for each in by_query)
        centre = values.sum(axis=0) / max(len(values), 1)
        size = np.sqrt(squares / max(len(values), 1))
        size = np.where(size <= 1e-6 * np.abs(centre), 1.0, size)
        items = np.split(np.searchsorted(seen, scores.item), begin)
        queries = []
        for positions, each in zip(items, by_query, strict=False):
            scaled = (each - centre) / size
            basis = np.column_stack([np.ones(len(scaled)), scaled[:, 1:]])
            queries.append(Query(positions, basis, scaled[:, 0]))
        return Observations(queries, seen, directions_of(vectors[seen]), size)

    def split(self, texts: Sequence[str]) -> tuple[Observations, list[Query]]:
        """Split off a random share of each query's scores; the query's text determines which."""
        fitted, held = [], []
        for text, query in zip(texts, self.queries, strict=True):
            rng = np.random.default_rng([0, zlib.crc32(text.encode("utf-8", "surrogatepass"))])
            out = rng.random(len(query.items)) < HELD_OUT
            out[0] = False  # every query keeps a score
            fitted.append(query.take(~out))
            held.append(query.take(out))
        return replace(self, queries=fitted), held
