"""A Gaussian process over items' points as a predictor, the basis of kriging.

A query's own vector may count as an observation, an idea of BAGEL (arXiv 2604.17906) and ReBOL
(2603.20513).

Axes as in `posterior`, and m queries, n items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from crossknn.methods.base import Prediction, Predictor
from crossknn.methods.posterior import Model, Posterior, Whitened
from crossknn.methods.prior import Affine, Column, Values
from crossknn.retrievers.base import Retriever, VectorStore
from crossknn.types import NO_ITEM, BoolArray, FloatArray, IntArray, Observed, Queries

BLOCK = 16_384
"""Number of items predicted together, which limits memory to b x BLOCK covariances at once."""

KEPT = 2**31
"""Maximum bytes of covariances, over all queries, that are kept from one round to the next."""


class Pooled(NamedTuple):
    """Values computed for a query's pool, extended as the pool grows."""

    items: IntArray
    points: FloatArray
    lengths: FloatArray
    basis: FloatArray
    rows: Whitened


@dataclass(frozen=True, slots=True)
class Posteriors:
    """The state of a Gaussian process for m queries.

    Without a pool, `points` (n, p), their `lengths` (n,) and `basis` (f, m, n) are those of all
    items; with a pool they are None, and `values` computes basis functions of given items. `own`
    (m, d) are the queries' vectors if they count as observations, `best` (m, f) their basis
    functions, and `of_query` the posteriors of queries with enough scores.
    """

    queries: Queries
    points: FloatArray | None
    lengths: FloatArray | None
    basis: FloatArray | None
    values: Sequence[Values]
    linear: Sequence[Affine | None]
    own: FloatArray | None
    best: FloatArray | None
    of_query: dict[int, Posterior]
    pooled: dict[int, Pooled]


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianProcess(Predictor[Posteriors]):
    """Predicts by each query's posterior, and chooses the items with the highest mean + `beta` std.

    A point of an item is one row of each of `arrays`: factors (n, r), if there are any, and vectors
    (n, d). `retriever` ranks the items until a query has scores that differ. `columns` are the
    basis functions besides the constant 1. `own` gives queries' vectors, which are added as
    training points with the query's best score so far and the highest basis functions among the
    items. With `near`, a store of the points (and, in its last column, a basis function that is the
    same for all queries), only a pool is predicted, which the items with the best linear part of
    the prediction join before some rounds. Without it all items are predicted, and covariances are
    kept between rounds, up to `KEPT` bytes.
    """

    arrays: Sequence[FloatArray | VectorStore]
    model: Model
    retriever: Retriever
    beta: float
    columns: Sequence[Column]
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
        own = None if self.own is None else self.own(queries)
        if self.near is not None:
            values = [column.of_some(queries) for column in self.columns]
            linear = [column.linear and column.linear(queries) for column in self.columns]
            best = None
            if own is not None:
                ones, highest = np.ones(len(queries)), [c.highest(queries) for c in self.columns]
                best = np.stack([ones, *highest], axis=1)
            return Posteriors(queries, None, None, None, values, linear, own, best, {}, {})
        ones = np.broadcast_to(np.float32(1), (len(queries), self.n))
        basis = np.stack([ones, *(column.of_all(queries) for column in self.columns)])
        best = None if own is None else basis.max(axis=2).T
        points = self.points(slice(None))
        lengths = self.model.kernel.lengths(points)
        return Posteriors(queries, points, lengths, basis, (), (), own, best, {}, {})

    def with_column(self, state: Posteriors, column: Column) -> tuple[GaussianProcess, Posteriors]:
        """Add a basis function whose weight is expected to be 1. Return the process and its state,
        in which it replaces what was added to `state` before; covariances are kept."""
        trends, f = [t.with_column() for t in self.model.trends], 1 + len(self.columns)
        columns, model = [*self.columns, column], replace(self.model, trends=trends)
        more, queries = replace(self, columns=columns, model=model), state.queries
        if state.best is not None:
            best = np.column_stack([state.best[:, :f], column.highest(queries)])
            state = replace(state, best=best)
        if state.basis is not None:
            basis = np.stack([*state.basis[:f], column.of_all(queries)])
            return more, replace(state, basis=basis)
        pooled, of_some = {}, column.of_some(queries)
        for q, pool in state.pooled.items():
            added = of_some(q, pool.items, pool.points)
            pooled[q] = pool._replace(basis=np.column_stack([pool.basis[:, :f], added]))
        linear = [*state.linear[: f - 1], column.linear and column.linear(queries)]
        values = [*state.values[: f - 1], of_some]
        return more, replace(state, values=values, linear=linear, pooled=pooled)

    def basis(
        self, state: Posteriors, q: int, items: IntArray | slice, points: FloatArray
    ) -> FloatArray:
        """Compute basis functions (c, f) of query q at items (c,) with points (c, p)."""
        if state.basis is not None:
            return state.basis[:, q, items].T
        where = np.arange(*items.indices(self.n)) if isinstance(items, slice) else items
        columns = [values(q, where, points) for values in state.values]
        return np.stack([np.ones(len(where), np.float32), *columns], axis=1)

    def update(self, state: Posteriors, observed: Observed) -> Posteriors:
        posteriors = {}
        for q, items, scores in observed.rows():
            if np.ptp(scores) == 0:
                continue
            points, exact = self.points(items), scores.astype(np.float64)
            basis = self.basis(state, q, items, points)
            if state.own is not None and state.best is not None:
                points = np.vstack([state.own[q].astype(points.dtype), points])
                basis = np.vstack([state.best[q], basis])
                exact = np.append(exact.max(), exact)
            before = state.of_query.get(q)
            posteriors[q] = self.model.posterior(points, exact, basis, before)
        return replace(state, of_query=posteriors)

    def predict(self, state: Posteriors, items: IntArray | None = None) -> Prediction:
        m, count = (len(state.queries), self.n) if items is None else items.shape
        mean, std = np.zeros((m, count), np.float32), np.full((m, count), np.nan, np.float32)
        if len(state.of_query) < m:
            mean[:] = self.retriever.scores(state.queries, items)
        if items is not None:
            for q, posterior in state.of_query.items():
                row = items[q][items[q] != NO_ITEM]
                pooled = state.pooled[q] = self._pooled(state, q, posterior, row)
                mean[q, : len(row)], std[q, : len(row)] = posterior.at(pooled.rows, pooled.basis)
            return Prediction(mean, std)
        if state.of_query:
            self._predict_all(state, mean, std)
        return Prediction(mean, std)

    def _predict_all(self, state: Posteriors, mean: FloatArray, std: FloatArray) -> None:
        """Fill `mean` and `std`, of shape (queries, items), for all items. All queries share one
        pass over the items, because more rows in its matrix products cost almost nothing."""
        kernel, posteriors = self.model.kernel, [*state.of_query.values()]
        keep = 4 * self.n * sum(len(each.points) for each in posteriors) <= KEPT
        for start in range(0, self.n, BLOCK):
            part = slice(start, min(start + BLOCK, self.n))
            points = self.points(part) if state.points is None else state.points[part]
            lengths = None if state.lengths is None else state.lengths[part]
            first = any(start not in each.kept for each in posteriors)
            none = Whitened.of(kernel.variance(points) if first else np.empty(0))
            rows = [each.kept.pop(start, none) for each in posteriors]
            new = [each.points[len(row.rows) :] for each, row in zip(posteriors, rows, strict=True)]
            ends = np.cumsum([len(each) for each in new])[:-1]
            covariances = np.split(kernel(np.vstack(new), points, lengths), ends)
            for (q, each), row, more in zip(state.of_query.items(), rows, covariances, strict=True):
                row = row.extended(each, more)
                mean[q, part], std[q, part] = each.at(row, self.basis(state, q, part, points))
                if keep:
                    each.kept[start] = row

    def _pooled(self, state: Posteriors, q: int, each: Posterior, items: IntArray) -> Pooled:
        """Compute the values for predicting `items` (c,). If they begin with the items of the
        previous round, its values are reused."""
        kernel, before = self.model.kernel, state.pooled.get(q)
        if before is not None and not np.array_equal(items[: len(before.items)], before.items):
            before = None
        new = items if before is None else items[len(before.items) :]
        if before is not None:
            scored = each.points[len(before.rows.rows) :]
            rows = before.rows.extended(each, kernel(scored, before.points, before.lengths))
            before = before._replace(rows=rows)
            if not len(new):
                return before
        points = self.points(new)
        basis, lengths = self.basis(state, q, new, points), kernel.lengths(points)
        variance, covariances = kernel.variance(points), kernel(each.points, points, lengths)
        rows = Whitened.of(variance).extended(each, covariances)
        if before is None:
            return Pooled(items, points, lengths, basis, rows)
        points, basis = np.vstack([before.points, points]), np.vstack([before.basis, basis])
        lengths = np.append(before.lengths, lengths)
        return Pooled(items, points, lengths, basis, before.rows.beside(rows))

    def acquisition(self, prediction: Prediction) -> FloatArray:
        if self.beta == 0 or prediction.std is None:
            return prediction.mean
        return prediction.mean + self.beta * np.where(np.isnan(prediction.std), 0, prediction.std)

    def joining(
        self, state: Posteriors, count: int, exclude: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        """Return the items with the best linear part of the prediction."""
        if self.near is None or not state.of_query:
            return super().joining(state, count, exclude, allowed)
        queries = [*state.of_query]
        directions = np.zeros((len(queries), self.near.shape[1]), np.float32)
        for row, (q, each) in zip(directions, state.of_query.items(), strict=True):
            p = each.points.shape[1]
            row[:p] = self.model.kernel.direction(each.pull, each.points)
            for weight, column, linear in zip(
                each.weights[1:], self.columns, state.linear, strict=True
            ):
                if linear is not None:
                    row[:p] += weight * linear.weights[q]
                elif column.fixed is not None:
                    row[-1] += weight
        best = self.near.top(directions, count, exclude[queries], allowed).items
        items = np.full((len(state.queries), best.shape[1]), NO_ITEM)
        items[queries] = best
        return items


def _rows(array: FloatArray | VectorStore, items: IntArray | slice) -> FloatArray:
    if isinstance(array, np.ndarray):
        return array[items]
    if not isinstance(items, slice):
        return array.vectors(items)
    if array.values is not None:
        return array.values[items]
    return array.vectors(np.arange(*items.indices(array.shape[0])))
