"""Queries with some of their items scored, and queries with all: what a factor model is fitted to.

Axes: q queries, e entries, b scored items of a query, a dense rows, n items, s retrievers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from crossknn.index.sparse import SparseScores
from crossknn.types import BoolArray, FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Row:
    """A query's scored items: positions `items` (b,) or all, `cheap` (b, s), `scores` (b,)."""

    items: IntArray | slice
    cheap: FloatArray
    scores: FloatArray

    @property
    def fixed(self) -> FloatArray:
        """What the first weights are of, (b, 1 + s): one and the cheap scores."""
        return np.column_stack([np.ones(len(self.scores)), self.cheap])


@dataclass(frozen=True, eq=False)
class Rows:
    """Queries some of whose items are scored, then `dense` ones (a, n) with all of them.

    `query` (e,), ascending, `item` (e,), `score` (e,) and `cheap` (e, s) are the entries of the
    first `sparse` queries; `dense_cheap` are (a, n), one for each stage. Scores and cheap ones are
    taken less `centre` and over `unit`, both (1 + s,).
    """

    sparse: int
    query: IntArray
    item: IntArray
    score: FloatArray
    cheap: FloatArray
    dense: FloatArray
    dense_cheap: Sequence[FloatArray]
    centre: FloatArray
    unit: FloatArray

    def __len__(self) -> int:
        return self.sparse + len(self.dense)

    def __iter__(self) -> Iterator[Row]:
        for start, stop in pairwise(self._begin.tolist()):
            part = slice(start, stop)
            yield self._row(self.item[part], self.cheap[part], self.score[part])
        for row, scores in enumerate(self.dense):
            cheap = np.column_stack([scores, *(c[row] for c in self.dense_cheap)])[:, 1:]
            yield self._row(slice(None), cheap, scores)

    @property
    def _begin(self) -> IntArray:
        """Query r has the entries `_begin[r]:_begin[r + 1]`: (sparse + 1,)."""
        return np.searchsorted(self.query, np.arange(self.sparse + 1))

    def _row(self, items: IntArray | slice, cheap: FloatArray, scores: FloatArray) -> Row:
        return Row(
            items,
            (cheap.astype(np.float64) - self.centre[1:]) / self.unit[1:],
            (scores.astype(np.float64) - self.centre[0]) / self.unit[0],
        )

    def split(self, texts: Sequence[str], share: float, seed: int) -> tuple[Rows, Rows]:
        """Two parts of the entries, the second a random `share`, drawn for each query by its text,
        so that the order of queries does not matter."""
        begin, held = self._begin, np.zeros(len(self.query), np.bool_)
        for row, text in enumerate(texts):
            rng = np.random.default_rng([seed, zlib.crc32(text.encode("utf-8", "surrogatepass"))])
            part = slice(begin[row], begin[row + 1])
            held[part] = rng.random(begin[row + 1] - begin[row]) < share
            held[begin[row]] = False  # no query without an entry
        rest = self._take(held)
        return self._take(~held), replace(rest, dense=rest.dense[:0])

    def _take(self, entries: BoolArray) -> Rows:
        return replace(
            self,
            query=self.query[entries],
            item=self.item[entries],
            score=self.score[entries],
            cheap=self.cheap[entries],
        )


def rows_of(
    scores: SparseScores,
    cheap: Sequence[FloatArray],
    anchors: tuple[FloatArray, Sequence[FloatArray]] | None,
    seen: IntArray,
) -> tuple[Rows, list[str]]:
    """All queries that have a score, in units of their scores, and the texts of the sparse ones."""
    dense, dense_cheap = anchors or (np.zeros((0, len(seen)), np.float32), [])
    queries = scores.scored_queries
    columns = [scores.score, *cheap]
    rows = Rows(
        sparse=len(queries),
        query=np.searchsorted(queries, scores.query),
        item=np.searchsorted(seen, scores.item),
        score=scores.score,
        cheap=np.column_stack(columns)[:, 1:],
        dense=dense,
        dense_cheap=dense_cheap,
        centre=np.zeros(len(columns)),
        unit=np.ones(len(columns)),
    )
    total, within, count = np.zeros(len(columns)), np.zeros(len(columns)), 0
    for row in rows:
        values = np.column_stack([row.scores, row.cheap])
        total += values.sum(axis=0)
        within += np.square(values - values.mean(axis=0)).sum(axis=0)
        count += len(values)
    centre, unit = total / max(count, 1), np.sqrt(within / max(count, 1))
    constant = unit <= 1e-6 * np.abs(centre)
    texts = [scores.queries[query] for query in queries.tolist()]
    return replace(rows, centre=centre, unit=np.where(constant, 1.0, unit)), texts
