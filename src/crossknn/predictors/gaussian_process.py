"""A Gaussian process on each query's item scores, by rounds (see `posterior`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np

from crossknn.predictors.kernels import Kernel
from crossknn.predictors.posterior import Posterior, Trend, Whitened
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.fusion import stages_of
from crossknn.search.predictor import Prediction, Predictor
from crossknn.types import FloatArray, IntArray, Observed, Queries

Mean: TypeAlias = Literal["none", "average", "constant", "first"]

BLOCK = 8_192
"""Items predicted together where nothing is kept: bounds the memory to b x BLOCK covariances."""

KEPT = 2**31
"""Bytes of covariances, of all queries, that are kept from one round to the next."""


@dataclass(frozen=True, slots=True)
class Posteriors:
    """State of a Gaussian process over m queries.

    `columns` (f, m, n) are what the means are linear in; `own` (m, d) the queries' vectors where
    they count as observed. A posterior is None while a query's scores say too little. `kept` is no
    part of the value: what the last prediction of a query computed, for the next one to extend.
    """

    queries: Queries
    columns: FloatArray
    own: FloatArray | None
    rows: tuple[Posterior | None, ...]
    kept: dict[int, Kept]


@dataclass(frozen=True, slots=True)
class Kept:
    """What is known of all items, or of those of a `pool` (c,), whose vectors are `points` (c, d)
    where there is room for them."""

    pool: IntArray | None
    points: FloatArray | None
    known: Whitened

    def of(self, pool: IntArray | None) -> bool:
        """Whether it is of these items."""
        if self.pool is None or pool is None:
            return self.pool is pool
        return np.array_equal(self.pool, pool)


class GaussianProcess(Predictor[Posteriors]):
    """Predicts by the posterior of each query, and chooses by mean + `beta` * deviation.

    `items` (n, d), float32 or float16. `mean`: `none`; `average`, that of the scores known so far;
    `constant`, by generalised least squares (ordinary kriging); `retriever`, linear in the scores of
    the retriever, or of each stage of a fusion (universal kriging). With `own`, a query's own
    vector counts as an item with the best score known and the best retriever scores of all
    (BAGEL, ReBOL). `prior` is what is known of all queries' trends. Until a query has scores that
    differ and, without a prior, more of them than `columns`, `retriever` ranks.

    Of b items scored in all, a query costs b * n * (d + b / 2) multiplications to predict all
    items in all rounds, and b * n * 4 bytes between rounds. Where these would be more than `KEPT`,
    each round computes all of it again, without `b / 2` where no deviations are needed.
    """

    has_std = True
    likely = False
    """Whether deviations are those of the most likely amplitude (see `Posterior.given`)."""

    def __init__(
        self,
        items: FloatArray,
        kernel: Kernel,
        retriever: Retriever,
        *,
        mean: Mean,
        noise: float,
        beta: float,
        own: Callable[[Queries], FloatArray] | None = None,
        prior: Trend | None = None,
    ) -> None:
        self.items, self.kernel, self.retriever, self.own = items, kernel, retriever, own
        self.prior = prior
        self.mean, self.noise, self.beta = mean, noise, beta
        self.precision = np.promote_types(items.dtype, np.float32)

    def start(self, queries: Queries) -> Posteriors:
        return Posteriors(
            queries=queries,
            columns=self.columns(queries),
            own=None if self.own is None else self.own(queries),
            rows=(None,) * len(queries),
            kept={},
        )

    def columns(self, queries: Queries) -> FloatArray:
        """What each query's mean is linear in, at all items: (f, m, n)."""
        ones = np.broadcast_to(np.float32(1), (len(queries), len(self.items)))
        if self.mean == "first":
            return np.stack([ones, *(stage.scores(queries) for stage in stages_of(self.retriever))])
        return ones[None] if self.mean == "constant" else ones[None][:0]

    def update(self, state: Posteriors, observed: Observed) -> Posteriors:
        rows = list(state.rows)
        for row, items, scores in observed.rows():
            rows[row] = self.fit(state, row, items, scores.astype(np.float64))
        return replace(state, rows=tuple(rows))

    def fit(
        self, state: Posteriors, row: int, items: IntArray, scores: FloatArray
    ) -> Posterior | None:
        """Query `row`'s posterior, from all its items (b,) and exact scores (b,)."""
        points, drift = self.vectors(items), state.columns[:, row, items].T
        few = self.prior is None and len(scores) <= drift.shape[1]
        if few or np.ptp(scores) == 0:
            return None
        if state.own is not None:
            points = np.vstack([state.own[row].astype(points.dtype), points])
            drift = np.vstack([state.columns[:, row].max(axis=1), drift])
            scores = np.append(scores.max(), scores)
        return Posterior.given(
            self.kernel,
            points,
            scores,
            drift,
            noise=self.noise,
            centre=self.mean != "none",
            likely=self.likely,
            prior=self.prior,
            before=state.rows[row],
        )

    def vectors(self, items: IntArray | slice) -> FloatArray:
        """The vectors (c, d) of items (c,), in single precision or better."""
        return self.items[items].astype(self.precision, copy=False)

    def predict(self, state: Posteriors, items: IntArray | None = None) -> Prediction:
        return self._predicted(state, items, spread=self.beta != 0)

    def posterior(self, state: Posteriors, items: IntArray | None = None) -> Prediction:
        return self._predicted(state, items, spread=True)

    def _predicted(self, state: Posteriors, items: IntArray | None, *, spread: bool) -> Prediction:
        m, count = (len(state.rows), len(self.items)) if items is None else items.shape
        mean = np.empty((m, count), np.float32)
        kept = self._kept(state, count)
        std = np.full((m, count), np.nan, np.float32) if spread or kept else None
        if None in state.rows:
            cheap = self.retriever.scores(state.queries)
            mean[:] = cheap if items is None else np.take_along_axis(cheap, items, axis=1)
        if kept:
            self._extend(state, items)
        for row, posterior in enumerate(state.rows):
            if posterior is None:
                continue
            own = None if items is None else items[row]
            if kept:
                drift = state.columns[:, row, slice(None) if own is None else own].T
                mean[row], deviation = posterior.over(state.kept[row].known, drift)
                if std is not None:
                    std[row] = deviation
                continue
            state.kept.pop(row, None)
            for start in range(0, count, BLOCK):
                part = slice(start, min(start + BLOCK, count))
                chosen = part if own is None else own[part]
                points, drift = self.vectors(chosen), state.columns[:, row, chosen].T
                mean[row, part], off = posterior.at(points, drift, spread=std is not None)
                if std is not None:
                    std[row, part] = off
        return Prediction(mean, std)

    def _kept(self, state: Posteriors, count: int) -> bool:
        """Whether the covariances with `count` items are few enough to be kept."""
        scored = sum(len(row.points) for row in state.rows if row is not None)
        return scored * count * self.precision.itemsize <= KEPT

    def _extend(self, state: Posteriors, items: IntArray | None) -> None:
        """Take what was scored since into what is kept of each query."""
        rows = {row: posterior for row, posterior in enumerate(state.rows) if posterior is not None}
        for row, posterior in rows.items():
            pool, before = None if items is None else items[row], state.kept.get(row)
            if before is None or not before.of(pool) or not before.known.begins(posterior):
                state.kept[row] = self._nothing(posterior, pool, len(state.rows))
        if not rows:
            return
        kept = [state.kept[row] for row in rows]
        fresh = [p.points[k.known.taken :] for p, k in zip(rows.values(), kept, strict=True)]
        new = self._with_all(fresh) if items is None else map(self._with_pool, fresh, kept)
        for (row, posterior), before, covariances in zip(rows.items(), kept, new, strict=True):
            known = before.known.extended(posterior, covariances)
            state.kept[row] = replace(before, known=known)

    def _nothing(self, posterior: Posterior, pool: IntArray | None, m: int) -> Kept:
        """Before any covariance is known, of one of m queries."""
        if pool is not None:
            points = self.vectors(pool)
            known = Whitened.nothing(posterior, posterior.kernel.variance(points))
            return Kept(pool, points if m * points.nbytes <= KEPT else None, known)
        return Kept(None, None, Whitened.nothing(posterior, self._variance))

    @cached_property
    def _variance(self) -> FloatArray:
        """Of every item before any score is known, the same for all queries: (n,)."""
        parts = (self.kernel.variance(self.vectors(part)) for part in self._blocks())
        return np.concatenate(list(parts))

    def _with_pool(self, points: FloatArray, kept: Kept) -> FloatArray:
        """Covariances of scored points (b, d) with a pool: (b, c)."""
        if kept.points is not None:
            return self.kernel(points, kept.points)
        assert kept.pool is not None
        return self.kernel(points, self.vectors(kept.pool))

    def _with_all(self, points: list[FloatArray]) -> list[FloatArray]:
        """Covariances of scored points (b, d) with all items, (b, n), of each query.

        All queries share one pass over the items: that many rows more a product are nearly free.
        """
        joined = np.vstack(points)
        found = np.empty((len(joined), len(self.items)), self.precision)
        for part in self._blocks() if len(joined) else ():
            found[:, part] = self.kernel(joined, self.vectors(part))
        return np.split(found, np.cumsum([len(own) for own in points])[:-1])

    def _blocks(self) -> Iterator[slice]:
        """All items, in blocks."""
        n = len(self.items)
        return (slice(start, min(start + BLOCK, n)) for start in range(0, n, BLOCK))

    def acquisition(self, prediction: Prediction) -> FloatArray:
        if prediction.std is None:
            return prediction.mean
        return prediction.mean + self.beta * np.nan_to_num(prediction.std)
