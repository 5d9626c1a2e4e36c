"""Search many queries together: between rounds, kriging learns from all their scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from crossknn.fitting.multitask import (
    FEWEST_QUERIES,
    FEWEST_SCORES,
    Known,
    Shared,
    groups,
    predict_each_other,
)
from crossknn.index.base import Index
from crossknn.methods.base import Method, planned
from crossknn.methods.gp import GaussianProcess, Posteriors
from crossknn.methods.kriging import Kriging
from crossknn.methods.plan import Plan, Prediction, Predictor
from crossknn.methods.prior import Affine, Column, Values
from crossknn.retrievers.specs import default_vectors
from crossknn.types import BoolArray, FloatArray, IntArray, Observed, Queries

SHARES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of the budget after which queries learn from each other. If they do so earlier, they find
fewer of their best ten items."""

PER_ITEM = 0.25
"""Minimum number of scores per item of the index. With fewer, one set lost three points."""


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
