"""Recall against exact search, confidence intervals over queries, and significance tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from crossknn.errors import InputError
from crossknn.types import FloatArray, IntArray

CLEAR = 0.05
"""The largest p-value at which a difference counts as clear."""

_FLIPS, _AT_ONCE = 10_000, 500
"""Number of random sign vectors in the paired test, and the number drawn at once to save memory."""


def recall(items: IntArray, truth: IntArray) -> FloatArray:
    """Compute, per query, the share of the true top k among the items, Top-k-Recall (ANNCUR 3.2):
    (m, c), (m, k) -> (m,); rows of both may be padded with -1.

    >>> recall(np.array([[3, 1, -1]]), np.array([[1, 2]]))
    array([0.5])
    """
    known = [row[row >= 0] for row in truth]
    both = zip(items, known, strict=True)
    return np.array([np.isin(true, row).sum() / max(1, len(true)) for row, true in both], float)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over the `n` queries that have a value, and its 95% bootstrap interval."""

    mean: float
    low: float
    high: float
    n: int = 0


def bootstrap(*sets: FloatArray, seed: int = 0, resamples: int = 2000) -> Estimate:
    """Compute the mean of the data sets' means over queries' values (m,), NaN left out, with a 95%
    percentile bootstrap interval. It draws queries within their own set, so it applies to other
    queries of these data sets, not to other data sets."""
    valued = [values[~np.isnan(values)] for values in map(np.asarray, sets)]
    n = sum(map(len, valued))
    if not valued or not all(map(len, valued)):
        return Estimate(np.nan, np.nan, np.nan, n)
    rng, drawn = np.random.default_rng(seed), []
    for values in valued:
        draws = rng.integers(0, len(values), size=(resamples, len(values)))
        drawn.append(values[draws].mean(axis=1))
    low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5])
    mean = np.mean([values.mean() for values in valued])
    return Estimate(float(mean), float(low), float(high), n)


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests for the risk that any of them errs (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order, left = np.argsort(p_values, kind="stable"), np.arange(len(p_values), 0, -1)
    steps = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[order] * left))
    return [float(steps[place]) for place in np.argsort(order)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The difference between two methods on the same queries.

    `difference` is the mean of a - b over `n` queries, `low` to `high` its 95% bootstrap interval,
    `p_value` that of the sign-flip test. `left_out` queries have no value for a or for b.
    """

    difference: float
    low: float
    high: float
    p_value: float
    n: int
    left_out: int = 0

    @property
    def sign(self) -> int:
        """Return 1 if clearly better, -1 if clearly worse, 0 if these queries cannot tell.

        A difference is clear if the interval is on one side of zero and the p-value is at most
        0.05. If few queries differ, either condition alone is met too easily.
        """
        return int(self.p_value <= CLEAR) * (int(self.low > 0) - int(self.high < 0))

    def needed(self, claims: int = 1) -> float:
        """Estimate how many queries make such a difference clear with a probability of 80%, if so
        many claims are tested; infinite if it is not above 0."""
        if self.difference <= 0:
            return math.inf
        # ((z + power) s / d)^2 + z^2 / 2 (Guenther 1981), for a mean d and a standard deviation s.
        z, power, width = map(NormalDist().inv_cdf, (1 - CLEAR / claims / 2, 0.8, 0.975))
        s = (self.high - self.low) / 2 / width * self.n / math.sqrt(max(1, self.n - 1))
        return max(((z + power) * s / self.difference) ** 2 + z**2 / 2, fewest_queries(claims))

    def __str__(self) -> str:
        return f"{self.difference:+.3f} [{self.low:+.3f}, {self.high:+.3f}]"


def paired(*sets: FloatArray, seed: int = 0) -> Comparison:
    """Test differences a - b (m,) on the same queries, NaN for a query without a value of a or b.

    The p-value is two-sided. Under the null hypothesis either sign of a difference is equally
    likely, so the p-value is the share of random signs that give a mean as far from zero (Smucker,
    Allan & Carterette 2007). Raises `InputError` if a data set has only NaN.
    """
    estimate = bootstrap(*sets, seed=seed)
    if np.isnan(estimate.mean):
        raise InputError("no query has a value for both methods, so there is nothing to compare")
    valued = [values[~np.isnan(values)] for values in sets]
    # Every data set has the same weight, however many queries it has.
    weighted = np.concatenate([v * (estimate.n / (len(sets) * len(v))) for v in valued])
    rng = np.random.default_rng([seed, 1])
    # Differences of recall are multiples of 1/k: equal sums must count as equal despite rounding.
    observed = abs(float(weighted.sum())) - 1e-9
    extreme = 0
    for _ in range(0, _FLIPS, _AT_ONCE):
        signs = 2.0 * rng.integers(0, 2, size=(_AT_ONCE, len(weighted)), dtype=np.int8) - 1.0
        extreme += int(np.count_nonzero(np.abs(signs @ weighted) >= observed))
    return Comparison(
        difference=estimate.mean,
        low=estimate.low,
        high=estimate.high,
        p_value=(1 + extreme) / (1 + _FLIPS),
        n=estimate.n,
        left_out=sum(map(len, sets)) - estimate.n,
    )


def fewest_queries(claims: int = 1) -> int:
    """Return the minimum number of queries for a clear difference, if all agree in its sign.

    >>> fewest_queries(), fewest_queries(4)
    (6, 8)
    """
    # Two of 2^n sign combinations are as extreme as equal signs; Holm multiplies by the claims.
    return 1 + math.ceil(math.log2(claims / CLEAR))
