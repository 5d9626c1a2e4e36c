"""A Gaussian process over items' points as a predictor, the basis of kriging.

The idea that a query's own vector may count as an observation is that of BAGEL (arXiv 2604.17906)
and ReBOL (2603.20513).

Axes as in `posterior`, and m queries, n items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from crossknn.methods.features import Affine, Feature, Values
from crossknn.methods.plan import Prediction, Predictor
from crossknn.methods.posterior import (
    Model,
    Posterior,
    Whitened,
)
from crossknn.retrievers.base import Retriever, VectorStore
from crossknn.types import NO_ITEM, BoolArray, FloatArray, IntArray, Observed, Queries

BLOCK = 16_384
"""Items predicted together, which limits memory to b x BLOCK covariances at once."""

KEPT = 2**31
"""Maximum bytes of covariances, over all queries, that are kept from one round to the next."""


class Pooled(NamedTuple):
    """Values computed for a query's pool, extended as the pool grows."""

    items: IntArray
    points: FloatArray
    basis: FloatArray
    rows: Whitened


@dataclass(frozen=True, slots=True)
class Posteriors:
    """The state of a Gaussian process for m queries.

    `points` (n, p) are those of all items, with the kernel's precomputed `lengths` (n,), and
    `basis` (f, m, n) holds the basis functions; with a pool all three are None, and `values`
    computes basis functions of given items. `own` (m, d) are the queries' vectors if they count as
    observations, and `best` (m, f) their basis functions. `known` holds each query's posterior,
    None if it has too few scores. `pooled` is kept for the next rounds.
    """

    queries: Queries
    points: FloatArray | None
    lengths: FloatArray | None
    basis: FloatArray | None
    values: Sequence[Values]
    linear: Sequence[Affine | None]
    own: FloatArray | None
    best: FloatArray | None
    known: dict[int, Posterior]
    pooled: dict[int, Pooled]


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianProcess(Predictor[Posteriors]):
    """Predicts by each query's posterior, and chooses the items with the highest mean + `beta` *
    std.

    An item's point is the concatenation of its rows in `arrays`, (n, d) each. The basis functions
    are 1 (with `intercept`) and the `features` of queries. With `own`, the query's own vector is
    added as a training point, whose score is the query's best so far and whose basis functions are
    the highest values among the items (BAGEL, ReBOL). The
    `retriever` ranks items until a query has scores that differ and, without trends, more of them
    than basis functions.

    With `near`, a store that searches the points, it predicts over a pool: before each round, the
    items with the best linear part of the prediction join it. (The store's last column may hold a
    feature that is the same for all queries.) Without `near`, all items are predicted. Between
    rounds, b * n * 4 bytes are kept for a query with b scores; if this would exceed `KEPT`, each
    round computes everything again.
    """

    arrays: Sequence[FloatArray | VectorStore]
    model: Model
    retriever: Retriever
    beta: float
    intercept: bool = True
    features: Sequence[Feature] = ()
    own: Callable[[Queries], FloatArray] | None = None
    near: VectorStore | None = None

    @property
    def n(self) -> int:
        """Number of items."""
        return int(self.arrays[0].shape[0])

    def points(self, items: IntArray | slice) -> FloatArray:
        """Return the points (c, p) of items (c,), in single precision or better."""
        rows = [_rows(array, items) for array in self.arrays]
        single = [a.astype(np.promote_types(a.dtype, "f4"), copy=False) for a in rows]
        return np.hstack(single) if len(single) > 1 else single[0]

    def start(self, queries: Queries) -> Posteriors:
        own, shape = None if self.own is None else self.own(queries), (len(queries), self.n)
        if self.near is not None:
            values = [feature.of_some(queries) for feature in self.features]
            linear = [feature.linear and feature.linear(queries) for feature in self.features]
            best = None if own is None else self._best(queries)
            return Posteriors(queries, None, None, None, values, linear, own, best, {}, {})
        basis = [np.broadcast_to(np.float32(1), shape)] * self.intercept
        basis += [feature.of_all(queries) for feature in self.features]
        known = np.stack(basis) if basis else np.empty((0, *shape), np.float32)
        best = None if own is None else known.max(axis=2).T
        points = self.points(slice(None))
        lengths = self.model.kernel.lengths(points)
        return Posteriors(queries, points, lengths, known, (), (), own, best, {}, {})

    def _best(self, queries: Queries) -> FloatArray:
        """Return the largest values of the basis functions: (m, f)."""
        best: list[FloatArray] = [np.ones(len(queries))] * self.intercept
        best += [f.best(queries) if f.best else f.of_all(queries).max(1) for f in self.features]
        return np.stack(best, axis=1) if best else np.empty((len(queries), 0))

    def basis(
        self, state: Posteriors, q: int, items: IntArray | slice, points: FloatArray
    ) -> FloatArray:
        """Compute basis functions (c, f) of a query at items (c,) with points (c, p)."""
        if state.basis is not None:
            return state.basis[:, q, items].T
        where = np.arange(*items.indices(self.n)) if isinstance(items, slice) else items
        columns = [np.ones(len(where), np.float32)] * self.intercept
        columns += [values(q, where, points) for values in state.values]
        return np.stack(columns, axis=1) if columns else np.empty((len(where), 0), np.float32)

    def update(self, state: Posteriors, observed: Observed) -> Posteriors:
        known = {}
        for q, items, scores in observed.rows():
            points = self.points(items)
            basis = self.basis(state, q, items, points)
            few = not self.model.trends and len(scores) <= basis.shape[1]
            if few or np.ptp(scores) == 0:
                continue
            exact = scores.astype(np.float64)
            if state.own is not None:
                points = np.vstack([state.own[q].astype(points.dtype), points])
                assert state.best is not None
                basis = np.vstack([state.best[q], basis])
                exact = np.append(exact.max(), exact)
            known[q] = self.model.posterior(points, exact, basis, state.known.get(q))
        return replace(state, known=known)

    def predict(self, state: Posteriors, items: IntArray | None = None) -> Prediction:
        m, count = (len(state.queries), self.n) if items is None else items.shape
        mean, std = np.zeros((m, count), np.float32), np.full((m, count), np.nan, np.float32)
        if len(state.known) < m:
            mean[:] = self.retriever.scores(state.queries, items)
        if items is not None:
            for q, each in state.known.items():
                row = items[q][items[q] != NO_ITEM]
                pooled = state.pooled[q] = self._pooled(state, q, each, row)
                mean[q, : len(row)], std[q, : len(row)] = each.at(pooled.rows, pooled.basis)
            return Prediction(mean, std)
        queries, kernel = [*state.known], self.model.kernel
        known = [*state.known.values()]
        keep = 4 * count * sum(len(each.points) for each in known) <= KEPT
        # All queries share one pass, because additional rows cost almost nothing.
        for part in _blocks(count) if known else ():
            points = self.points(part) if state.points is None else state.points[part]
            lengths = None if state.lengths is None else state.lengths[part]
            first = any(part.start not in each.kept for each in known)
            none = Whitened(kernel.variance(points) if first else np.empty(0))
            rows = [each.kept.pop(part.start, none) for each in known]
            new = [each.points[row.count :] for each, row in zip(known, rows, strict=True)]
            ends = np.cumsum([len(each) for each in new])[:-1]
            found = np.split(kernel(np.vstack(new), points, lengths), ends)
            for q, each, row, covariances in zip(queries, known, rows, found, strict=True):
                row = row.extended(each, covariances)
                mean[q, part], std[q, part] = each.at(row, self.basis(state, q, part, points))
                if keep:
                    each.kept[part.start] = row
        return Prediction(mean, std)

    def _pooled(self, state: Posteriors, q: int, each: Posterior, items: IntArray) -> Pooled:
        """Compute the values for predicting `items` (c,). If they begin with the items of the
        previous round, its values are reused."""
        kernel, known = self.model.kernel, state.pooled.get(q)
        if known is not None and not np.array_equal(items[: len(known.items)], known.items):
            known = None
        new = items if known is None else items[len(known.items) :]
        if known is not None:
            scored = each.points[known.rows.count :]
            before = known.rows.extended(each, kernel(scored, known.points))
            if not len(new):
                return known._replace(rows=before)
        points = self.points(new)
        basis = self.basis(state, q, new, points)
        rows = Whitened(kernel.variance(points)).extended(each, kernel(each.points, points))
        if known is None:
            return Pooled(items, points, basis, rows)
        points, basis = np.vstack([known.points, points]), np.vstack([known.basis, basis])
        return Pooled(items, points, basis, before.beside(rows))

    def acquisition(self, prediction: Prediction) -> FloatArray:
        if self.beta == 0 or prediction.std is None:
            return prediction.mean
        return prediction.mean + self.beta * np.nan_to_num(prediction.std)

    def joining(
        self, state: Posteriors, count: int, exclude: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        """Return the items with the best linear part of the prediction."""
        if self.near is None or not state.known:
            return super().joining(state, count, exclude, allowed)
        queries, known = [*state.known], [*state.known.values()]
        directions = np.zeros((len(known), self.near.shape[1]), np.float32)
        for row, q, each in zip(directions, queries, known, strict=True):
            p = each.points.shape[1]
            row[:p] = self.model.kernel.direction(each.pull, each.points)
            weights = each.weights[self.intercept :]
            for weight, feature, linear in zip(weights, self.features, state.linear, strict=True):
                if linear is not None:
                    row[:p] += weight * linear.weights[q]
                elif feature.fixed is not None:
                    row[-1] += weight
        found = self.near.top(directions, count, exclude[queries], allowed).items
        items = np.full((len(state.queries), found.shape[1]), NO_ITEM)
        items[queries] = found
        return items


def _rows(array: FloatArray | VectorStore, items: IntArray | slice) -> FloatArray:
    if isinstance(array, np.ndarray):
        return array[items]
    if not isinstance(items, slice):
        return array.vectors(items)
    if array.values is not None:
        return array.values[items]
    return array.vectors(np.arange(*items.indices(array.shape[0])))


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))
