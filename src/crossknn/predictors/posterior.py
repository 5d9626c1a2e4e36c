"""What some exact scores of a query say about all others (Rasmussen and Williams 2006, 2.2, 2.7).

    score(x) = offset + drift(x) . trend + residual(x),   residual ~ GP(0, amplitude * kernel)

In the words of geostatistics: kriging; simple, ordinary or universal by what the drift is.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import solve_scaled
from crossknn.predictors.kernels import Kernel
from crossknn.types import FloatArray

FLOOR = 1e-5
"""The least noise, as a share of the variance: less would drown in single precision."""

BELIEF = 10
"""Scores that the kernel's own units are worth where it has a prior: it was fitted, not assumed."""


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
    def nothing(cls, posterior: Posterior, variance: FloatArray) -> Whitened:
        """Before any scored point is taken in."""
        return cls(posterior, (), np.zeros_like(variance), variance)

    @classmethod
    def of(cls, posterior: Posterior, points: FloatArray) -> Whitened:
        """Those of `points` (c, d)."""
        nothing = cls.nothing(posterior, posterior.kernel.variance(points))
        return nothing.extended(posterior, posterior.kernel(posterior.points, points))

    @property
    def taken(self) -> int:
        """Scored points that are in it."""
        return sum(map(len, self.blocks))

    def begins(self, posterior: Posterior) -> bool:
        """Whether `posterior` only adds points to those taken in."""
        return _begins(posterior.factor, self.posterior.factor)

    def extended(self, posterior: Posterior, new: FloatArray) -> Whitened:
        """With the covariances `new` (b', c) of the scored points that are not yet in it; `new` is
        overwritten."""
        start = self.taken
        if start == len(posterior.points):
            return replace(self, posterior=posterior)
        seen = 0
        for block in self.blocks:
            columns = slice(seen, seen + len(block))
            new -= posterior.factor[start:, columns].astype(new.dtype) @ block
            seen += len(block)
        new = posterior.whiten[start:, start:].astype(new.dtype) @ new
        known = self.known + np.einsum("bc,bc->c", new, new)
        return replace(self, posterior=posterior, blocks=(*self.blocks, new), known=known)


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
