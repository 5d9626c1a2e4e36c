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
from functools import cached_property, partial
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from crossknn.errors import SpecError
from crossknn.index.base import Index
from crossknn.linalg import top_k
from crossknn.methods.base import HYBRID, Method, equal_rounds, positive
from crossknn.methods.posterior import (
    Directional,
    Linear,
    LowRankPlusResidual,
    Model,
    Posterior,
    Whitened,
)
from crossknn.retrievers.base import Retriever, stages_of
from crossknn.retrievers.specs import default_vectors, need_query_vectors, open_retriever
from crossknn.search.plan import Plan, Prediction, Predictor
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Observed, Queries

Mean: TypeAlias = Literal["none", "average", "constant", "first"]

BLOCK = 8_192
"""Items predicted together: bounds what is computed at once to b x BLOCK covariances."""

KEPT = 2**31
"""Bytes of covariances, of all queries, that are kept from one round to the next."""


class Kept(NamedTuple):
    """Of a query: all items, or a `pool` (c,), its `points` (c, p) held while there is room."""

    pool: IntArray | None
    points: FloatArray | None
    others: Whitened


@dataclass(frozen=True, slots=True)
class Posteriors:
    """State of a Gaussian process over m queries.

    `basis` (f, m, n) holds the basis functions, `own` (m, d) the queries' vectors where they count
    as observed. A posterior is None while a query's scores say too little. `kept` is no part of the
    value: of each query the items last predicted, for the next prediction to extend.
    """

    queries: Queries
    basis: FloatArray
    own: FloatArray | None
    rows: tuple[Posterior | None, ...]
    kept: dict[int, Kept]


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianProcess(Predictor[Posteriors]):
    """Predicts by the posterior of each query, and chooses by mean + `beta` * std.

    An item's point is its rows of `arrays`, (n, d) each, side by side. The basis functions are 1
    (with `intercept`), the scores of each of `stages`, and `item_mean` (n,). With `own`, a query's
    own vector counts as an item with the best score known and the best basis functions of all
    (BAGEL, ReBOL). Until a query has scores that differ and, without a prior, more of them than
    basis functions, `retriever` ranks.

    Of b items scored in all, a query costs b * n * (p + b / 2) multiplications to predict all items
    in all rounds, and b * n * 4 bytes between rounds. Where these would be more than `KEPT`, each
    round computes all of it again.
    """

    arrays: Sequence[FloatArray]
    model: Model
    retriever: Retriever
    beta: float
    intercept: bool = True
    stages: Sequence[Retriever] = ()
    item_mean: FloatArray | None = None
    own: Callable[[Queries], FloatArray] | None = None

    has_std = True

    @property
    def n(self) -> int:
        """Number of items."""
        return len(self.arrays[0])

    def points(self, items: IntArray | slice) -> FloatArray:
        """Points (c, p) of items (c,), in single precision or better."""
        single = [a[items].astype(np.promote_types(a.dtype, "f4"), copy=False) for a in self.arrays]
        return np.hstack(single) if len(single) > 1 else single[0]

    def start(self, queries: Queries) -> Posteriors:
        shape = len(queries), self.n
        basis = [np.broadcast_to(np.float32(1), shape)] * self.intercept
        basis += [stage.scores(queries) for stage in self.stages]
        if self.item_mean is not None:
            basis.append(np.broadcast_to(self.item_mean, shape))
        return Posteriors(
            queries,
            np.stack(basis) if basis else np.empty((0, *shape), np.float32),
            None if self.own is None else self.own(queries),
            (None,) * len(queries),
            {},
        )

    def update(self, state: Posteriors, observed: Observed) -> Posteriors:
        rows = list(state.rows)
        for row, items, scores in observed.rows():
            rows[row] = self._posterior(state, row, items, scores.astype(np.float64))
        return replace(state, rows=tuple(rows))

    def _posterior(
        self, state: Posteriors, row: int, items: IntArray, scores: FloatArray
    ) -> Posterior | None:
        points, basis = self.points(items), state.basis[:, row, items].T
        few = self.model.prior is None and len(scores) <= basis.shape[1]
        if few or np.ptp(scores) == 0:
            return None
        if state.own is not None:
            points = np.vstack([state.own[row].astype(points.dtype), points])
            basis = np.vstack([state.basis[:, row].max(axis=1), basis])
            scores = np.append(scores.max(), scores)
        return self.model.posterior(points, scores, basis, state.rows[row])

    def predict(self, state: Posteriors, items: IntArray | None = None) -> Prediction:
        m, count = (len(state.rows), self.n) if items is None else items.shape
        mean, std = np.empty((m, count), np.float32), np.full((m, count), np.nan, np.float32)
        if None in state.rows:
            scores = self.retriever.scores(state.queries)
            mean[:] = scores if items is None else np.take_along_axis(scores, items, axis=1)
        known = {row: posterior for row, posterior in enumerate(state.rows) if posterior}
        scored = sum(len(posterior.points) for posterior in known.values())
        keep = 4 * scored * count <= KEPT
        if keep:
            self._extend(state, known, items)
        for row, posterior in known.items():
            pool = np.arange(self.n) if items is None else items[row]
            basis = state.basis[:, row] if items is None else state.basis[:, row, pool]
            if keep:
                mean[row], std[row] = posterior.at(state.kept[row].others, basis.T)
                continue
            for part in _blocks(count):
                points = self.points(pool[part])
                others = Whitened.empty(self.model.kernel.variance(points))
                others = others.extended(posterior, self.model.kernel(posterior.points, points))
                mean[row, part], std[row, part] = posterior.at(others, basis[:, part].T)
        return Prediction(mean, std)

    def acquisition(self, prediction: Prediction) -> FloatArray:
        if self.beta == 0 or prediction.std is None:
            return prediction.mean
        return prediction.mean + self.beta * np.nan_to_num(prediction.std)

    def _extend(
        self, state: Posteriors, known: dict[int, Posterior], items: IntArray | None
    ) -> None:
        """Take what was scored since the last prediction into what is kept of each query."""
        for row, posterior in known.items():
            pool, before = None if items is None else items[row], state.kept.get(row)
            same = before is not None and _same(before.pool, pool)
            if before is None or not same or not before.others.begins(posterior):
                state.kept[row] = self._nothing(pool, len(state.rows))
        kept = [state.kept[row] for row in known]
        new = [p.points[len(k.others.points) :] for p, k in zip(known.values(), kept, strict=True)]
        found = self._with_all(new) if items is None else map(self._with_pool, new, kept)
        for (row, posterior), before, covariances in zip(known.items(), kept, found, strict=True):
            state.kept[row] = before._replace(others=before.others.extended(posterior, covariances))

    def _nothing(self, pool: IntArray | None, m: int) -> Kept:
        """Before any covariance is known, of one of m queries."""
        if pool is None:
            return Kept(None, None, Whitened.empty(self._variance))
        points = self.points(pool)
        held = points if m * points.nbytes <= KEPT else None
        return Kept(pool, held, Whitened.empty(self.model.kernel.variance(points)))

    def _with_pool(self, new: FloatArray, kept: Kept) -> FloatArray:
        """Covariances (b', c) of new points (b', p) with the items of a pool."""
        assert kept.pool is not None
        return self.model.kernel(
            new, self.points(kept.pool) if kept.points is None else kept.points
        )

    def _with_all(self, new: list[FloatArray]) -> list[FloatArray]:
        """Covariances (b', n) of each query's new points (b', p) with all items.

        All queries share one pass over all items: that many rows more a product are nearly free.
        """
        if not new:
            return []
        joined = np.vstack(new)
        found = np.empty((len(joined), self.n), joined.dtype)
        for part in _blocks(self.n) if len(joined) else ():
            found[:, part] = self.model.kernel(joined, self.points(part))
        return np.split(found, np.cumsum([len(points) for points in new])[:-1])

    @cached_property
    def _variance(self) -> FloatArray:
        """Of every item before any score is known, the same for all queries: (n,)."""
        parts = [self.model.kernel.variance(self.points(part)) for part in _blocks(self.n)]
        return np.concatenate(parts)

    def shortlist(
        self, state: Posteriors, pool: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        """`pool`; where the kernel has a linear term, half of it, and half what that ranks first.

        The linear part of the predictions costs n p multiplications once, so that a million items
        stay searchable.
        """
        kernel = self.model.kernel
        if not isinstance(kernel, LowRankPlusResidual):
            return pool
        known = {row: posterior for row, posterior in enumerate(state.rows) if posterior}
        linear = np.full((len(state.rows), self.n), -np.inf, np.float32)
        terms = []
        for row, posterior in known.items():
            linear[row] = posterior.weights @ state.basis[:, row]
            terms.append(kernel.linear_term(posterior.pull, posterior.points))
        for part in _blocks(self.n) if terms else ():
            linear[list(known), part] += kernel.linear_scores(np.stack(terms), self.points(part))
        if allowed is not None:
            linear[:, ~allowed] = -np.inf
        size, rows = pool.shape[1], []
        for row, best in enumerate(linear):
            kept = pool[row][pool[row] != NO_ITEM]
            if row in known:
                kept = kept[: size - size // 2]
                best[kept] = -np.inf
                kept = np.append(kept, top_k(best[None], size - len(kept)).items[0])
            rows.append((kept, np.zeros(len(kept), np.float32)))
        return Candidates.from_rows(rows).items


def _same(left: IntArray | None, right: IntArray | None) -> bool:
    return left is right if left is None or right is None else np.array_equal(left, right)


def _blocks(n: int) -> Iterator[slice]:
    return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))


@dataclass(frozen=True, kw_only=True)
class GP(Method):
    """Score what has the highest predicted mean plus `beta` std.

    Args:
        scale: of squared distances in the kernels `rbf` and `matern`.
        noise: variance that vectors cannot explain, as a share of what they can.
        mean: `none`; `average`, that of the scores known so far; `constant`, by generalised least
            squares (ordinary kriging); `first`, linear in the scores of the retriever, or of each
            stage of a fusion (universal kriging).
        query: count the query's vector as an item with the best score known.
        shortlist: restrict a query to so many items of the retriever.
    """

    name = "gp"
    retriever: Spec = HYBRID
    rounds: int = 10
    kernel: Literal["rbf", "matern", "linear"] = "rbf"
    scale: float = 1.0
    noise: float = 0.05
    mean: Mean = "constant"
    beta: float = 1.0
    query: bool = False
    vectors: str = "auto"
    shortlist: int | None = None

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, rounds=self.rounds, shortlist=self.shortlist)
        if self.scale <= 0 or self.noise < 0 or self.beta < 0:
            raise SpecError(f"{self}: scale must be above 0, noise and beta 0 or more")
        vectors = default_vectors(index, self.vectors)
        retriever = open_retriever(index, self.retriever, seed)
        own = None
        if self.query:
            own = partial(index.query_vectors, name=need_query_vectors(index, vectors, str(self)))
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
            intercept=self.mean in ("constant", "first"),
            stages=stages_of(retriever) if self.mean == "first" else (),
            own=own,
        )
        return Plan(
            retriever=retriever,
            predictor=predictor,
            batches=equal_rounds(budget, self.rounds),
            shortlist=self.shortlist,
        )
