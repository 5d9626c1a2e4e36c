"""How near two scorers are: an exported model and the one it was made of, say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from crossknn.errors import InputError
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, Pairs, Progress


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

    Raises InputError for fewer than two items; ScorerError if a scorer fails.
    """
    n = len(items)
    per_query = min(per_query, n)
    if per_query < 2 or not len(queries):
        raise InputError("agreement needs at least one query and two items")
    generator = np.random.default_rng(seed)
    chosen = np.stack([generator.choice(n, per_query, replace=False) for _ in queries])
    pairs = Pairs(np.repeat(np.arange(len(queries)), per_query), chosen.ravel())
    tables = []
    for part, scorer in enumerate((reference, other)):
        scores = _scores(scorer, pairs, queries, items, part, progress)
        tables.append(scores.reshape(len(queries), per_query))
    return compare_tables(*tables)


def compare_tables(reference: FloatArray, other: FloatArray) -> Agreement:
    """Two score tables (m, b) of the same pairs."""
    values = [spearmanr(a, b).statistic for a, b in zip(reference, other, strict=True)]
    return Agreement(
        queries=len(reference),
        pairs=reference.size,
        spearman_mean=round(float(np.mean(values)), 6),
        spearman_lowest=round(float(np.min(values)), 6),
        largest_difference=float(np.abs(reference - other).max()),
        spread=round(float(reference.std()), 4),
    )


def _scores(
    scorer: Scorer,
    pairs: Pairs,
    queries: Sequence[str],
    items: Sequence[str],
    part: int,
    progress: Progress | None,
) -> FloatArray:
    scores = np.full(len(pairs), np.nan, dtype=np.float32)
    done = part * len(pairs)
    for positions, found in scorer.score(pairs, queries, items):
        scores[positions] = found
        done += len(positions)
        if progress:
            progress(done, 2 * len(pairs))
    if np.isnan(scores).any():
        raise InputError("some pairs could not be scored, so that the models cannot be compared")
    return scores
