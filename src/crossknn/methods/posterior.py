"""What exact scores of a query say about all others: the posterior of a Gaussian process.

    score(x) = offset + h(x)' w + residual(x) + noise,   residual ~ GP(0, amplitude * k)

Rasmussen and Williams 2006: the mean and variance given b scores are 2.2, the basis functions h are
2.7, kernels k are chapter 4. Geostatistics call it simple, ordinary or universal kriging, by h.

Axes: b scored points, c predicted points, p coordinates of a point, f basis functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import lengths, solve_scaled
from crossknn.types import BoolArray, FloatArray

FLOOR = 1e-5
"""The least noise, as a share of the variance: less would drown in single precision."""

PRIOR_SCORES = 10
"""Scores that the kernel's own amplitude is worth where the prior was fitted, not assumed."""


class Kernel(Protocol):
    """The covariance of two points, before the amplitude."""

    def __call__(
        self, left: FloatArray, right: FloatArray, lengths: FloatArray | None = None
    ) -> FloatArray:
        """Of points (a, p) and (c, p): (a, c), sooner with what `lengths` gave for the latter."""

    def lengths(self, points: FloatArray) -> FloatArray | None:
        """What is computed of points (c, p) once: (c,)."""

    def variance(self, points: FloatArray) -> FloatArray:
        """Of each point (c, p) with itself: (c,)."""

    def unit(self, points: FloatArray) -> float:
        """The mean variance of points, which noise is a share of."""

    def direction(self, weights: FloatArray, points: FloatArray) -> FloatArray:
        """The vector (p,) whose inner products are nearly sum_b weights_b k(points_b, .), but for a
        constant: exp(-scale s) by a line through its values at cosines of 0.6 and 0.8."""


@dataclass(frozen=True, slots=True)
class Directional:
    """`smooth` exp(-scale |x - y|^2) + `linear` cos(x, y), for x and y brought to unit length."""

    scale: float
    smooth: float = 1.0
    linear: float = 0.0

    def __call__(
        self, left: FloatArray, right: FloatArray, lengths: FloatArray | None = None
    ) -> FloatArray:
        return self.at(squared_distances(left, right, lengths))

    def lengths(self, points: FloatArray) -> FloatArray:
        return lengths(points)

    def at(self, distances: FloatArray) -> FloatArray:
        """Covariances at squared distances, of the same shape."""
        near: FloatArray = np.exp(-self.scale * distances)
        if self.linear == 0 and self.smooth == 1:
            return near
        return self.smooth * near + self.linear * (1 - distances / 2)  # cos = 1 - |x - y|^2 / 2

    def variance(self, points: FloatArray) -> FloatArray:
        return np.full(len(points), self.smooth + self.linear, points.dtype)

    def unit(self, points: FloatArray) -> float:
        return self.smooth + self.linear or 1.0

    def direction(self, weights: FloatArray, points: FloatArray) -> FloatArray:
        near, far = self.at(np.array([0.4, 0.8]))  # cosines of 0.8 and 0.6
        return (near - far) / 0.2 * ((weights / lengths(points)) @ points)


@dataclass(frozen=True, slots=True)
class LowRankPlusResidual:
    """`share` <f_x, f_y> + `amount` `rest`(v_x, v_y), a point being factors f (rank,), then v (d,).
    Its unit is that of `rest`."""

    rank: int
    share: float
    amount: float
    rest: Directional

    def __call__(
        self, left: FloatArray, right: FloatArray, lengths: FloatArray | None = None
    ) -> FloatArray:
        rest = self.amount * self.rest(left[:, self.rank :], right[:, self.rank :], lengths)
        return rest + (self.share * left[:, : self.rank]) @ right[:, : self.rank].T

    def lengths(self, points: FloatArray) -> FloatArray:
        return lengths(points[:, self.rank :])

    def variance(self, points: FloatArray) -> FloatArray:
        known = np.square(points[:, : self.rank]).sum(axis=1)
        return self.share * known + self.amount * self.rest.variance(points)

    def unit(self, points: FloatArray) -> float:
        return self.amount * self.rest.unit(points)

    def direction(self, weights: FloatArray, points: FloatArray) -> FloatArray:
        rest = self.amount * self.rest.direction(weights, points[:, self.rank :])
        return np.concatenate([self.share * (weights @ points[:, : self.rank]), rest])


def squared_distances(
    left: FloatArray, right: FloatArray, of_right: FloatArray | None = None
) -> FloatArray:
    """Between the directions of vectors: (a, d) and (c, d) -> (a, c), from 0 to 4; `of_right` are
    the lengths (c,) of the latter, if they are known."""
    rows = left
    if len(left) > 1 and (odd := -len(left) % 4):  # OpenBLAS takes longer for 5 rows than for 8
        rows = np.vstack([left, np.zeros((odd, left.shape[1]), left.dtype)])
    cosines = (rows @ right.T)[: len(left)]
    cosines /= lengths(left)[:, None] / -2
    cosines /= lengths(right) if of_right is None else of_right
    cosines += 2
    return np.maximum(cosines, 0, out=cosines)


class Trend(NamedTuple):
    """A model of w: the basis functions `columns` (f,) alone have weights, (0 or 1), whose Gaussian
    prior has `mean` (f,) and `precision` (f, f), 0 where nothing is known."""

    columns: BoolArray
    mean: FloatArray
    precision: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What is assumed of a query's scores before any is known.

    Args:
        noise: variance that the kernel does not explain, as a share of its unit.
        centre: take the mean of the scores off first, so that a shift of all scores moves every
            prediction by as much even where they are fewer than the basis functions.
        likely: the amplitude is that of maximum likelihood, r' K^-1 r / (b - f), or where the
            kernel's own was fitted (10 + r' K^-1 r) / (10 + b), r being scores - offset - h w;
            otherwise the mean square of r over the unit.
        fitted: the kernel's amplitude was fitted to other queries' scores.
        trends: w is the mean of what these models say: an equal mixture, whose mean is also the
            mean of their predictions, as these are linear in w. Without any, w is fitted by
            generalised least squares.
    """

    kernel: Kernel
    noise: float
    centre: bool = True
    likely: bool = False
    fitted: bool = False
    trends: Sequence[Trend] = ()

    def posterior(
        self,
        points: FloatArray,
        scores: FloatArray,
        basis: FloatArray,
        before: Posterior | None = None,
    ) -> Posterior:
        """Condition on `scores` (b,) at `points` (b, p), where h is `basis` (b, f); `before` was
        that of the first a ones. `InputError` if the covariance is not positive definite."""
        exact, b, a = points.astype(np.float64), len(points), 0
        factor, inverse, unit = np.zeros((b, b)), np.zeros((b, b)), self.kernel.unit(exact)
        if before is not None:
            a, unit = len(before.points), before.unit
            factor[:a, :a], inverse[:a, :a] = before.factor, before.inverse
            factor[a:, :a] = self.kernel(exact[a:], exact[:a]) @ before.inverse.T
        # The new rows of L: L_21 = K_21 L_11^-T, and L_22 L_22' = K_22 - L_21 L_21'.
        covariance = self.kernel(exact[a:], exact[a:]) - factor[a:, :a] @ factor[a:, :a].T
        covariance[np.diag_indices_from(covariance)] += max(self.noise, FLOOR) * unit
        try:
            factor[a:, a:] = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            factor[a:] = np.nan
        if not np.isfinite(factor).all():
            raise InputError(
                f"the covariance of {b} scored items is not positive definite: their vectors "
                "hold a NaN or an infinity, or the kernel is not a covariance"
            )
        inverse[a:, a:] = np.linalg.inv(factor[a:, a:])
        inverse[a:, :a] = -inverse[a:, a:] @ factor[a:, :a] @ inverse[:a, :a]
        offset = float(scores.mean()) if self.centre else 0.0
        white = inverse @ np.column_stack([basis, scores - offset])
        weights = self._weights(white[:, :-1], white[:, -1])
        residual = white[:, -1] - white[:, :-1] @ weights
        amplitude = np.square(scores - offset - basis @ weights).mean() / unit
        if self.likely and not self.fitted:
            amplitude = residual @ residual / max(b - basis.shape[1], 1)
        elif self.likely:
            amplitude = (PRIOR_SCORES + residual @ residual) / (PRIOR_SCORES + b)
        return Posterior(
            *(points, scores, factor, inverse, residual, offset, weights, float(amplitude), unit),
            kept={} if before is None else dict(before.kept),
        )

    def _weights(self, basis: FloatArray, scores: FloatArray) -> FloatArray:
        """(H'K^-1 H + B^-1)^-1 (H'K^-1 y + B^-1 b), 2.42, averaged over the trends; without one by
        least squares."""
        if not self.trends:
            return np.linalg.lstsq(basis, scores, rcond=1e-6)[0]
        weights, products, known = np.zeros(basis.shape[1]), basis.T @ basis, basis.T @ scores
        for trend in self.trends:
            used = np.flatnonzero(trend.columns)
            of = np.ix_(used, used)
            wanted = (known + trend.precision @ trend.mean)[used]
            weights[used] += solve_scaled((products + trend.precision)[of], wanted)
        return weights / len(self.trends)


@dataclass(frozen=True, slots=True)
class Posterior:
    """With K = L L' the covariance of the scored `points` (b, p) plus noise, `factor` is L (b, b),
    `inverse` L^-1 and `residual` (b,) L^-1 (`scores` - offset - h w). `amplitude` multiplies K.

    `kept` has what was `whitened` for items predicted before, for the next rounds to extend."""

    points: FloatArray
    scores: FloatArray
    factor: FloatArray
    inverse: FloatArray
    residual: FloatArray
    offset: float
    weights: FloatArray
    amplitude: float
    unit: float
    kept: dict[int | bytes, Whitened]

    @property
    def pull(self) -> FloatArray:
        """K^-1 (scores - offset - h w): the weights (b,) of the scored points' covariances."""
        return (self.inverse.T @ self.residual).astype(self.points.dtype)

    def at(self, others: Whitened, basis: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Mean and std (c,) at other points, with `basis` (c, f): offset + h w + r' V (2.25, 2.41),
        and sqrt(amplitude (k(x, x) - sum V^2)) (2.26), without noise, w taken as known."""
        mean, start = self.offset + basis @ self.weights, 0
        for rows in others.blocks:
            mean = mean + self.residual[start : start + len(rows)].astype(rows.dtype) @ rows
            start += len(rows)
        left = np.maximum(others.variance - others.explained, 0)
        return mean, np.sqrt(self.amplitude * left)


@dataclass(frozen=True, slots=True)
class Whitened:
    """V = L^-1 k(scored, others) for c other points: its rows (b, c) in `blocks`, one a round,
    the sums of squares of its columns in `explained` (c,); `variance` (c,) is k(x, x)."""

    variance: FloatArray
    explained: FloatArray | float = 0.0
    blocks: tuple[FloatArray, ...] = ()

    @property
    def count(self) -> int:
        """Scored points that are in it."""
        return sum(map(len, self.blocks))

    def beside(self, other: Whitened) -> Whitened:
        """With the columns of `other`, of as many scored points, in one block, on the right."""
        (rows,), blocks, start = other.blocks or (np.empty((0, len(other.variance))),), [], 0
        for block in self.blocks:
            blocks.append(np.hstack([block, rows[start : start + len(block)]]))
            start += len(block)
        return Whitened(
            np.append(self.variance, other.variance),
            np.append(
                np.broadcast_to(self.explained, self.variance.shape),
                np.broadcast_to(other.explained, other.variance.shape),
            ),
            tuple(blocks),
        )

    def extended(self, posterior: Posterior, covariances: FloatArray) -> Whitened:
        """With k(new, others) (b', c), overwritten, of the scored points that are not in it yet: as
        L V = k, the new rows of V are L_22^-1 (k_2 - L_21 V_1)."""
        if not len(covariances):
            return self
        known, single, start = self.count, covariances.dtype, 0
        for rows in self.blocks:
            below = posterior.factor[known:, start : start + len(rows)]
            covariances -= below.astype(single) @ rows
            start += len(rows)
        new = posterior.inverse[known:, known:].astype(single) @ covariances
        explained = self.explained + np.einsum("bc,bc->c", new, new)
        return Whitened(self.variance, explained, (*self.blocks, new))
