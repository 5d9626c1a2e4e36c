"""Measure how well the scores of two models agree, such as those of a model and its export."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.base import Scorer
from crossknn.types import Pairs, Progress


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
    """Compare two scorers on `per_query` random items of each query: return `spearman_mean` and
    `spearman_lowest` over the queries, the `largest_difference` between two scores, and, for scale,
    the standard deviation `spread` of the reference's scores."""
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
