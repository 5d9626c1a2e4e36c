"""Queries with exact scores, of some items or of all, as the factor model reads them.

Items of which only queries with every item have scores have a theta linear in what is known of
them, X: their directions and these queries' columns. X'X is all that the sweeps need of them, so
that these cost the same whatever the number of items.

Axes: q queries, e entries, b scored items of a query, a queries with all items, n items, k items
with entries, d dimensions, s retriever stages, g = 1 + s columns [1, cheap], c = 1 + a g columns of
queries with all items, p = d + more + c columns of X.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from crossknn.methods.posterior import lengths
from crossknn.methods.prior import BLOCK, Moments
from crossknn.scores.store import SparseScores
from crossknn.types import FloatArray, IntArray

HELD_OUT = 0.1
"""Share of the entries on which the number of sweeps is chosen."""

Dense: TypeAlias = tuple[FloatArray, Sequence[FloatArray], FloatArray | None]
"""Exact scores (a, n) of queries with every item, each retriever's cheap ones, (a, n), and vectors
(a, d) of the queries."""


class Row(NamedTuple):
    """A query's scored items: positions (b,) among the k; `basis` (b, g), `scores` (b,)."""

    items: IntArray
    basis: FloatArray
    scores: FloatArray


@dataclass(frozen=True, eq=False)
class Rows:
    """Queries some of whose items are scored, as positions (b,) among the k items with entries, and
    exact and cheap scores (b, g); then `dense` ones with all.

    A row has scores less `centre` and over `size`, both (g,). `within` (g, g) are the products of
    the dense rows' scores [exact, cheap] in these units, about their means. Of the k items `seen`
    there are X, `known` (k, p); of the `n_others` that only dense rows have X'X, `gram` (p, p).
    X has `more` random columns where there are to be more factors than dimensions.
    """

    sparse: Sequence[tuple[IntArray, FloatArray]]
    dense: Dense
    vectors: FloatArray
    seen: IntArray
    more: int
    centre: FloatArray
    size: FloatArray
    within: FloatArray
    n_others: int
    known: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    gram: FloatArray = field(default_factory=lambda: np.empty((0, 0)))

    def __len__(self) -> int:
        return len(self.sparse) + self.n_dense

    def __iter__(self) -> Iterator[Row]:
        return (self.row(items, values) for items, values in self.sparse)

    @property
    def n_dense(self) -> int:
        return len(self.dense[0])

    @property
    def unit(self) -> FloatArray:
        """Directions (k, d) of the items with entries."""
        return self.known[:, : self.vectors.shape[1]]

    @property
    def columns(self) -> FloatArray:
        """What dense rows say of the items with entries: (k, c)."""
        return self.known[:, self.vectors.shape[1] + self.more :]

    def of(self, row: int) -> IntArray:
        """Which of the c columns are a dense row's: 1, its cheap scores, the exact one."""
        g = len(self.size)
        return np.append(0, np.arange(1 + row * g, 1 + (row + 1) * g))

    def row(self, items: IntArray, values: FloatArray) -> Row:
        values = (values.astype(np.float64) - self.centre) / self.size
        return Row(items, np.column_stack([np.ones(len(values)), values[:, 1:]]), values[:, 0])

    def split(self, texts: Sequence[str]) -> tuple[Rows, list[Row]]:
        """The rows without a random share of each sparse query's entries, and these; drawn by the
        query's text."""
        fitted, held = [], []
        for text, (items, values) in zip(texts, self.sparse, strict=True):
            rng = np.random.default_rng([0, zlib.crc32(text.encode("utf-8", "surrogatepass"))])
            out = rng.random(len(items)) < HELD_OUT
            out[0] = False  # no query without an entry
            fitted.append((items[~out], values[~out]))
            held.append(self.row(items[out], values[out]))
        return replace(self, sparse=fitted), held

    def blocks(self, items: IntArray | None = None) -> Iterator[tuple[slice, FloatArray]]:
        """X of all items, or of these positions, some at a time: (b, p)."""
        rng = np.random.default_rng(0)
        exact, cheap, _ = self.dense
        for start in range(0, n := len(self.vectors) if items is None else len(items), BLOCK):
            part = slice(start, min(start + BLOCK, n))
            at = part if items is None else items[part]
            unit = self.vectors[at].astype(np.float64)
            unit /= lengths(unit)[:, None]
            random = rng.normal(size=(len(unit), self.more))
            values = np.stack([a[:, at] for a in (*cheap, exact)], axis=2).astype(np.float64)
            order = np.append(np.arange(1, len(self.size)), 0)
            values = (values - self.centre[order]) / self.size[order]
            width = values.shape[0] * values.shape[2]
            values = values.transpose(1, 0, 2).reshape(len(unit), width)
            yield part, np.hstack([unit, random, np.ones((len(unit), 1)), values])


def rows_of(
    scores: SparseScores,
    cheap: Sequence[FloatArray],
    vectors: FloatArray,
    anchors: Dense | None,
    rank: int,
) -> Rows:
    """All queries with a score, in units of the standard deviations within queries."""
    values, seen = np.column_stack([scores.score, *cheap]), np.unique(scores.item)
    begin = np.searchsorted(scores.query, scores.scored_queries)[1:]
    sparse = np.split(values, begin) if len(scores) else []
    positions = np.split(np.searchsorted(seen, scores.item), begin)
    dense = anchors or (np.zeros((0, len(vectors)), np.float32), [], None)
    a, n, g = len(dense[0]), len(vectors), values.shape[1]
    total, within, count = np.zeros(g), np.zeros((g, g)), a * n
    moments = Moments()
    for start in range(0, n * bool(a), BLOCK):
        part = slice(start, start + BLOCK)
        moments.add(np.stack([s[:, part] for s in (dense[0], *dense[1])], 1).astype(np.float64))
    if a:
        total, within = n * moments.mean.sum(axis=0)[:, 0], moments.products.sum(axis=0)
    squares = np.diag(within).copy()
    for each in sparse:
        exact = each.astype(np.float64)
        total += exact.sum(axis=0)
        squares += np.square(exact - exact.mean(axis=0)).sum(axis=0)
        count += len(exact)
    centre, size = total / max(count, 1), np.sqrt(squares / max(count, 1))
    size = np.where(size <= 1e-6 * np.abs(centre), 1.0, size)
    rows = Rows(
        sparse=[*zip(positions, sparse, strict=False)],
        dense=dense,
        vectors=vectors,
        seen=seen,
        more=max(0, min(rank, len(sparse) + a) - vectors.shape[1]),
        centre=centre,
        size=size,
        within=within / size / size[:, None],
        n_others=(n - len(seen)) * bool(a),
    )
    p = vectors.shape[1] + rows.more + 1 + a * g
    known, gram, others = np.empty((len(seen), p)), np.zeros((p, p)), np.ones(n, np.bool_)
    others[seen] = False
    for part, found in rows.blocks(None if a else seen):
        if not a:
            known[part] = found
            continue
        first, last = np.searchsorted(seen, (part.start, part.stop))
        known[first:last] = found[~others[part]]
        rest = found[others[part]]
        gram += rest.T @ rest
    return replace(rows, known=known, gram=gram)
