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
from crossknn.first.fusion import HybridFirst
from crossknn.predictors.base import Prediction, Predictor
from crossknn.predictors.kernels import Kernel
from crossknn.types import FloatArray, IntArray, Observed, Queries

Mean: TypeAlias = Literal["none", "average", "constant", "first"]

FLOOR = 1e-5
"""The least noise, as a share of the variance: less would drown in single precision."""

BLOCK = 8_192
"""Items predicted together: bounds the memory to b x BLOCK covariances."""


@dataclass(frozen=True, slots=True)
class Posterior:
    """What b exact scores of a query say about the score at any point.

    `points` (b, d); `whiten` (b, b) is the inverse of the Cholesky factor of their covariance and
    noise, both in units of `amplitude`; `weights` (b,) are those of the covariances in the mean;
    `trend` (f,) those of the drift.
    """

    kernel: Kernel
    points: FloatArray
    whiten: FloatArray
    weights: FloatArray
    offset: float
    trend: FloatArray
    amplitude: float

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
    ) -> Posterior:
        """Condition on `scores` (b,) at `points` (b, d) with `drift` (b, f).

        `noise` is the variance of what no kernel explains, as a share of the points' mean variance.
        With `centre` the mean of the scores is taken off first (and added to what is predicted), so
        that fewer scores than columns still give the same trend whatever is added to all scores.
        The trend is fitted by generalised least squares. The amplitude is that of the residuals:
        their mean square over the points' mean variance. Raises `InputError` if the covariance is
        not positive definite.
        """
        exact = points.astype(np.float64)
        covariance = kernel(exact, exact)
        spread = float(kernel.variance(exact).mean()) or 1.0
        covariance[np.diag_indices_from(covariance)] += max(noise, FLOOR) * spread
        whiten = _whitening(covariance)
        offset = float(scores.mean()) if centre else 0.0
        trend, *_ = np.linalg.lstsq(whiten @ drift, whiten @ (scores - offset), rcond=1e-6)
        residual = scores - offset - drift @ trend
        return cls(
            kernel=kernel,
            points=points,
            whiten=whiten.astype(points.dtype),
            weights=(whiten.T @ (whiten @ residual)).astype(points.dtype),
            offset=offset,
            trend=trend,
            amplitude=float(np.square(residual).mean()) / spread,
        )

    def at(
        self, points: FloatArray, drift: FloatArray, *, spread: bool = True
    ) -> tuple[FloatArray, FloatArray | None]:
        """Mean and deviation (c,) of the scores at `points` (c, d) with `drift` (c, f).

        The deviation is that of the score without noise, the trend taken as known; it costs most of
        the time and is None without `spread`.
        """
        covariances = self.kernel(self.points, points)
        mean = self.offset + drift @ self.trend + self.weights @ covariances
        if not spread:
            return mean, None
        known = np.square(self.whiten @ covariances).sum(axis=0)
        left = np.maximum(self.kernel.variance(points) - known, 0)
        return mean, np.sqrt(self.amplitude * left)


@dataclass(frozen=True, slots=True)
class Posteriors:
    """State of a Gaussian process over m queries.

    `columns` (f, m, n) are what the means are linear in; `own` (m, d) the queries' vectors where
    they count as observed. A posterior is None while a query's scores say too little.
    """

    queries: Queries
    columns: FloatArray
    own: FloatArray | None
    rows: tuple[Posterior | None, ...]


class GaussianProcess(Predictor[Posteriors]):
    """Predicts by the posterior of each query, and chooses by mean + `beta` * deviation.

    `items` (n, d), float32 or float16. `mean`: `none`; `average`, that of the scores known so far;
    `constant`, by generalised least squares (ordinary kriging); `first`, linear in the scores of
    the first stage, or of each stage of a fusion (universal kriging). With `own`, a query's own
    vector counts as an item with the best score known and the best first-stage scores of all
    (BAGEL, ReBOL). Until a query has more scores than `columns`, and different ones, `first` ranks.

    A round costs one (b, b) factor a query, and b * n * (d + b) multiplications to predict all
    items, or b * n * d without `beta`. Between rounds only the posteriors are kept.
    """

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
    ) -> None:
        self.items, self.kernel, self.first, self.own = items, kernel, first, own
        self.mean, self.noise, self.beta = mean, noise, beta
        self.precision = np.promote_types(items.dtype, np.float32)

    def start(self, queries: Queries) -> Posteriors:
        return Posteriors(
            queries=queries,
            columns=self.columns(queries),
            own=None if self.own is None else self.own(queries),
            rows=(None,) * len(queries),
        )

    def columns(self, queries: Queries) -> FloatArray:
        """What each query's mean is linear in, at all items: (f, m, n)."""
        ones = np.broadcast_to(np.float32(1), (len(queries), len(self.items)))
        if self.mean == "first":
            stages = self.first.stages if isinstance(self.first, HybridFirst) else (self.first,)
            return np.stack([ones, *(stage.scores(queries) for stage in stages)])
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
        if len(scores) <= drift.shape[1] or np.ptp(scores) == 0:
            return None
        if state.own is not None:
            points = np.vstack([points, state.own[row].astype(points.dtype)])
            drift = np.vstack([drift, state.columns[:, row].max(axis=1)])
            scores = np.append(scores, scores.max())
        return Posterior.given(
            self.kernel, points, scores, drift, noise=self.noise, centre=self.mean != "none"
        )

    def vectors(self, items: IntArray | slice) -> FloatArray:
        """The vectors (c, d) of items (c,), in single precision or better."""
        return self.items[items].astype(self.precision, copy=False)

    def predict(self, state: Posteriors, items: IntArray | None = None) -> Prediction:
        m, count = (len(state.rows), len(self.items)) if items is None else items.shape
        mean = np.empty((m, count), np.float32)
        std = np.zeros((m, count), np.float32) if self.beta else None
        if None in state.rows:
            cheap = self.first.scores(state.queries)
            mean[:] = cheap if items is None else np.take_along_axis(cheap, items, axis=1)
        for row, posterior in enumerate(state.rows):
            if posterior is None:
                continue
            for start in range(0, count, BLOCK):
                part = slice(start, min(start + BLOCK, count))
                chosen = part if items is None else items[row, part]
                points, drift = self.vectors(chosen), state.columns[:, row, chosen].T
                mean[row, part], spread = posterior.at(points, drift, spread=std is not None)
                if std is not None:
                    std[row, part] = spread
        return Prediction(mean, std)

    def acquisition(self, prediction: Prediction) -> FloatArray:
        if prediction.std is None:
            return prediction.mean
        return prediction.mean + self.beta * prediction.std


def _whitening(covariance: FloatArray) -> FloatArray:
    """Inverse of the Cholesky factor: (b, b) -> (b, b)."""
    if np.isfinite(covariance).all():
        with suppress(np.linalg.LinAlgError):
            return np.linalg.inv(np.linalg.cholesky(covariance))
    raise InputError(
        f"the covariance of {len(covariance)} scored items is not positive definite: their vectors "
        "are not all numbers, or the kernel is none"
    )
