"""Search many queries together: between rounds, kriging learns from all their scores, by predicting
each query's scores from the other queries' scores with a multi-task Gaussian process.

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

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy.sparse.linalg import LinearOperator, cg

from crossknn.index.base import Index
from crossknn.linalg import directions_of
from crossknn.methods.base import Method, Plan, Prediction, Predictor, planned
from crossknn.methods.gp import GaussianProcess, Posteriors
from crossknn.methods.kriging import Kriging
from crossknn.methods.posterior import Kernel
from crossknn.methods.prior import Affine, Column, Values
from crossknn.retrievers.specs import default_vectors
from crossknn.types import BoolArray, FloatArray, IntArray, Observed, Queries

COMMON, SHARED = 2.0, 10.0
"""Covariances of two queries' f, in units of the variance that is a query's own: that of all
queries, and that of queries whose similarity is 1."""

OFFSET = 100.0
"""Prior variance of a query's mean score, in the same units; that of the trend's slopes is 1."""

FOLDS = 10
"""A query is predicted from the queries of the other folds."""

FEWEST_QUERIES, MOST_QUERIES, MOST_ITEMS = 10, 100, 8_192
"""Queries learn from each other in groups of at most `MOST_QUERIES` queries and `MOST_ITEMS`
different scored items, but a group of fewer than twice `FEWEST_QUERIES` is not split."""

FEWEST_SCORES = 20
"""Minimum number of a query's scores from which other queries learn."""

TOLERANCE, MOST_STEPS = 0.1, 30
"""Relative residual at which conjugate gradients end, and the maximum number of their steps."""

SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of the budget after which queries learn from each other. If they do so earlier, they find
fewer of their best ten items."""

PER_ITEM = 0.25
"""Minimum number of scores per item of the index. With fewer, one set lost three points."""

_BLOCK = 512


class Known(NamedTuple):
    """A query's scored `items` (b,), their `scores` (b,) and the `columns` (b, s) of its trend
    besides the constant."""

    items: IntArray
    scores: FloatArray
    columns: FloatArray


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


def groups(queries: IntArray, items: Sequence[IntArray]) -> Sequence[IntArray]:
    """Split queries, given each query's scored items, into groups that learn from each other."""
    different = len(np.unique(np.concatenate([items[q] for q in queries])))
    few = len(queries) <= MOST_QUERIES and different <= MOST_ITEMS
    if few or len(queries) < 2 * FEWEST_QUERIES:
        return [queries]
    return [group for half in np.array_split(queries, 2) for group in groups(half, items)]


def predict_each_other(
    known: Sequence[Known], vectors: FloatArray, query_vectors: FloatArray | None
) -> Shared:
    """Predict f of q queries from each other's scores, given item vectors (n, d) and, if there are
    any, query vectors (q, d)."""
    tasks = Tasks.of(known, vectors, query_vectors)
    every, weights = np.arange(len(known)), np.zeros((len(known), len(tasks.points)), np.float32)
    of_all = tasks.solve(every)
    for fold in np.array_split(np.random.default_rng(0).permutation(every), FOLDS):
        others = np.setdiff1d(every, fold)
        of_others = tasks.solve(others, of_all[others])
        weights[fold] = tasks.alike[np.ix_(fold, others)] @ of_others
    return Shared(tasks.points, weights)


def complete(
    known: Sequence[Known],
    cheap: Sequence[FloatArray],
    vectors: FloatArray,
    query_vectors: FloatArray | None,
) -> FloatArray:
    """Predict the scores of all items (q, n) from all scores, given also each retriever's scores of
    them (q, n), standardised."""
    tasks = Tasks.of(known, vectors, query_vectors)
    weights = tasks.solve(np.arange(len(known)))
    scores: FloatArray = Shared(tasks.points, tasks.alike @ weights).at(vectors)
    slopes = np.stack([w[t.at] @ t.trend for w, t in zip(weights, tasks.tasks, strict=True)])
    means = np.array([each.scores.mean() for each in known])
    scores += (means + np.sqrt(OFFSET) * slopes[:, 0])[:, None]
    for slope, stage in zip(slopes[:, 1:].T, cheap, strict=True):
        scores += slope[:, None] * stage
    return scores


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
        return Task(at, scores, np.column_stack([constant, known.columns]).astype(np.float32))

    def inverse(self, covariance: FloatArray, own: float = 1.0) -> FloatArray:
        """Invert the covariance (b, b) of the scores, `own` being the variance of f."""
        block = own * covariance[np.ix_(self.at, self.at)] + self.trend @ self.trend.T
        block[np.diag_indices_from(block)] += Kernel().noise
        return np.linalg.inv(block.astype(np.float64)).astype(np.float32)


class Tasks(NamedTuple):
    """The queries, the j items with scores at `points` (j, d), their `covariance` (j, j), how
    `alike` (q, q) the queries are, and the inverse (b, b) of each query's covariance `alone`."""

    tasks: Sequence[Task]
    points: FloatArray
    covariance: FloatArray
    alike: FloatArray
    alone: Sequence[FloatArray]

    @staticmethod
    def of(known: Sequence[Known], vectors: FloatArray, query_vectors: FloatArray | None) -> Tasks:
        """Compute the covariances of items and of queries."""
        items = np.concatenate([each.items for each in known])
        seen, place = np.unique(items, return_inverse=True)
        points = np.asarray(vectors[seen], np.float32)
        places = np.split(place, np.cumsum([len(each.items) for each in known])[:-1])
        tasks = [Task.of(each, at) for each, at in zip(known, places, strict=True)]
        covariance = np.empty((len(points), len(points)), np.float32)
        for start in range(0, len(points), _BLOCK):  # temporary values take more
            part = slice(start, start + _BLOCK)
            covariance[:, part] = Kernel()(points, points[part])
        near = similarity(tasks, covariance, query_vectors)
        alike = (COMMON + SHARED * near + np.eye(len(tasks))).astype(np.float32)
        alone = [t.inverse(covariance, own) for t, own in zip(tasks, np.diag(alike), strict=True)]
        return Tasks(tasks, points, covariance, alike, alone)

    def solve(self, queries: IntArray, start: FloatArray | None = None) -> FloatArray:
        """Compute the weights (q, j) of covariances, K^-1 y for the covariance K of the scores of
        some queries, by conjugate gradients preconditioned with the queries' inverses."""
        tasks = [self.tasks[q] for q in queries]
        at = np.concatenate([task.at for task in tasks])
        query = np.repeat(np.arange(len(tasks)), [len(task.at) for task in tasks])
        parts = np.split(np.arange(len(at)), np.flatnonzero(np.diff(query)) + 1)
        alike = self.alike[np.ix_(queries, queries)]

        def spread(values: FloatArray) -> FloatArray:
            weights = np.zeros((len(tasks), len(self.points)), np.float32)
            weights[query, at] = values
            return weights

        def product(values: FloatArray) -> FloatArray:
            of_items: FloatArray = (alike @ spread(values)) @ self.covariance
            both = zip(tasks, parts, strict=True)
            trends = [task.trend @ (values[part] @ task.trend) for task, part in both]
            return of_items[query, at] + np.concatenate(trends) + Kernel().noise * values

        def one_by_one(values: FloatArray) -> FloatArray:
            both = zip(queries, parts, strict=True)
            return np.concatenate([self.alone[q] @ values[part] for q, part in both])

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


def similarity(
    tasks: Sequence[Task], covariance: FloatArray, query_vectors: FloatArray | None
) -> FloatArray:
    """How similar queries are, from 1 for equal ones: (q, q).

    It is the correlation of what their own scores predict, a' k b / sqrt(a' k a b' k b) for the
    weights a and b of their scores, averaged with exp(-|u - v|^2 / 2) for the directions u and v of
    their vectors.
    """
    weights = np.zeros((len(tasks), len(covariance)), np.float32)
    for row, task in zip(weights, tasks, strict=True):
        row[task.at] = task.inverse(covariance) @ task.scores
    products = weights @ covariance @ weights.T
    size = np.sqrt(np.maximum(np.diag(products), 1e-9))
    predicted = products / size / size[:, None]
    if query_vectors is None:
        return predicted
    directions = directions_of(query_vectors, np.float32)
    return (predicted + np.exp(directions @ directions.T - 1)) / 2


def plan_together(method: Method, index: Index, budget: int, seed: int) -> Plan:
    """Make the plan of a method for queries that are searched together: with `kriging`, unless
    `together` is false or the prior is from anchors, they teach each other."""
    plan = planned(method, index, budget, seed)
    if not isinstance(method, Kriging) or not (method.together and method.use_anchors):
        return plan
    prior = method.prior(index)
    if not index.vectors or (prior is not None and not prior.from_searches):
        return plan
    after = tuple(c for s in SHARES if FEWEST_SCORES <= (c := math.ceil(s * budget)) < budget)
    vectors = index.store(default_vectors(index, method.vectors)).values
    if not after or vectors is None:
        return plan
    first = plan.predictor
    assert isinstance(first, GaussianProcess)
    columns, rank = slice(1, 1 + len(first.columns)), first.model.kernel.rank

    def learn(state: Posteriors, observed: Observed) -> Column | None:
        """Predict the scores of each query from the others'; None if too few have scores."""
        known = np.flatnonzero(observed.counts >= FEWEST_SCORES)
        if len(known) < FEWEST_QUERIES or observed.counts[known].sum() < PER_ITEM * index.n:
            return None
        items = [observed.items[q, :count] for q, count in enumerate(observed.counts)]
        learned = []
        for group in groups(np.random.default_rng(seed).permutation(known), items):
            scored = []
            for q in group.tolist():
                cheap = first.basis(state, q, items[q], first.points(items[q]))[:, columns]
                scored.append(Known(items[q], observed.scores[q, : len(items[q])], cheap))
            own = None if state.own is None else state.own[group, rank:]
            found = predict_each_other(scored, vectors, own)
            weights = np.zeros((len(items), len(found.points)), np.float32)
            weights[group] = found.weights
            learned.append(found._replace(weights=weights))
        points = np.concatenate([each.points for each in learned])
        weights = np.concatenate([each.weights for each in learned], axis=1)
        return _column(Shared(points, weights), vectors, rank)

    return replace(plan, predictor=Together(first=first, learn=learn, after=after))


def _column(shared: Shared, vectors: FloatArray, rank: int = 0) -> Column:
    """Make a column of the trends with the predictions for each query. In items' points, vectors
    follow `rank` factors."""

    def linear(queries: Queries) -> Affine:
        directions = np.pad(shared.directions, ((0, 0), (rank, 0)))
        return Affine(directions, np.zeros(len(queries), np.float32))

    def given(queries: Queries) -> Values:
        return lambda q, items, points: shared.at(points[:, rank:], slice(q, q + 1))[0]

    return Column(
        of_all=lambda queries: shared.at(vectors),
        linear=linear,
        given=given,
        best=lambda queries: shared.at(shared.points).max(axis=1),
    )


class Taught(NamedTuple):
    """The current process and its state, and how often queries could have learned."""

    process: GaussianProcess
    state: Posteriors
    lessons: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Together(Predictor[Taught]):
    """Predicts with `first`. When a query reaches one of the numbers of scores `after`, `learn`
    makes a column from all queries' scores, which is added to the trends."""

    first: GaussianProcess
    learn: Callable[[Posteriors, Observed], Column | None]
    after: tuple[int, ...]

    def start(self, queries: Queries) -> Taught:
        return Taught(self.first, self.first.start(queries), 0)

    def update(self, state: Taught, observed: Observed) -> Taught:
        process, inner, lessons = state
        due = sum(int(observed.counts.max(initial=0)) >= count for count in self.after)
        if due > lessons and (column := self.learn(inner, observed)) is not None:
            process, inner = self.first.with_column(inner, column)
        return Taught(process, process.update(inner, observed), due)

    def predict(self, state: Taught, items: IntArray | None = None) -> Prediction:
        return state.process.predict(state.state, items)

    def acquisition(self, prediction: Prediction) -> FloatArray:
        return self.first.acquisition(prediction)

    def taught(self, state: Taught) -> int:
        return 0 if state.process is self.first else len(state.state.queries)

    def joining(
        self, state: Taught, count: int, exclude: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        return state.process.joining(state.state, count, exclude, allowed)
