"""A query's scores as a Gaussian process: the posterior of the unknown scores given the known ones.

    score(x) = offset + h(x)' w + residual(x) + noise,   residual ~ GP(0, amplitude * k)

    symbol      here                                           Rasmussen and Williams 2006
    h, w        `basis`, `weights`                             2.7, equation 2.42
    K = L L'    covariance of the scored points, with noise    2.2; L is `factor`, L^-1 `inverse`
    V           `Whitened`: L^-1 k(scored, others)             equations 2.25 and 2.26

Geostatistics calls it universal kriging.

Axes: b scored points, c predicted points, f basis functions, p coordinates of a point: r factors
and d dimensions of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import lengths, solve_scaled
from crossknn.types import BoolArray, FloatArray

SHARE = 0.7
"""Weight of the covariance between items learned from other queries, because a few hundred queries
overestimate it."""

SMOOTH, SCALE, LINEAR = 0.3, 2.0, 0.5
"""Covariance of two items by their vectors' directions x and y, 0.3 exp(-2 |x - y|^2) + 0.5 x . y,
in units of the residuals' variance."""

NOISE = 0.25
"""Variance of the noise, as a share of the variance of the covariance by vectors."""

PRIOR_SCORES = 10
"""Weight of a fitted amplitude of the covariance, in numbers of scores."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Covariances of points, which are factors g (rank,) followed by a vector v (d,):
    0.7 g_x . g_y + `amount` (0.3 exp(-2 |x - y|^2) + 0.5 x . y), x and y the directions of v."""

    rank: int = 0
    amount: float = 1.0

    def __call__(
        self, left: FloatArray, right: FloatArray, right_lengths: FloatArray | None = None
    ) -> FloatArray:
        """Compute covariances of points: (a, p) and (c, p) -> (a, c)."""
        r = self.rank
        covariances = _by_distance(squared_distances(left[:, r:], right[:, r:], right_lengths))
        covariances *= self.amount
        return covariances + (SHARE * left[:, :r]) @ right[:, :r].T if r else covariances

    def lengths(self, points: FloatArray) -> FloatArray:
        """Lengths (c,) of the points' vectors, which can be given to `__call__`."""
        return lengths(points[:, self.rank :])

    def variance(self, points: FloatArray) -> FloatArray:
        """Covariances (c,) of points with themselves."""
        content = np.full(len(points), SMOOTH + LINEAR, points.dtype)
        return SHARE * np.square(points[:, : self.rank]).sum(axis=1) + self.amount * content

    @property
    def noise(self) -> float:
        """The variance of the noise, in units of these covariances."""
        return NOISE * (self.amount * (SMOOTH + LINEAR))

    def direction(self, weights: FloatArray, points: FloatArray) -> FloatArray:
        """Return the vector (p,) whose inner products approximate sum_b weights_b k(points_b, .) up
        to a constant; covariances by vectors are replaced by a line through their values at cosines
        of 0.6 and 0.8."""
        near, far = _by_distance(np.array([0.4, 0.8]))  # |x - y|^2 = 2 - 2 cosine
        factors, vectors = points[:, : self.rank], points[:, self.rank :]
        slope = self.amount * ((near - far) / 0.2 * ((weights / lengths(vectors)) @ vectors))
        return np.concatenate([SHARE * (weights @ factors), slope])


def _by_distance(squared: FloatArray) -> FloatArray:
    near: FloatArray = np.exp(-SCALE * squared)
    return SMOOTH * near + LINEAR * (1 - squared / 2)  # cosine = 1 - |x - y|^2 / 2


def squared_distances(
    left: FloatArray, right: FloatArray, right_lengths: FloatArray | None = None
) -> FloatArray:
    """Squared distances of the directions of vectors: (a, d) and (c, d) -> (a, c), from 0 to 4."""
    rows = left
    if len(left) > 1 and (odd := -len(left) % 4):  # OpenBLAS takes longer for 5 rows than for 8
        rows = np.vstack([left, np.zeros((odd, left.shape[1]), left.dtype)])
    cosines = (rows @ right.T)[: len(left)]
    cosines /= lengths(left)[:, None] / -2
    cosines /= lengths(right) if right_lengths is None else right_lengths
    cosines += 2
    return np.maximum(cosines, 0, out=cosines)


class Trend(NamedTuple):
    """A model of the weights w: only the basis functions `columns` (f,) have weights (0 or 1), with
    a Gaussian prior of `mean` (f,) and `precision` (f, f), which is 0 for unknown weights."""

    columns: BoolArray
    mean: FloatArray
    precision: FloatArray

    def with_column(self) -> Trend:
        """Add a basis function whose weight has a prior of mean 1 and precision 1."""
        precision = np.pad(self.precision, (0, 1))
        precision[-1, -1] = 1
        return Trend(np.append(self.columns, True), np.append(self.mean, 1.0), precision)


@dataclass(frozen=True, slots=True)
class Model:
    """Assumptions about a query's scores before any pair is scored.

    w is the average of the estimates of the `trends`. With r = scores - offset - h w, the amplitude
    is that of maximum likelihood, r' K^-1 r / (b - f); if the kernel's own amplitude was `fitted`
    to other queries' scores, (10 + r' K^-1 r) / (10 + b).
    """

    kernel: Kernel
    trends: Sequence[Trend]
    fitted: bool = False

    def posterior(
        self,
        points: FloatArray,
        scores: FloatArray,
        basis: FloatArray,
        before: Posterior | None = None,
    ) -> Posterior:
        """Condition on `scores` (b,) at `points` (b, p) with basis functions `basis` (b, f);
        `before` is the posterior given the first a of them."""
        exact, b, a = points.astype(np.float64), len(points), 0
        factor, inverse = np.zeros((b, b)), np.zeros((b, b))
        if before is not None:
            a = len(before.points)
            factor[:a, :a], inverse[:a, :a] = before.factor, before.inverse
        # Only the new rows of L are computed: L_21 = K_21 L_11^-T, and
        # L_22 L_22' = K_22 - L_21 L_21'.
        covariances = self.kernel(exact[a:], exact)
        between, covariance = covariances[:, :a], covariances[:, a:]
        factor[a:, :a] = between @ inverse[:a, :a].T
        covariance = covariance - factor[a:, :a] @ factor[a:, :a].T
        covariance.flat[:: b - a + 1] += self.kernel.noise
        try:
            factor[a:, a:] = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            factor[a:] = np.nan
        if not np.isfinite(factor).all():
            raise InputError(
                f"the covariance of {b} scored items is not positive definite: their vectors "
                "contain a NaN or an infinity"
            )
        inverse[a:, a:] = np.linalg.inv(factor[a:, a:])
        inverse[a:, :a] = -inverse[a:, a:] @ factor[a:, :a] @ inverse[:a, :a]
        # Every trend has an intercept, so the offset changes nothing but the rounding.
        offset = float(scores.mean())
        white = inverse @ np.column_stack([basis, scores - offset])
        weights = self._weights(white[:, :-1], white[:, -1])
        residual = white[:, -1] - white[:, :-1] @ weights
        amplitude = residual @ residual / max(b - basis.shape[1], 1)
        if self.fitted:
            amplitude = (PRIOR_SCORES + residual @ residual) / (PRIOR_SCORES + b)
        kept = {} if before is None else dict(before.kept)
        return Posterior(points, factor, inverse, residual, offset, weights, float(amplitude), kept)

    def _weights(self, basis: FloatArray, scores: FloatArray) -> FloatArray:
        """w = (H'K^-1 H + B^-1)^-1 (H'K^-1 y + B^-1 b), 2.42, averaged over the trends."""
        used, mean, precision = map(np.stack, zip(*self.trends, strict=True))
        products = (basis.T @ basis + precision) * used[:, None] * used[..., None]
        wanted = basis.T @ scores + np.einsum("tfg,tg->tf", precision, mean)
        weights: FloatArray = solve_scaled(products, wanted * used).mean(axis=0)
        return weights


@dataclass(frozen=True, slots=True)
class Posterior:
    """The posterior given scores at `points` (b, p): L and L^-1 (b, b), the `residual` (b,)
    L^-1 (scores - offset - h w), and the `amplitude` that multiplies K. `kept` holds the whitened
    values of items predicted before, by the first item of each block."""

    points: FloatArray
    factor: FloatArray
    inverse: FloatArray
    residual: FloatArray
    offset: float
    weights: FloatArray
    amplitude: float
    kept: dict[int, Whitened]

    @property
    def pull(self) -> FloatArray:
        """The weights (b,) of the scored points' covariances: K^-1 (scores - offset - h w)."""
        return (self.inverse.T @ self.residual).astype(self.points.dtype)

    def at(self, others: Whitened, basis: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Predict mean and std (c,) at other points with `basis` (c, f): offset + h w + r' V (2.25,
        2.41) and sqrt(amplitude (k(x, x) - sum V^2)) (2.26), without noise, treating w as exact."""
        mean = self.offset + basis @ self.weights
        mean += self.residual[: len(others.rows)].astype(others.rows.dtype) @ others.rows
        left = np.maximum(others.variance - others.explained, 0)
        return mean, np.sqrt(self.amplitude * left)


class Whitened(NamedTuple):
    """V = L^-1 k(scored, others) for c other points: its `rows` (b, c), the sums of squares of its
    columns in `explained` (c,), and k(x, x) in `variance` (c,)."""

    variance: FloatArray
    explained: FloatArray
    rows: FloatArray

    @staticmethod
    def of(variance: FloatArray) -> Whitened:
        """Make V of no scored points for others of this variance (c,)."""
        return Whitened(variance, np.zeros_like(variance), variance[None][:0])

    def beside(self, other: Whitened) -> Whitened:
        """Append the columns of `other`, which includes the same scored points."""
        return Whitened(*(np.concatenate(both, axis=-1) for both in zip(self, other, strict=True)))

    def extended(self, posterior: Posterior, covariances: FloatArray) -> Whitened:
        """Add the rows for newly scored points, given their covariances (b', c), which are
        overwritten: as L V = k, the new rows of V are L_22^-1 (k_2 - L_21 V_1)."""
        if not len(covariances):
            return self
        count, single = len(self.rows), covariances.dtype
        covariances -= posterior.factor[count:, :count].astype(single) @ self.rows
        new = posterior.inverse[count:, count:].astype(single) @ covariances
        explained = self.explained + np.einsum("bc,bc->c", new, new)
        return Whitened(self.variance, explained, np.concatenate([self.rows, new]))
