"""Recall against exact search, intervals over queries, whether a difference is chance, and how near
two scorers are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, IntArray, Pairs, Progress

CLEAR = 0.05
"""The p-value up to which a difference is clear."""

_FLIPS, _AT_ONCE = 10_000, 500
"""Random signs of the paired test, and how many are drawn together, which bounds the memory."""


def recall(found: IntArray, truth: IntArray) -> FloatArray:
    """Share of the true neighbours that were found, per query: (m, c), (m, k) -> (m,) in 0-1.

    Rows of `found` may be padded with -1; k is that of `truth` (Top-k-Recall, ANNCUR 3). Of the
    first m items of a ranking this is Top-k-Recall@m (ANNCUR 3.2, first setting; AXN 3).

    >>> recall(np.array([[3, 1, -1]]), np.array([[1, 2]]))
    array([0.5])
    """
    hits = [np.isin(t, f).sum() for f, t in zip(found, truth, strict=True)]
    return np.array(hits, dtype=np.float64) / truth.shape[1]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over the `n` queries that have a value, and its 95% bootstrap interval."""

    mean: float
    low: float
    high: float
    n: int = 0


def bootstrap(*sets: FloatArray, seed: int = 0, resamples: int = 2000) -> Estimate:
    """Mean over data sets of the means of their queries' values, each (m,), and its 95% interval.

    A data set counts once, however many queries it has; the interval is a percentile bootstrap
    that draws queries within their own set, so that it speaks of other queries of these data
    sets, not of other data sets. NaN are left out; the mean of a set without values is NaN.
    """
    known = [values[~np.isnan(values)] for values in map(np.asarray, sets)]
    n = sum(map(len, known))
    if not known or not all(map(len, known)):
        return Estimate(np.nan, np.nan, np.nan, n)
    rng, drawn = np.random.default_rng(seed), []
    for values in known:
        draws = rng.integers(0, len(values), size=(resamples, len(values)))
        drawn.append(values[draws].mean(axis=1))
    low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5])
    mean = np.mean([values.mean() for values in known])
    return Estimate(float(mean), float(low), float(high), n)


def bootstrap_ratio(parts: FloatArray, wholes: FloatArray, *, seed: int = 0) -> Estimate:
    """Sum of parts (m,) over sum of wholes (m,), NaN in the place of queries that do not count.

    The interval is a percentile bootstrap over queries. NaN, of 0 queries, if all wholes are 0.
    """
    parts, wholes = (values[wholes > 0] for values in (parts, wholes))
    if not len(wholes):
        return Estimate(np.nan, np.nan, np.nan)
    draws = np.random.default_rng(seed).integers(0, len(wholes), size=(2000, len(wholes)))
    ratios = parts[draws].sum(axis=1) / wholes[draws].sum(axis=1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    return Estimate(float(parts.sum() / wholes.sum()), float(low), float(high), len(wholes))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several tests, corrected so that one of them is false in 5% at most (Holm 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    order, left = np.argsort(p_values, kind="stable"), np.arange(len(p_values), 0, -1)
    steps = np.minimum(1, np.maximum.accumulate(np.asarray(p_values)[order] * left))
    return [float(steps[place]) for place in np.argsort(order)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How much better one method is than another on the same queries.

    `difference` is the mean over the `n` queries of a - b, `low` and `high` its 95% bootstrap
    interval, `p_value` that of the sign-flip test. `left_out` queries have no value on a side.
    """

    difference: float
    low: float
    high: float
    p_value: float
    n: int
    left_out: int = 0

    @property
    def sign(self) -> int:
        """1 if clearly better, -1 if clearly worse, 0 if these queries do not say.

        Clearly: the interval is on one side of zero, and the p-value is at most 0.05. Either alone
        comes about too easily where few queries differ.
        """
        return int(self.p_value <= CLEAR) * (int(self.low > 0) - int(self.high < 0))


def paired(*sets: FloatArray, seed: int = 0) -> Comparison:
    """Test differences a - b (m,) of the same queries, NaN where a query has no value on a side.

    Of several data sets it is the mean of their means, as `bootstrap` takes it. The p-value is
    two-sided: under the null hypothesis a query's difference is as likely to have either sign, so
    it is the share of random signs that give a mean as far from zero (Smucker, Allan & Carterette
    2007), the observed one counted, so that it is never 0.

    Raises:
        InputError: where no query of a set has a value on both sides.
    """
    found = bootstrap(*sets, seed=seed)
    if np.isnan(found.mean):
        raise InputError("no query has a value on both sides, so there is nothing to compare")
    known = [values[~np.isnan(values)] for values in sets]
    weighted = np.concatenate([v * (found.n / (len(sets) * len(v))) for v in known])
    rng = np.random.default_rng([seed, 1])
    # Differences of recall are multiples of 1/k, so that equal sums must not part by rounding.
    observed = abs(float(weighted.sum())) - 1e-9
    extreme = 0
    for _ in range(0, _FLIPS, _AT_ONCE):
        signs = 2.0 * rng.integers(0, 2, size=(_AT_ONCE, len(weighted)), dtype=np.int8) - 1.0
        extreme += int(np.count_nonzero(np.abs(signs @ weighted) >= observed))
    return Comparison(
        difference=found.mean,
        low=found.low,
        high=found.high,
        p_value=(1 + extreme) / (1 + _FLIPS),
        n=found.n,
        left_out=sum(map(len, sets)) - found.n,
    )


def fewest_queries(claims: int = 1) -> int:
    """How many queries are needed so that a difference can be clear, where all of them agree: of n
    signs two in 2^n are as extreme, and Holm's correction multiplies that by the claims.

    >>> fewest_queries(), fewest_queries(4)
    (6, 8)
    """
    return 1 + math.ceil(math.log2(claims / CLEAR))


def agreement(
    reference: Scorer,
    other: Scorer,
    queries: Sequence[str],
    items: Sequence[str],
    *,
    per_query: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Score `per_query` random items of each query with two scorers, and say how near they are.

    Returns:
        `spearman_mean` and `spearman_lowest` over the queries, `largest_difference` of two scores,
        and the reference's standard deviation, `spread`, as the unit to read it in.

    Raises:
        InputError: for fewer than two items.
        ScorerError: if a scorer fails.
    """
    from scipy.stats import spearmanr

    per_query = min(per_query, len(items))
    if per_query < 2 or not len(queries):
        raise InputError("agreement needs at least one query and two items")
    generator = np.random.default_rng(seed)
    chosen = [generator.choice(len(items), per_query, replace=False) for _ in queries]
    pairs = Pairs(np.repeat(np.arange(len(queries)), per_query), np.concatenate(chosen))
    scores, done = np.full((2, len(pairs)), np.nan, np.float32), 0
    for row, scorer in zip(scores, (reference, other), strict=True):
        for positions, found in scorer.score(pairs, queries, items):
            row[positions] = found
            done += len(positions)
            if progress:
                progress(done, 2 * len(pairs))
    ours, theirs = scores.reshape(2, len(queries), per_query)
    values = [spearmanr(a, b).statistic for a, b in zip(ours, theirs, strict=True)]
    return {
        "queries": len(queries),
        "pairs": len(pairs),
        "spearman_mean": round(float(np.mean(values)), 6),
        "spearman_lowest": round(float(np.min(values)), 6),
        "largest_difference": float(np.abs(ours - theirs).max()),
        "spread": round(float(ours.std()), 4),
    }
