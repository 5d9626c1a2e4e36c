"""A Gaussian process on a query's item scores (Rasmussen and Williams 2006, 2.2 and 2.7).

    score(x) = offset + drift(x) . trend + residual(x),   residual ~ GP(0, amplitude * kernel)

In the words of geostatistics: kriging; simple, ordinary or universal by what the drift is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.first.base import FirstStage
from crossknn.first.fusion import stages_of
from crossknn.linalg import solve_scaled
from crossknn.predictors.base import Prediction, Predictor
from crossknn.predictors.kernels import Kernel
from crossknn.types import FloatArray, IntArray, Observed, Queries

Mean: TypeAlias = Literal["none", "average", "constant", "first"]

FLOOR = 1e-5
"""The least noise, as a share of the variance: less would drown in single precision."""

BELIEF = 10
"""Scores that the kernel's own units are worth where it has a prior: it was fitted, not assumed."""

BLOCK = 8_192
"""Items predicted together where nothing is kept: bounds the memory to b x BLOCK covariances."""

KEPT = 2**31
"""Bytes of covariances, of all queries, that are kept from one round to the next."""


@dataclass(frozen=True, slots=True)
class Trend:
    """What is known of a query's trend before its scores: a Gaussian, `mean` (f,), `precision`
    (f, f) in units of the kernel; nothing, where that is 0."""

    mean: FloatArray
    precision: FloatArray


@dataclass(frozen=True, slots=True)
class Posterior:
    """What b exact scores of a query say about the score at any point.

    `points` (b, d); `factor` (b, b) is the Cholesky factor of their covariance and noise, `whiten`
    its inverse, both in units of `amplitude`; `residual` (b,) the whitened scores less the mean;
    `trend` (f,) the weights of the drift; `spread` the kernel's unit.
    """

    kernel: Kernel
    points: FloatArray
    factor: FloatArray
    whiten: FloatArray
    residual: FloatArray
    offset: float
    trend: FloatArray
    amplitude: float
    spread: float

    @classmethod
    def given(
        cls,
        kernel: Kernel,
        points: FloatArray,
        scores: FloatArray,
        drift: FloatArray,
        *,
        noise: float,
        centre: bool = True,
        likely: bool = False,
        prior: Trend | None = None,
        before: Posterior | None = None,
    ) -> Posterior:
        """Condition on `scores` (b,) at `points` (b, d) with `drift` (b, f).

        `noise` is the variance of what no kernel explains, as a share of the kernel's unit at the
        first points. With `centre` the mean of the scores is taken off first (and added to what is
        predicted), so that fewer scores than columns still give the same trend whatever is added to
        all scores. The trend is fitted by generalised least squares, with its `prior` if there is
        one. The amplitude is the residuals' mean square over the unit; or, if it is to be `likely`,
        that of the whitened residuals over what freedom the trend leaves, or, with a prior, shrunk
        to the kernel's own units. What `before` knew of the first of these points is extended.
        Raises `InputError` if the covariance is not positive definite.
        """
        exact = points.astype(np.float64)
        if before is not None and not _begins(points, before.points):
            before = None
        spread = kernel.unit(exact) if before is None else before.spread
        factor, whiten = _factor(kernel, exact, max(noise, FLOOR) * spread, before)
        offset = float(scores.mean()) if centre else 0.0
        trend = _trend(whiten @ drift, whiten @ (scores - offset), prior)
        residual = scores - offset - drift @ trend
        white = whiten @ residual
        amplitude = np.square(residual).mean() / spread
        if likely and prior is None:
            amplitude = white @ white / max(len(scores) - drift.shape[1], 1)
        elif likely:
            amplitude = (BELIEF + white @ white) / (BELIEF + len(scores))
        return cls(
            kernel=kernel,
            points=points,
            factor=factor,
            whiten=whiten,
            residual=white,
            offset=offset,
            trend=trend,
            amplitude=float(amplitude),
            spread=spread,
        )

    @property
    def weights(self) -> FloatArray:
        """Of the scored points' covariances in the mean: (b,)."""
        return (self.whiten.T @ self.residual).astype(self.points.dtype)

    def at(
        self, points: FloatArray, drift: FloatArray, *, spread: bool = True
    ) -> tuple[FloatArray, FloatArray | None]:
        """Mean and deviation (c,) of the scores at `points` (c, d) with `drift` (c, f).

        The deviation is that of the score without noise, the trend taken as known; it costs most of
        the time and is None without `spread`.
        """
        if spread:
            return self.over(Whitened.of(self, points), drift)
        known = self.weights @ self.kernel(self.points, points)
        return self.offset + drift @ self.trend + known, None

    def over(self, points: Whitened, drift: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same at points whose covariances with the scored ones are there already."""
        mean = self.offset + drift @ self.trend
        start = 0
        for block in points.blocks:
            mean = mean + self.residual[start : start + len(block)].astype(block.dtype) @ block
            start += len(block)
        left = np.maximum(points.variance - points.known, 0)
        return mean, np.sqrt(self.amplitude * left)


@dataclass(frozen=True, slots=True)
class Whitened:
    """Covariances of the b scored points of a posterior with c others, whitened.

    `blocks` are (b, c) in rows, one block a round; `known` (c,) is the sum of their squares,
    `variance` (c,) what there was to know.
    """

    posterior: Posterior
    blocks: tuple[FloatArray, ...]
    known: FloatArray
    variance: FloatArray

    @classmethod
    def of(
        cls, posterior: Posterior, points: FloatArray, before: Whitened | None = None
    ) -> Whitened:
        """Those of `points` (c, d); `before`, of the same points, is extended if it can be."""
        if before is None or not _begins(posterior.factor, before.posterior.factor):
            variance = posterior.kernel.variance(points)
            before = cls(posterior, (), np.zeros_like(variance), variance)
            start = 0
        else:
            start = len(before.posterior.points)
        if start == len(posterior.points):
            return replace(before, posterior=posterior)
        blocks = before.blocks
        new = posterior.kernel(posterior.points[start:], points)
        seen = 0
        for block in blocks:
            columns = slice(seen, seen + len(block))
            new -= posterior.factor[start:, columns].astype(new.dtype) @ block
            seen += len(block)
        new = posterior.whiten[start:, start:].astype(new.dtype) @ new
        known = before.known + np.einsum("bc,bc->c", new, new)
        return cls(posterior, (*blocks, new), known, before.variance)


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
    kept: dict[int, tuple[IntArray | None, Whitened]]


class GaussianProcess(Predictor[Posteriors]):
    """Predicts by the posterior of each query, and chooses by mean + `beta` * deviation.

    `items` (n, d), float32 or float16. `mean`: `none`; `average`, that of the scores known so far;
    `constant`, by generalised least squares (ordinary kriging); `first`, linear in the scores of
    the first stage, or of each stage of a fusion (universal kriging). With `own`, a query's own
    vector counts as an item with the best score known and the best first-stage scores of all
    (BAGEL, ReBOL). `prior` is what is known of all queries' trends. Until a query has scores that
    differ and, without a prior, more of them than `columns`, `first` ranks.

    Of b items scored in all, a query costs b * n * (d + b / 2) multiplications to predict all
    items in all rounds, and b * n * 4 bytes between rounds. Where these would be more than `KEPT`,
    each round computes all of it again, without `b / 2` if `beta` is 0.
    """

    likely = False
    """Whether deviations are those of the most likely amplitude (see `Posterior.given`)."""

    def __init__(
        self,
        items: FloatArray,
        kernel: Kernel,
        first: FirstStage,
        *,
        mean: Mean,
        noise: float,
        beta: float,
        own: Callable[[Queries], FloatArray] | None = None,
        prior: Trend | None = None,
    ) -> None:
        self.items, self.kernel, self.first, self.own = items, kernel, first, own
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
            return np.stack([ones, *(stage.scores(queries) for stage in stages_of(self.first))])
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
        m, count = (len(state.rows), len(self.items)) if items is None else items.shape
        mean = np.empty((m, count), np.float32)
        kept = self._kept(state, count)
        std = np.full((m, count), np.nan, np.float32) if self.beta or kept else None
        if None in state.rows:
            cheap = self.first.scores(state.queries)
            mean[:] = cheap if items is None else np.take_along_axis(cheap, items, axis=1)
        for row, posterior in enumerate(state.rows):
            if posterior is None:
                continue
            own = None if items is None else items[row]
            if kept:
                known = self._covariances(state, row, posterior, own)
                mean[row], deviation = posterior.over(*known)
                if std is not None:
                    std[row] = deviation
                continue
            state.kept.pop(row, None)
            for start in range(0, count, BLOCK):
                part = slice(start, min(start + BLOCK, count))
                chosen = part if own is None else own[part]
                points, drift = self.vectors(chosen), state.columns[:, row, chosen].T
                mean[row, part], spread = posterior.at(points, drift, spread=std is not None)
                if std is not None:
                    std[row, part] = spread
        return Prediction(mean, std)

    def _kept(self, state: Posteriors, count: int) -> bool:
        """Whether the covariances with `count` items are few enough to be kept."""
        scored = sum(len(row.points) for row in state.rows if row is not None)
        return scored * count * self.precision.itemsize <= KEPT

    def _covariances(
        self, state: Posteriors, row: int, posterior: Posterior, items: IntArray | None
    ) -> tuple[Whitened, FloatArray]:
        """Of the scored items with `items` (c,), or all; and the drift (c, f) there."""
        chosen = slice(None) if items is None else items
        asked, before = state.kept.get(row, (None, None))
        same = asked is items or (
            asked is not None and items is not None and np.array_equal(asked, items)
        )
        found = Whitened.of(posterior, self.vectors(chosen), before if same else None)
        state.kept[row] = items, found
        return found, state.columns[:, row, chosen].T

    def acquisition(self, prediction: Prediction) -> FloatArray:
        if prediction.std is None:
            return prediction.mean
        return prediction.mean + self.beta * np.nan_to_num(prediction.std)


def _trend(drift: FloatArray, scores: FloatArray, prior: Trend | None) -> FloatArray:
    """Weights (f,) of a whitened drift (b, f) that give whitened scores (b,)."""
    if prior is None:
        return np.linalg.lstsq(drift, scores, rcond=1e-6)[0]
    known = drift.T @ scores + prior.precision @ prior.mean
    return solve_scaled(drift.T @ drift + prior.precision, known)


def _begins(rows: FloatArray, first: FloatArray) -> bool:
    """Whether the first of these rows are those."""
    part = rows[: len(first), : first.shape[1]]
    return np.array_equal(part, first)


def _factor(
    kernel: Kernel, points: FloatArray, noise: float, before: Posterior | None
) -> tuple[FloatArray, FloatArray]:
    """Cholesky factor (b, b) of the covariance of `points` (b, d) with `noise`, and its inverse."""
    b, old = len(points), 0 if before is None else len(before.points)
    factor, whiten = np.zeros((b, b)), np.zeros((b, b))
    new = points[old:]
    covariance = kernel(new, new)
    covariance[np.diag_indices_from(covariance)] += noise
    if before is not None:
        factor[:old, :old], whiten[:old, :old] = before.factor, before.whiten
        factor[old:, :old] = kernel(new, points[:old]) @ before.whiten.T
        covariance -= factor[old:, :old] @ factor[old:, :old].T
    factor[old:, old:] = _cholesky(covariance, b)
    whiten[old:, old:] = np.linalg.inv(factor[old:, old:])
    whiten[old:, :old] = -whiten[old:, old:] @ factor[old:, :old] @ whiten[:old, :old]
    return factor, whiten


def _cholesky(covariance: FloatArray, b: int) -> FloatArray:
    if np.isfinite(covariance).all():
        with suppress(np.linalg.LinAlgError):
            return np.linalg.cholesky(covariance)
    raise InputError(
        f"the covariance of {b} scored items is not positive definite: their vectors are not all "
        "numbers, or the kernel is none"
    )
