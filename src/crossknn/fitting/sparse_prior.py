"""Fit kriging's prior to the scores of past searches.

Every query's missing scores are predicted from all scores (`multitask`), and the prior is fitted to
all of them like to anchors. Predicted scores vary less than exact ones, so the residuals' variance
is that of the exact scores.

Axes: q queries with scores, e scores, n items, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from crossknn.errors import InputError
from crossknn.files import scratch
from crossknn.fitting.dense_prior import RANK, fit_dense
from crossknn.fitting.multitask import Known, complete, groups
from crossknn.methods.prior import Prior, level_trend
from crossknn.scores.sparse import SparseScores
from crossknn.types import FloatArray, Progress


def fit_sparse(
    scores: SparseScores,
    cheap: Sequence[FloatArray],
    vectors: FloatArray,
    query_vectors: FloatArray | None = None,
    *,
    lead: int = 0,
    rank: int = RANK,
    progress: Progress | None = None,
) -> Prior:
    """Fit a prior like that of `fit_dense` to exact scores of e pairs.

    `cheap` are each retriever's scores (q, n) of the queries that have exact scores, standardised,
    and `query_vectors` (q, d) those queries' vectors; item vectors are (n, d). `progress` is called
    with (queries done, q).
    """
    chosen = scores.scored_queries
    if len(chosen) < 2:
        raise InputError(
            "kriging cannot be fitted to the scores of a single query: search more queries, or use "
            "kriging(use_anchors=false)"
        )
    known = []
    for row, q in enumerate(chosen.tolist()):
        part = slice(scores.by_query[q], scores.by_query[q + 1])
        items = scores.item[part]
        of_items = np.stack([stage[row, items] for stage in cheap], axis=1)
        known.append(Known(items, scores.score[part], of_items))
    completed, done = scratch((len(known), scores.n)), 0
    order = np.random.default_rng(0).permutation(len(known))
    for group in groups(order, [each.items for each in known]):
        own = None if query_vectors is None else query_vectors[group]
        stages = [stage[group] for stage in cheap]
        completed[group] = complete([known[q] for q in group], stages, vectors, own)
        done += len(group)
        if progress:
            progress(done, len(known))
    prior = fit_dense(completed, cheap, vectors, query_vectors, lead=lead, rank=rank)
    trends = [level_trend(len(prior.trends[0].columns)), *prior.trends]
    return replace(prior, trends=trends, variance=_variance(known))


def _variance(known: Sequence[Known]) -> float:
    """The mean square of what one weight per retriever for all queries leaves of the scores."""
    values = [np.column_stack([each.columns, each.scores]).astype(np.float64) for each in known]
    *cheap, scores = np.concatenate([each - each.mean(axis=0) for each in values]).T
    columns = np.stack(cheap, axis=1)
    weights = np.linalg.lstsq(columns, scores, rcond=1e-9)[0]
    return float(np.mean(np.square(scores - columns @ weights)))
