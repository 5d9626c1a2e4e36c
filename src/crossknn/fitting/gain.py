"""What a prior learned from past searches is expected to gain, measured on the searches themselves.

A prior fitted to half of the queries predicts the other half's late scores, which are what a search
needs, from their early scores. The store does not keep the order of a search, so the late scores
are those of the items that the leading retriever ranks in the lower half. Axes: q queries.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from crossknn.index.base import Index
from crossknn.methods.gp import GaussianProcess
from crossknn.methods.kriging import Kriging
from crossknn.methods.prior import Prior, leading_retriever
from crossknn.retrievers.specs import stage_names
from crossknn.scores.sparse import SparseScores
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, FloatArray, Observed, Queries

AT_ONCE, FEWEST, SAMPLES = 64, 4, 1_000
"""Queries predicted at once, minimum number of scores of a query, number of bootstrap samples."""


class Gain(NamedTuple):
    """Share of the squared error of late scores that a prior saves, with its 95% interval."""

    mean: float
    low: float
    high: float

    @staticmethod
    def of(errors: FloatArray) -> Gain:
        """Compute the share from the queries' squared errors without and with a prior: (2, q)."""
        q = errors.shape[1]
        drawn = np.random.default_rng(0).integers(q, size=(SAMPLES, q))
        sums = np.concatenate([errors.sum(axis=1)[None], errors[:, drawn].sum(axis=2).T])
        mean, *samples = 1 - sums[:, 1] / np.maximum(sums[:, 0], np.finfo(float).tiny)
        return Gain(*np.round([mean, *np.quantile(samples, [0.025, 0.975])], 3).tolist())


def late_errors(index: Index, prior: Prior, scores: SparseScores, retriever: Spec) -> FloatArray:
    """Squared errors (2, q) of each query's late scores, as predicted from its early scores without
    and with a prior."""
    method = Kriging(mean=retriever)
    plain, informed = (method.plan_with(p, index, 1, 0).predictor for p in (None, prior))
    assert isinstance(plain, GaussianProcess)
    lead = 1 + leading_retriever(index, stage_names(index, retriever))
    chosen = scores.scored_queries
    errors = np.empty((2, len(chosen)))
    for start in range(0, len(chosen), AT_ONCE):
        rows = chosen[start : start + AT_ONCE]
        queries = Queries([scores.queries[row] for row in rows])
        began = plain.start(queries)
        parts = [slice(*scores.by_query[row : row + 2]) for row in rows]
        width = max(part.stop - part.start for part in parts)
        items = np.full((len(rows), width), NO_ITEM)
        exact = np.zeros((len(rows), width), np.float32)
        for q, part in enumerate(parts):
            asked = scores.item[part]
            by_lead = plain.basis(began, q, asked, plain.points(asked))[:, lead]
            order = np.argsort(-by_lead, kind="stable")
            items[q, : len(order)] = asked[order]
            exact[q, : len(order)] = scores.score[part][order]
        early = np.count_nonzero(items != NO_ITEM, axis=1) // 2
        late = (np.arange(width) >= early[:, None]) & (items != NO_ITEM)
        started = (plain, began), (informed, informed.start(queries))
        for row, (predictor, state) in zip(errors, started, strict=True):
            state = predictor.update(state, Observed(items, exact, early))
            squares = np.square(predictor.predict(state, items).mean - exact)
            row[start : start + len(rows)] = np.sum(squares, axis=1, where=late)
    return errors
