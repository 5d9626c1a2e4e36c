"""Search many queries together: between rounds, kriging's prior is fitted to all their scores."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from crossknn.fitting.kriging import FEWEST_SCORES, prior_of_pairs
from crossknn.index.base import Index
from crossknn.methods.base import Method, planned
from crossknn.methods.gp import GaussianProcess, Posteriors
from crossknn.methods.kriging import Kriging
from crossknn.methods.plan import Plan, Prediction, Predictor
from crossknn.methods.prior import trend_retrievers
from crossknn.retrievers.specs import default_vectors
from crossknn.scores.sparse import SparseScores
from crossknn.types import BoolArray, FloatArray, IntArray, Observed, Queries

SHARES = (0.4, 0.6, 0.8)
"""Shares of the budget after which the prior is fitted. Earlier fits know too little."""

FEWEST_QUERIES, MOST_QUERIES = 10, 300
"""Minimum and maximum numbers of queries that a fit reads."""

PER_ITEM = 1 / 3
"""Minimum number of scores per item of the index; with 0.2, a batch lost 2 points on one set."""

DIMENSIONS = 128
"""Principal axes of the items' vectors that a fit uses; all 384 take two to four times as long."""


def plan_together(method: Method, index: Index, budget: int, seed: int) -> Plan:
    """Make the plan of a method for queries that are searched together: with `kriging`, unless
    `together` is false or the index has a prior, they teach each other."""
    plan = planned(method, index, budget, seed)
    if not isinstance(method, Kriging) or not (method.together and method.use_anchors):
        return plan
    if method.prior(index) is not None or not index.vectors:
        return plan
    after = tuple(c for s in SHARES if FEWEST_SCORES <= (c := math.ceil(s * budget)) < budget)
    if not after or index.store(default_vectors(index)).values is None:
        return plan
    first, mean = plan.predictor, method.mean or trend_retrievers(index)
    assert isinstance(first, GaussianProcess)

    def learn(began: Posteriors, observed: Observed) -> Predictor[Any] | None:
        """Fit a prior to the scores of all queries, and return its predictor; None if there are too
        few scores."""
        known = np.flatnonzero(observed.counts >= FEWEST_SCORES)
        known = np.sort(np.random.default_rng(seed).permutation(known)[:MOST_QUERIES])
        if len(known) < FEWEST_QUERIES or observed.counts[known].sum() < PER_ITEM * index.n:
            return None
        pairs, cheap = [], []
        for row, q in enumerate(known.tolist()):
            count = observed.counts[q]
            order = np.argsort(observed.items[q, :count])
            items = observed.items[q, order]
            cheap.append(first.basis(began, q, items, first.points(items))[:, 1:])
            pairs.append((np.full(count, row), items, observed.scores[q, order]))
        query, item, score = map(np.concatenate, zip(*pairs, strict=True))
        some = began.queries.take(known)
        scores = SparseScores(some.texts, index.n, query, item, score.astype(np.float32))
        how = [*np.concatenate(cheap).T], some, mean
        prior = prior_of_pairs(index, scores, *how, dimensions=DIMENSIONS)
        return method.plan_with(prior, index, budget, seed).predictor

    return replace(plan, predictor=Together(first=first, learn=learn, after=after))


class Taught(NamedTuple):
    """The first predictor's initial state, the current predictor with its state, and past fits."""

    began: Posteriors
    predictor: Predictor[Any]
    state: Any
    fits: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Together(Predictor[Taught]):
    """Predicts by `first`, and once a query has as many scores as one of `after` by what `learn`
    makes of all queries' scores."""

    first: GaussianProcess
    learn: Callable[[Posteriors, Observed], Predictor[Any] | None]
    after: tuple[int, ...]

    def start(self, queries: Queries) -> Taught:
        began = self.first.start(queries)
        return Taught(began, self.first, began, 0)

    def update(self, state: Taught, observed: Observed) -> Taught:
        due = sum(int(observed.counts.max(initial=0)) >= count for count in self.after)
        if due > state.fits:
            state = state._replace(fits=due)
            if (learned := self.learn(state.began, observed)) is not None:
                state = state._replace(predictor=learned, state=learned.start(state.began.queries))
        return state._replace(state=state.predictor.update(state.state, observed))

    def predict(self, state: Taught, items: IntArray | None = None) -> Prediction:
        return state.predictor.predict(state.state, items)

    def acquisition(self, prediction: Prediction) -> FloatArray:
        return self.first.acquisition(prediction)

    def taught(self, state: Taught) -> int:
        return 0 if state.predictor is self.first else len(state.began.queries)

    def joining(
        self, state: Taught, count: int, exclude: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        return state.predictor.joining(state.state, count, exclude, allowed)
