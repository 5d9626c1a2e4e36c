"""A Gaussian process over item vectors (the idea of BAGEL, arXiv 2604.17906; ReBOL, 2603.20513).

there                           here
first observations              `retriever`, a batch of budget // `rounds`
mean + sqrt(beta) * deviation   mean + `beta` * std
the query as an observation     `query=true`

Axes as in `posterior`, and m queries, n items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Literal, TypeAlias

import numpy as np

from crossknn.errors import SpecError
from crossknn.index.base import Index
from crossknn.linalg import top_k
from crossknn.methods.base import Method, equal_rounds
from crossknn.methods.posterior import (
    Directional,
    Linear,
    LowRankPlusResidual,
    Model,
    Posterior,
    Whitened,
)
from crossknn.retrievers.base import Retriever, stages_of
from crossknn.retrievers.specs import AUTO, default_vectors, need_query_vectors, open_retriever
from crossknn.search.plan import Plan, Prediction, Predictor
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, BoolArray, FloatArray, IntArray, Observed, Queries

BLOCK = 16_384
"""Items predicted together: bounds what is computed at once to b x BLOCK covariances."""

Feature: TypeAlias = Callable[[Queries], FloatArray]
"""Values (m, n) of a basis function at all items, for m queries."""

KEPT = 2**31
"""Bytes of covariances, of all queries, that are kept from one round to the next."""


@dataclass(frozen=True, slots=True)
class Posteriors:
    """State of a Gaussian process over m queries.

    `basis` (f, m, n) holds the basis functions, `own` (m, d) the queries' vectors where they count
    as observed. A query whose scores say too little has no posterior among `known`. `points` of the
    items predicted before, of given ones, are kept for the next rounds.
    """

    queries: Queries
    basis: FloatArray
    own: FloatArray | None
    known: dict[int, Posterior]
    points: dict[int | bytes, FloatArray]


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianProcess(Predictor[Posteriors]):
    """Predicts by the posterior of each query, and chooses by mean + `beta` * std.

    An item's point is its rows of `arrays`, (n, d) each, side by side. The basis functions are 1
    (with `intercept`) and the `features` (m, n) of queries. With `own`, a query's own vector counts
    as an item with the best score known and the best basis functions of all (BAGEL, ReBOL). Until a
    query has scores that differ and, without trends, more of them than basis functions, `retriever`
    ranks.

    Between rounds b * n * 4 bytes of a query with b scores are kept. Where these would be more than
    `KEPT`, each round computes all of it again.
    """

    arrays: Sequence[FloatArray]
    model: Model
    retriever: Retriever
    beta: float
    intercept: bool = True
    features: Sequence[Feature] = ()
    own: Callable[[Queries], FloatArray] | None = None

    has_std = True

    def points(self, items: IntArray | slice) -> FloatArray:
        """Points (c, p) of items (c,), in single precision or better."""
        single = [a[items].astype(np.promote_types(a.dtype, "f4"), copy=False) for a in self.arrays]
        return np.hstack(single) if len(single) > 1 else single[0]

    def start(self, queries: Queries) -> Posteriors:
        shape = len(queries), len(self.arrays[0])
        basis = [np.broadcast_to(np.float32(1), shape)] * self.intercept
        basis += [feature(queries) for feature in self.features]
        known = np.stack(basis) if basis else np.empty((0, *shape), np.float32)
        return Posteriors(queries, known, None if self.own is None else self.own(queries), {}, {})

    def update(self, state: Posteriors, observed: Observed) -> Posteriors:
        known = {}
        for q, items, scores in observed.rows():
            points, basis = self.points(items), state.basis[:, q, items].T
            few = not self.model.trends and len(scores) <= basis.shape[1]
            if few or np.ptp(scores) == 0:
                continue
            exact = scores.astype(np.float64)
            if state.own is not None:
                points = np.vstack([state.own[q].astype(points.dtype), points])
                basis = np.vstack([state.basis[:, q].max(axis=1), basis])
                exact = np.append(exact.max(), exact)
            known[q] = self.model.posterior(points, exact, basis, state.known.get(q))
        return replace(state, known=known)

    def predict(self, state: Posteriors, items: IntArray | None = None) -> Prediction:
        m, count = (len(state.queries), state.basis.shape[2]) if items is None else items.shape
        mean, std = np.empty((m, count), np.float32), np.full((m, count), np.nan, np.float32)
        if len(state.known) < m:
            scores = self.retriever.scores(state.queries)
            mean[:] = scores if items is None else np.take_along_axis(scores, items, axis=1)
        keep = 4 * count * sum(len(each.points) for each in state.known.values()) <= KEPT
        # Of all items, all queries share one pass: so many rows more are nearly free.
        shared = items is None and len(state.known) > 0
        groups = [[*state.known]] if shared else [[q] for q in state.known]
        kernel = self.model.kernel
        for part, queries in product(_blocks(count), groups):
            block = part if items is None else items[queries[0], part]
            key = part.start if items is None else block.tobytes()
            points = state.points[key] if key in state.points else self.points(block)
            if keep and items is not None:
                state.points[key] = points
            known = [state.known[q] for q in queries]
            none = Whitened(kernel.variance(points))
            rows = [each.kept.pop(key, none) for each in known]
            new = [each.points[row.count :] for each, row in zip(known, rows, strict=True)]
            ends = np.cumsum([len(each) for each in new])[:-1]
            found = np.split(kernel(np.vstack(new), points), ends)
            for q, each, row, covariances in zip(queries, known, rows, found, strict=True):
                row = row.extended(each, covariances)
                mean[q, part], std[q, part] = each.at(row, state.basis[:, q, block].T)
                if keep:
                    each.kept[key] = row
        return Prediction(mean, std)

    def acquisition(self, prediction: Prediction) -> FloatArray:
        if self.beta == 0 or prediction.std is None:
            return prediction.mean
        return prediction.mean + self.beta * np.nan_to_num(prediction.std)

    def shortlist(
        self, state: Posteriors, pool: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        """`pool`; or half of it, and half what the kernel's linear term ranks first, if it has one:
        that is computed once, so that a million items stay searchable."""
        kernel = self.model.kernel
        if not isinstance(kernel, LowRankPlusResidual) or not state.known:
            return pool
        known = state.known.items()
        terms = np.stack([kernel.linear_term(each.pull, each.points) for _, each in known])
        trend = np.stack([each.weights @ state.basis[:, q] for q, each in known])
        linear = trend.astype(np.float32)
        for part in _blocks(linear.shape[1]):
            linear[:, part] += kernel.linear_scores(terms, self.points(part))
        if allowed is not None:
            linear[:, ~allowed] = -np.inf
        chosen = pool.copy()
        for q, best in zip(state.known, linear, strict=True):
            kept = pool[q][pool[q] != NO_ITEM][: pool.shape[1] - pool.shape[1] // 2]
            best[kept] = -np.inf
            more = top_k(best[None], pool.shape[1] - len(kept)).items[0]
            chosen[q] = NO_ITEM
            chosen[q, : len(kept) + len(more)] = np.append(kept, more)
        return chosen


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


@dataclass(frozen=True, kw_only=True)
class GP(Method):
    """Score the items with the highest predicted mean plus `beta` standard deviations.

    Args:
        retriever: Picks the first batch. rounds: Number of batches.
        kernel: Covariance of two items by their `vectors`.
        scale: of squared distances in the kernels `rbf` and `matern`.
        noise: variance that vectors cannot explain, as a share of what they can.
        mean: `none`; `average`, that of the scores known so far; `constant`, by generalised least
            squares (ordinary kriging); `retriever`, linear in the retriever's scores, or those of
            each stage of a fusion (universal kriging).
        query: count the query's vector as an item with the best score known; by default where the
            index can make one.
        shortlist: restrict a query to so many items of the retriever.
    """

    name = "gp"
    retriever: Spec = AUTO
    rounds: int = 10
    kernel: Literal["rbf", "matern", "linear"] = "rbf"
    scale: float = 1.0
    noise: float = 0.05
    mean: Literal["none", "average", "constant", "retriever"] = "constant"
    beta: float = 1.0
    query: bool | None = None
    vectors: str = "auto"
    shortlist: int | None = None

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        if self.scale <= 0 or self.noise < 0 or self.beta < 0:
            raise SpecError(f"{self}: scale must be above 0, noise and beta 0 or more")
        vectors = default_vectors(index, self.vectors)
        retriever = open_retriever(index, self.retriever, seed)
        own = None
        if self.query or (self.query is None and index.has_query_vectors(vectors)):
            own = partial(index.query_vectors, name=need_query_vectors(index, vectors, self.name))
        kernel = Directional(self.scale, matern=self.kernel == "matern")
        predictor = GaussianProcess(
            arrays=[index.vectors[vectors]],
            model=Model(
                kernel=Linear() if self.kernel == "linear" else kernel,
                noise=self.noise,
                centre=self.mean != "none",
            ),
            retriever=retriever,
            beta=self.beta,
            intercept=self.mean in ("constant", "retriever"),
            features=[r.scores for r in stages_of(retriever)] if self.mean == "retriever" else (),
            own=own,
        )
        return Plan(
            retriever=retriever,
            predictor=predictor,
            batches=equal_rounds(budget, self.rounds),
            shortlist=self.shortlist,
        )
