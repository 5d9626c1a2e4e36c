"""Covariances between points from their vectors (Rasmussen and Williams 2006, chapter 4).

`Rbf` and `Matern` look at directions: their distance is that of the vectors brought to unit length.
Both say 1 for vectors that point alike; sqrt(1 / (2 scale)) is their characteristic length.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from crossknn.types import FloatArray


class Kernel(ABC):
    """A positive semidefinite function of two vectors."""

    @abstractmethod
    def __call__(self, left: FloatArray, right: FloatArray) -> FloatArray:
        """Covariances of each point with each other one: (p, d) and (r, d) -> (p, r)."""

    @abstractmethod
    def variance(self, points: FloatArray) -> FloatArray:
        """Covariance of each point with itself: (p, d) -> (p,)."""

    def unit(self, points: FloatArray) -> float:
        """What noise is a share of: the mean variance of points (p, d)."""
        return float(self.variance(points).mean()) or 1.0


@dataclass(frozen=True, slots=True)
class Linear(Kernel):
    """`x . y`: scores linear in the vectors, as AXN has them."""

    def __call__(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return left @ right.T

    def variance(self, points: FloatArray) -> FloatArray:
        return np.einsum("pd,pd->p", points, points)


class Stationary(Kernel):
    """A function of the squared distance between directions, 1 where that is 0."""

    @abstractmethod
    def at(self, distances: FloatArray) -> FloatArray:
        """Covariances of points whose squared distances are given, of the same shape."""

    def __call__(self, left: FloatArray, right: FloatArray) -> FloatArray:
        return self.at(distances(left, right))

    def variance(self, points: FloatArray) -> FloatArray:
        return np.ones(len(points), points.dtype)


@dataclass(frozen=True, slots=True)
class Rbf(Stationary):
    """`exp(-scale * distance^2)`: smooth scores."""

    scale: float

    def at(self, distances: FloatArray) -> FloatArray:
        return np.exp(-self.scale * distances)


@dataclass(frozen=True, slots=True)
class Matern(Stationary):
    """Matern with smoothness 5/2: scores that may bend more sharply than `Rbf` lets them."""

    scale: float

    def at(self, distances: FloatArray) -> FloatArray:
        far = np.sqrt(10 * self.scale * distances)
        return (1 + far + far**2 / 3) * np.exp(-far)


@dataclass(frozen=True, slots=True)
class Content(Stationary):
    """`smooth` of `Rbf` and `linear` of the cosine: scores that mostly follow directions."""

    scale: float
    smooth: float
    linear: float

    def at(self, distances: FloatArray) -> FloatArray:
        return self.smooth * np.exp(-self.scale * distances) + self.linear * (1 - distances / 2)

    def variance(self, points: FloatArray) -> FloatArray:
        return np.full(len(points), self.smooth + self.linear, points.dtype)

    def direction(self, weights: FloatArray, points: FloatArray) -> FloatArray:
        """Where `weights` (b,) of covariances with `points` (b, d) point in their linear part: a
        vector (d,) for `plane`."""
        return self.linear * ((weights / _lengths(points)) @ points)

    def plane(self, directions: FloatArray, others: FloatArray) -> FloatArray:
        """Those weighted covariances with `others` (c, d), without what is not linear: (m, c).

        From `directions` (m, d): c d multiplications for each in place of b c d.
        """
        return directions @ others.T / _lengths(others)


@dataclass(frozen=True, slots=True)
class Factored(Kernel):
    """`share` of the products of each point's first `rank` numbers, and `amount` of `rest` on the
    others: a low-rank covariance, and what it leaves. Noise is a share of what it leaves."""

    rank: int
    share: float
    amount: float
    rest: Content

    def __call__(self, left: FloatArray, right: FloatArray) -> FloatArray:
        known = (self.share * left[:, : self.rank]) @ right[:, : self.rank].T
        return known + self.amount * self.rest(left[:, self.rank :], right[:, self.rank :])

    def variance(self, points: FloatArray) -> FloatArray:
        known = np.square(points[:, : self.rank]).sum(axis=1)
        return self.share * known + self.amount * self.rest.variance(points[:, self.rank :])

    def unit(self, points: FloatArray) -> float:
        return self.amount * self.rest.unit(points[:, self.rank :])

    def direction(self, weights: FloatArray, points: FloatArray) -> FloatArray:
        """As `Content.direction`: (r + d,)."""
        known = self.share * (weights @ points[:, : self.rank])
        rest = self.rest.direction(weights, points[:, self.rank :])
        return np.concatenate([known, self.amount * rest])

    def plane(self, directions: FloatArray, others: FloatArray) -> FloatArray:
        """As `Content.plane`."""
        known = directions[:, : self.rank] @ others[:, : self.rank].T
        return known + self.rest.plane(directions[:, self.rank :], others[:, self.rank :])


def distances(left: FloatArray, right: FloatArray) -> FloatArray:
    """Squared, between the directions of vectors: (p, d) and (r, d) -> (p, r), from 0 to 4."""
    cosines = left @ right.T
    cosines /= _lengths(left)[:, None]
    cosines /= _lengths(right)
    return np.maximum(2 - 2 * cosines, 0)


def _lengths(vectors: FloatArray) -> FloatArray:
    """(p, d) -> (p,); 1 where a vector is 0, which is then as far from everything."""
    lengths = np.sqrt(np.einsum("pd,pd->p", vectors, vectors))
    return np.where(lengths > 0, lengths, lengths.dtype.type(1))
