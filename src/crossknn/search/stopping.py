"""What predictions with deviations say of a query's top k: how much of it has been found.

Axes: k best scores, b scored items of a query, c unscored ones.
"""

from __future__ import annotations

import numpy as np

from crossknn.types import FloatArray

FAR = 5.0  # deviations after which an item is taken to be no rival
STEPS = 20  # bisections: to a millionth of the range of scores
_LEAST = np.finfo(np.float32).tiny


def expected_recall(best: FloatArray, mean: FloatArray, std: FloatArray) -> float:
    """Of the k best scores known (k,), the share that no unscored item will push out.

    `mean` and `std` (c,) are the predictions of the unscored items, taken as independent. The
    j-th best stays if at most k - j of them are above it; their number is about Poisson, its mean
    the sum of their chances.

    >>> expected_recall(np.array([2.0, 1.0]), np.array([0.0]), np.array([1e-9]))
    1.0
    """
    from scipy.special import ndtr, pdtr

    k, best = len(best), np.sort(best)[::-1]
    near = mean + FAR * std > best[-1]
    chances = ndtr((mean[near] - best[:, None]) / np.maximum(std[near], _LEAST))
    return float(pdtr(np.arange(k)[::-1], chances.sum(axis=1)).mean())


def n_uncertain(
    known: FloatArray, mean: FloatArray, std: FloatArray, k: int, tolerance: float
) -> int:
    """How many unscored items may be in the top k or not: their chance of being above the `level`
    lies between `tolerance` and 1 - `tolerance` (AcuRank, 2505.18512).

    `known` (b,) are exact scores, `mean` and `std` (c,) the predictions of the unscored items.

    >>> n_uncertain(np.array([2.0, 1.0]), np.array([1.5, -9.0]), np.array([1.0, 1.0]), 2, 0.01)
    1
    """
    from scipy.special import ndtri

    if not len(mean):
        return 0
    deviations = np.maximum(std, _LEAST, dtype=np.float64)
    z = (mean - level(known, mean, deviations, k)) / deviations
    z[np.argsort(-z, kind="stable")[: max(k - len(known), 0)]] = np.inf  # it takes them to have k
    return int(np.count_nonzero(np.abs(z) < -ndtri(tolerance)))


def level(known: FloatArray, mean: FloatArray, std: FloatArray, k: int) -> float:
    """The score above which k of all items are expected, known (b,) or not (c,); by bisection."""
    from scipy.special import ndtr

    every = np.concatenate([known, mean])
    if len(every) <= k:
        return float(every.min())
    # Half of 2 k + 1 even chances, at least, are above the lowest of them: more than k.
    if len(every) > 2 * k:
        low = -float(np.partition(-every, 2 * k)[2 * k])
    else:
        low = min(float(every.min()), float((mean - FAR * std).min()))
    high = max(float(every.max()), float((mean + FAR * std).max()))
    near = mean + FAR * std > low
    mean, std = mean[near], std[near]
    for _ in range(STEPS):
        middle = (low + high) / 2
        expected = np.count_nonzero(known > middle) + ndtr((mean - middle) / std).sum()
        low, high = (middle, high) if expected > k else (low, middle)
    return (low + high) / 2
