"""Covariance functions of item vectors: Rasmussen and Williams, 2006, chapter 4."""

import numpy as np

from .problem import FloatArray


def directions(vectors: FloatArray) -> FloatArray:
    """Vectors of length 1; those of length 0 stay 0."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths > 0, lengths, 1.0)


def squared_distances(X: FloatArray, Y: FloatArray) -> FloatArray:
    """(m, b) |x - y|^2 of rows of X (m, d) and Y (b, d), from the differences themselves."""
    return np.stack([((X - y) ** 2).sum(axis=1) for y in Y], axis=1)


def rbf(X: FloatArray, Y: FloatArray, scale: float) -> FloatArray:
    """exp(-scale |x - y|^2): 4.9 with l = sqrt(1 / (2 scale))."""
    return np.exp(-scale * squared_distances(X, Y))


def matern(X: FloatArray, Y: FloatArray, scale: float) -> FloatArray:
    """Smoothness 5/2: 4.17, with the characteristic length l of `rbf`."""
    r = np.sqrt(5 * squared_distances(X, Y) * 2 * scale)  # sqrt(5) |x - y| / l
    return (1 + r + r**2 / 3) * np.exp(-r)


def linear(X: FloatArray, Y: FloatArray) -> FloatArray:
    """Inner products."""
    return X @ Y.T
