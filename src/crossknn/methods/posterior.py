"""Predict a query's unknown scores from its exact scores: the posterior of a Gaussian process.

    score(x) = offset + h(x)' w + residual(x) + noise,   residual ~ GP(0, amplitude * k)

Following Rasmussen and Williams 2006: mean and variance given b scores are in 2.2, the basis
functions h in 2.7, kernels k in chapter 4. Geostatistics calls it simple, ordinary or universal
kriging, depending on h.

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
"""Minimum noise as a share of the variance; less would vanish in single precision."""

PRIOR_SCORES = 10
"""Number of scores that a fitted amplitude of the kernel weighs as much as."""


class Kernel(Protocol):
    """The covariance function of points, before the amplitude."""

    def __call__(
        self, left: FloatArray, right: FloatArray, lengths: FloatArray | None = None
    ) -> FloatArray:
        """Compute the covariances (a, c) of points (a, p) and (c, p), faster if their `lengths` are
        given."""

    def lengths(self, points: FloatArray) -> FloatArray | None:
        """Precompute values (c,) of points (c, p)."""

    def variance(self, points: FloatArray) -> FloatArray:
        """Compute the variance (c,) of each point (c, p)."""

    def unit(self, points: FloatArray) -> float:
        """Return the mean variance of points, the unit of the noise."""

    def direction(self, weights: FloatArray, points: FloatArray) -> FloatArray:
        """Return the vector (p,) whose inner products approximate sum_b weights_b k(points_b, .) up
        to a constant; exp(-scale s) is replaced by a line through its values at cosines of 0.6 and
        0.8."""


@dataclass(frozen=True, slots=True)
class Directional:
    """The kernel `smooth` exp(-scale |x - y|^2) + `linear` cos(x, y), for x and y scaled to unit
    length."""

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
        """Compute covariances at squared distances, of the same shape."""
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
    """The kernel `share` <f_x, f_y> + `amount` `rest`(v_x, v_y), where a point is factors f (rank,)
    followed by a vector v (d,). Its unit is that of `rest`."""

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
    """Compute squared distances between the directions of vectors: (a, d) and (c, d) -> (a, c),
    from 0 to 4; `of_right` are the lengths (c,) of the latter, if known."""
    rows = left
    if len(left) > 1 and (odd := -len(left) % 4):  # OpenBLAS takes longer for 5 rows than for 8
        rows = np.vstack([left, np.zeros((odd, left.shape[1]), left.dtype)])
    cosines = (rows @ right.T)[: len(left)]
    cosines /= lengths(left)[:, None] / -2
    cosines /= lengths(right) if of_right is None else of_right
    cosines += 2
    return np.maximum(cosines, 0, out=cosines)


class Trend(NamedTuple):
    """A model of the weights w: only the basis functions `columns` (f,) have weights, (0 or 1),
    with a Gaussian prior of `mean` (f,) and `precision` (f, f), which is 0 for unknown weights."""

    columns: BoolArray
    mean: FloatArray
    precision: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """Assumptions about a query's scores before any is known.

    Args:
        noise: variance that the kernel does not explain, as a share of its unit.
        centre: subtract the mean of the scores first, so that a shift of all scores shifts every
            prediction equally, even with fewer scores than basis functions.
        likely: the amplitude is that of maximum likelihood, r' K^-1 r / (b - f), or, if the
            kernel's own was fitted, (10 + r' K^-1 r) / (10 + b), with r = scores - offset - h w;
            otherwise it is the mean square of r over the unit.
        fitted: the kernel's amplitude was fitted to other queries' scores.
        trends: w is the mean of these models' estimates. As predictions are linear in w, this is
            also the mean of their predictions. Without trends, w is fitted by generalised least
            squares.
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
        """Condition on `scores` (b,) at `points` (b, p) with basis functions `basis` (b, f);
        `before` is the posterior of the first a ones. Raises `InputError` if the covariance is not
        positive definite."""
        exact, b, a = points.astype(np.float64), len(points), 0
        factor, inverse, unit = np.zeros((b, b)), np.zeros((b, b)), self.kernel.unit(exact)
        if before is not None:
            a, unit = len(before.points), before.unit
            factor[:a, :a], inverse[:a, :a] = before.factor, before.inverse
            factor[a:, :a] = self.kernel(exact[a:], exact[:a]) @ before.inverse.T
        # Only the new rows of L are computed: L_21 = K_21 L_11^-T, and L_22 L_22' = K_22 - L_21
        # L_21'.
        covariance = self.kernel(exact[a:], exact[a:]) - factor[a:, :a] @ factor[a:, :a].T
        covariance[np.diag_indices_from(covariance)] += max(self.noise, FLOOR) * unit
        try:
            factor[a:, a:] = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            factor[a:] = np.nan
        if not np.isfinite(factor).all():
            raise InputError(
                f"the covariance of {b} scored items is not positive definite: their vectors "
                "contain a NaN or an infinity, or the kernel is not a covariance"
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
        """Estimate w = (H'K^-1 H + B^-1)^-1 (H'K^-1 y + B^-1 b), 2.42, averaged over the trends;
        without trends by least squares."""
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
    """The posterior given scores. With K = L L' the covariance of the scored `points` (b, p) plus
    noise, `factor` is L (b, b), `inverse` L^-1 and `residual` (b,) L^-1 (`scores` - offset - h w).
    `amplitude` multiplies K.

    `kept` holds the `whitened` values of items predicted before, which the next rounds extend.
    """

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
        """The weights (b,) of the scored points' covariances: K^-1 (scores - offset - h w)."""
        return (self.inverse.T @ self.residual).astype(self.points.dtype)

    def at(self, others: Whitened, basis: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predict mean and std (c,) at other points with `basis` (c, f): offset + h w + r' V (2.25,
        2.41) and sqrt(amplitude (k(x, x) - sum V^2)) (2.26), without noise, treating w as exact."""
        mean, start = self.offset + basis @ self.weights, 0
        for rows in others.blocks:
            mean = mean + self.residual[start : start + len(rows)].astype(rows.dtype) @ rows
            start += len(rows)
        left = np.maximum(others.variance - others.explained, 0)
        return mean, np.sqrt(self.amplitude * left)


@dataclass(frozen=True, slots=True)
class Whitened:
    """V = L^-1 k(scored, others) for c other points: its rows (b, c) in `blocks`, one per round,
    the sums of squares of its columns in `explained` (c,), and k(x, x) in `variance` (c,)."""

    variance: FloatArray
    explained: FloatArray | float = 0.0
    blocks: tuple[FloatArray, ...] = ()

    @property
    def count(self) -> int:
        """Number of scored points included."""
        return sum(map(len, self.blocks))

    def beside(self, other: Whitened) -> Whitened:
        """Append the columns of `other`, which includes the same scored points."""
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
        """Add the rows for newly scored points, given their covariances (b', c), which are
        overwritten: as L V = k, the new rows of V are L_22^-1 (k_2 - L_21 V_1)."""
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
