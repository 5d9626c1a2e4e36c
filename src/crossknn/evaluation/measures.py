"""Recall against exact search, intervals over queries, whether a difference is chance, and how near
two scorers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import top_k
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, IntArray, Pairs, Progress

_AT_ONCE = 500
"""Resamples that are drawn together: bounds the memory to so many times the queries."""


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


def recall_at(ranked: IntArray, truth: IntArray, depths: Sequence[int]) -> FloatArray:
    """Top-k-Recall@m for every m of `depths`: (q, c), (q, k) -> (len(depths), q) in 0-1.

    `ranked` is what a method retrieves, best first, padded with -1: the first m of a row are
    reranked by exact score and the top k of them kept, so that a true neighbour is found if it is
    among the m (ANNCUR 3.2, first setting; AXN 3). A row shorter than m is taken whole.

    >>> recall_at(np.array([[3, 1, 2]]), np.array([[1, 2]]), [1, 2, 9])
    array([[0. ],
           [0.5],
           [1. ]])
    """
    if not depths or min(depths) < 1:
        raise InputError(f"depths are {list(depths)}; give one or more numbers of 1 or more")
    if len(ranked) != len(truth):
        raise InputError(f"{len(ranked)} rows are ranked, and the truth is of {len(truth)} queries")
    hits = np.array([np.isin(row, true) for row, true in zip(ranked, truth, strict=True)], bool)
    found = np.cumsum(hits.reshape(ranked.shape), axis=1)
    found = np.concatenate([np.zeros((len(ranked), 1)), found], axis=1)  # where rows are empty
    return found[:, [min(depth, ranked.shape[1]) for depth in depths]].T / truth.shape[1]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over queries and its 95% bootstrap interval."""

    mean: float
    low: float
    high: float


def bootstrap(values: FloatArray, *, seed: int = 0, resamples: int = 2000) -> Estimate:
    """Mean of `values` (m,) with its 95% percentile bootstrap interval over queries.

    Raises:
        InputError: for no values, or for one that is not finite: leave out what is not known
            before, and count it.
    """
    return bootstrap_sets([values], seed=seed, resamples=resamples)


def bootstrap_sets(sets: Sequence[FloatArray], *, seed: int = 0, resamples: int = 2000) -> Estimate:
    """Mean over data sets of the means of their queries' values, each (m,), and its 95% interval.

    A data set counts once, however many queries it has; the interval is a percentile bootstrap
    that draws queries within their own set, so that it speaks of other queries of these data
    sets, not of other data sets.

    Raises:
        InputError: as `bootstrap`, and for no sets.
    """
    if not sets:
        raise InputError("there are no data sets to take the mean of")
    rng, means, drawn = np.random.default_rng(seed), [], []
    for values in map(_finite, sets):
        draws = rng.integers(0, len(values), size=(resamples, len(values)))
        means.append(float(values.mean()))
        drawn.append(values[draws].mean(axis=1))
    low, high = np.percentile(np.mean(drawn, axis=0), [2.5, 97.5])
    return Estimate(float(np.mean(means)), float(low), float(high))


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
        return int(self.p_value <= 0.05) * (int(self.low > 0) - int(self.high < 0))


def paired(
    a: FloatArray, b: FloatArray, *, seed: int = 0, resamples: int = 2000, flips: int = 10_000
) -> Comparison:
    """Compare values (m,), (m,) of the same queries, NaN where a query has none.

    The interval is a percentile bootstrap over queries. The p-value is two-sided: under the null
    hypothesis a query's difference is as likely to have either sign, so it is the share of random
    signs that give a mean as far from zero (Smucker, Allan & Carterette 2007), the observed one
    counted, so that it is never 0.

    Raises:
        InputError: where the arrays differ in length or have no query in common.
    """
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if a.shape != b.shape or a.ndim != 1:
        raise InputError(f"values to be paired have the shapes {a.shape} and {b.shape}")
    known = ~(np.isnan(a) | np.isnan(b))
    if not known.any():
        raise InputError("no query has a value on both sides, so there is nothing to compare")
    differences = a[known] - b[known]
    found = compare_sets([differences], seed=seed, resamples=resamples, flips=flips)
    return replace(found, left_out=int(np.count_nonzero(~known)))


def compare_sets(
    sets: Sequence[FloatArray], *, seed: int = 0, resamples: int = 2000, flips: int = 10_000
) -> Comparison:
    """The mean over data sets of differences (m,) of the queries of each; see `paired`.

    A data set counts once, however many queries it has.

    Raises:
        InputError: as `bootstrap_sets`.
    """
    found = bootstrap_sets(sets, seed=seed, resamples=resamples)
    n = sum(map(len, sets))
    weighted = [np.asarray(values, np.float64) * (n / (len(sets) * len(values))) for values in sets]
    return Comparison(
        difference=found.mean,
        low=found.low,
        high=found.high,
        p_value=_sign_flip(np.concatenate(weighted), seed, flips),
        n=n,
    )


def _sign_flip(differences: FloatArray, seed: int, flips: int) -> float:
    rng = np.random.default_rng([seed, 1])
    # Differences of recall are multiples of 1/k, so that equal sums must not part by rounding.
    observed = abs(float(differences.sum())) - 1e-9
    extreme = 0
    for start in range(0, flips, _AT_ONCE):
        size = (min(_AT_ONCE, flips - start), len(differences))
        signs = 2.0 * rng.integers(0, 2, size=size, dtype=np.int8) - 1.0
        extreme += int(np.count_nonzero(np.abs(signs @ differences) >= observed))
    return (1 + extreme) / (1 + flips)


def _finite(values: FloatArray) -> FloatArray:
    values = np.asarray(values, np.float64)
    if not len(values):
        raise InputError("there are no values to take the mean of")
    if not np.isfinite(values).all():
        query = int(np.flatnonzero(~np.isfinite(values))[0])
        raise InputError(f"the value of query {query} is {values[query]}, so there is no mean")
    return values


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Rank correlation of two scorers per query (mean and lowest), and their largest difference.

    `spread` is the standard deviation of the reference's scores, the unit to read it in.
    """

    queries: int
    pairs: int
    spearman_mean: float
    spearman_lowest: float
    largest_difference: float
    spread: float

    @classmethod
    def of(cls, reference: FloatArray, other: FloatArray) -> Agreement:
        """Of two score tables (m, b) of the same pairs."""
        from scipy.stats import spearmanr

        values = [spearmanr(a, b).statistic for a, b in zip(reference, other, strict=True)]
        return cls(
            queries=len(reference),
            pairs=reference.size,
            spearman_mean=round(float(np.mean(values)), 6),
            spearman_lowest=round(float(np.min(values)), 6),
            largest_difference=float(np.abs(reference - other).max()),
            spread=round(float(reference.std()), 4),
        )


def agreement(
    reference: Scorer,
    other: Scorer,
    queries: Sequence[str],
    items: Sequence[str],
    *,
    per_query: int = 100,
    seed: int = 0,
    progress: Progress | None = None,
) -> Agreement:
    """Score `per_query` random items of each query with both.

    Raises:
        InputError: for fewer than two items, and where a pair cannot be scored.
        ScorerError: if a scorer fails.
    """
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
    if np.isnan(scores).any():
        raise InputError("some pairs could not be scored, so that the models cannot be compared")
    return Agreement.of(*scores.reshape(2, len(queries), per_query))
