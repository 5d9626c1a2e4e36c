"""How much of the true top k is found already: what predictions with deviations say of it."""

from __future__ import annotations

from math import lgamma

import numpy as np

from crossknn.types import FloatArray

FAR = 5.0
"""Deviations after which an item is taken to be no rival."""


def expected_recall(best: FloatArray, mean: FloatArray, std: FloatArray) -> float:
    """Of the k best scores known (k,), the share that no unscored item will push out.

    `mean` and `std` (c,) are the predictions of the unscored items, taken as independent. The
    j-th best stays if at most k - j of them are above it; their number is about Poisson, its mean
    the sum of their chances.

    >>> expected_recall(np.array([2.0, 1.0]), np.array([0.0]), np.array([1e-9]))
    1.0
    """
    k, best = len(best), np.sort(best)[::-1]
    near = mean + FAR * std > best[-1]
    if not near.any():
        return 1.0
    deviations = np.maximum(std[near], np.finfo(np.float32).tiny)
    above = normal_cdf((mean[near] - best[:, None]) / deviations).sum(axis=1)
    counts = np.arange(k)
    factorials = np.array([lgamma(count + 1) for count in counts])
    powers = counts * np.log(np.maximum(above, np.finfo(np.float64).tiny))[:, None]
    chances = np.exp(powers - above[:, None] - factorials)
    stays = np.where(counts <= k - 1 - counts[:, None], chances, 0).sum(axis=1)
    return float(stays.mean())


def normal_cdf(values: FloatArray) -> FloatArray:
    """Of the standard normal distribution, to 1e-7 (Abramowitz and Stegun 26.2.17)."""
    size = np.abs(values)
    t = 1 / (1 + 0.2316419 * size)
    series = t * (
        0.319381530 + t * (-0.356563782 + t * (1.781477937 + t * (-1.821255978 + t * 1.330274429)))
    )
    tail = np.exp(-(size**2) / 2) / np.sqrt(2 * np.pi) * series
    return np.where(values > 0, 1 - tail, tail)
