"""Recall against exact search, and intervals over queries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn.linalg import top_k
from crossknn.types import FloatArray, IntArray


def exact_top(scores: FloatArray, k: int) -> IntArray:
    """The true k nearest neighbours under the cross-encoder: (m, n) -> (m, k), ties by position."""
    return top_k(scores, k).items


def recall(found: IntArray, truth: IntArray) -> FloatArray:
    """Share of the true neighbours that were found, per query: (m, k), (m, k) -> (m,) in 0-1.

    Rows of `found` may be padded with -1; k is that of `truth` (Top-k-Recall, ANNCUR 3).

    >>> recall(np.array([[3, 1, -1]]), np.array([[1, 2]]))
    array([0.5])
    """
    hits = [len(np.intersect1d(f, t)) for f, t in zip(found, truth, strict=True)]
    return np.array(hits, dtype=np.float64) / truth.shape[1]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over queries and its 95% bootstrap interval."""

    mean: float
    low: float
    high: float


def bootstrap(values: FloatArray, *, seed: int = 0, resamples: int = 2000) -> Estimate:
    """Mean of `values` (m,) with its 95% percentile bootstrap interval over queries."""
    values = np.asarray(values, np.float64)
    rng = np.random.default_rng(seed)
    draws = rng.integers(0, len(values), size=(resamples, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), [2.5, 97.5])
    return Estimate(float(values.mean()), float(low), float(high))
