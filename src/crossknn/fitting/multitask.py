"""Predict the scores of queries from each other's: a multi-task Gaussian process.

    score of item i for query q = trend_q(i) + f_q(i) + noise
    cov(f_q(i), f_p(j)) = alike_qp k(i, j)

The tasks are the queries. k is the covariance of items by their vectors that kriging assumes, and
`alike` says how similar two queries are: the intrinsic coregionalization model (Bonilla et al.
2007, "Multi-task Gaussian process prediction", 2.1). A query's prediction is made from the other
queries' scores only, since kriging then conditions on the query's own.

Axes: q queries, e scores, b scored items of a query, j items with scores, n items, s retrievers,
d dimensions of vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from crossknn.linalg import directions_of
from crossknn.methods.posterior import Kernel
from crossknn.types import FloatArray, IntArray

COMMON, SHARED = 2.0, 10.0
"""Covariances of two queries' f, in units of the variance that is a query's own: that of all
queries, and that of queries whose similarity is 1."""

OFFSET = 100.0
"""Prior variance of a query's mean score, in the same units; that of the trend's slopes is 1."""

FOLDS = 10
"""A query is predicted from the queries of the other folds."""

TOLERANCE, MOST_STEPS = 0.1, 30
"""Relative residual at which conjugate gradients end, and the maximum number of their steps."""

_BLOCK = 512


class Known(NamedTuple):
    """A query's scored `items` (b,), their `scores` (b,) and the retrievers' scores `cheap` (b, s)
    of them, standardised over all items."""

    items: IntArray
    scores: FloatArray
    cheap: FloatArray


class Shared(NamedTuple):
    """Predictions for q queries: `weights` (q, j) of the covariances with items at `points`
    (j, d)."""

    points: FloatArray
    weights: FloatArray

    def at(self, points: FloatArray, q: slice = slice(None)) -> FloatArray:
        """Predict f of some queries at points (c, d): (q, c)."""
        parts = range(0, len(points), _BLOCK)
        return np.hstack(
            [self.weights[q] @ Kernel()(self.points, points[p : p + _BLOCK]) for p in parts]
        )

    @property
    def directions(self) -> FloatArray:
        """The vectors (q, d) whose inner products approximate f up to a constant."""
        return np.stack([Kernel().direction(weights, self.points) for weights in self.weights])


def predict_each_other(
    known: Sequence[Known], vectors: FloatArray, query_vectors: FloatArray | None
) -> Shared:
    """Predict f of q queries from each other's scores, given item vectors (n, d) and, if there are
    any, query vectors (q, d)."""
    seen, place = np.unique(np.concatenate([each.items for each in known]), return_inverse=True)
    points = np.asarray(vectors[seen], np.float32)
    covariance = Kernel()(points, points)
    places = np.split(place, np.cumsum([len(each.items) for each in known])[:-1])
    tasks = [Task.of(each, at) for each, at in zip(known, places, strict=True)]
    alike = COMMON + SHARED * similarity(tasks, covariance, query_vectors) + np.eye(len(tasks))
    alike = alike.astype(np.float32)
    alone = [t.inverse(covariance, own) for t, own in zip(tasks, np.diag(alike), strict=True)]
    every, weights = np.arange(len(tasks)), np.zeros((len(tasks), len(seen)), np.float32)

    def solved(queries: IntArray, start: FloatArray | None = None) -> FloatArray:
        some, near = [tasks[q] for q in queries], alike[np.ix_(queries, queries)]
        return solve(some, covariance, near, [alone[q] for q in queries], start)

    of_all = solved(every)
    for fold in np.array_split(np.random.default_rng(0).permutation(every), FOLDS):
        others = np.setdiff1d(every, fold)
        weights[fold] = alike[np.ix_(fold, others)] @ solved(others, of_all[others])
    return Shared(points, weights)


def similarity(
    tasks: Sequence[Task], covariance: FloatArray, query_vectors: FloatArray | None
) -> FloatArray:
    """How similar queries are, from 1 for equal ones: (q, q).

    It is the correlation of what their own scores predict, a' k b / sqrt(a' k a b' k b) for the
    weights a and b of their scores, averaged with exp(-|u - v|^2 / 2) for the directions u and v of
    their vectors.
    """
    alone = np.zeros((len(tasks), len(covariance)), np.float32)
    for row, task in zip(alone, tasks, strict=True):
        row[task.at] = task.inverse(covariance) @ task.scores
    products = alone @ covariance @ alone.T
    size = np.sqrt(np.maximum(np.diag(products), 1e-9))
    predicted = products / size / size[:, None]
    if query_vectors is None:
        return predicted
    directions = directions_of(query_vectors, np.float32)
    return (predicted + np.exp(directions @ directions.T - 1)) / 2


class Task(NamedTuple):
    """A query's scored items as positions `at` (b,) among the j, its centered scores (b,), and its
    `trend` (b, 1 + s), whose products are covariances."""

    at: IntArray
    scores: FloatArray
    trend: FloatArray

    @staticmethod
    def of(known: Known, at: IntArray) -> Task:
        """Center the scores, and add the constant to the trend."""
        scores = np.asarray(known.scores - np.mean(known.scores), np.float32)
        constant = np.full(len(scores), np.sqrt(OFFSET))
        return Task(at, scores, np.column_stack([constant, known.cheap]).astype(np.float32))

    def inverse(self, covariance: FloatArray, own: float = 1.0) -> FloatArray:
        """Invert the covariance (b, b) of the scores, `own` being the variance of f."""
        block = own * covariance[np.ix_(self.at, self.at)] + self.trend @ self.trend.T
        block[np.diag_indices_from(block)] += Kernel().noise
        return np.linalg.inv(block)


def solve(
    tasks: Sequence[Task],
    covariance: FloatArray,
    alike: FloatArray,
    alone: Sequence[FloatArray],
    start: FloatArray | None = None,
) -> FloatArray:
    """Compute the weights (q, j) of covariances, K^-1 y for the covariance K of all scores, by
    conjugate gradients preconditioned with each query's own inverse, `alone`."""
    at = np.concatenate([task.at for task in tasks])
    query = np.repeat(np.arange(len(tasks)), [len(task.at) for task in tasks])
    parts = np.split(np.arange(len(at)), np.flatnonzero(np.diff(query)) + 1)

    def spread(values: FloatArray) -> FloatArray:
        weights = np.zeros((len(tasks), len(covariance)), np.float32)
        weights[query, at] = values
        return weights

    def product(values: FloatArray) -> FloatArray:
        of_items: FloatArray = (alike @ spread(values)) @ covariance
        trends = [t.trend @ (values[part] @ t.trend) for t, part in zip(tasks, parts, strict=True)]
        return of_items[query, at] + np.concatenate(trends) + Kernel().noise * values

    def one_by_one(values: FloatArray) -> FloatArray:
        both = zip(alone, parts, strict=True)
        return np.concatenate([inverse @ values[part] for inverse, part in both])

    scores, size = np.concatenate([task.scores for task in tasks]), (len(at), len(at))
    solved, _ = cg(
        LinearOperator(size, matvec=product, dtype=np.float32),
        scores,
        one_by_one(scores) if start is None else start[query, at],
        rtol=TOLERANCE,
        maxiter=MOST_STEPS,
        M=LinearOperator(size, matvec=one_by_one, dtype=np.float32),
    )
    return spread(solved)
