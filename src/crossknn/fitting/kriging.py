"""Fit kriging's prior to all exact scores of other queries in an index, and measure what it gains.

A prior fitted to half of the queries predicts the other half's late scores, which are what a search
needs, from their early scores. The store does not keep the order of a search, so the late scores
are those of items that the leading retriever ranks in the lower half. Axes: q queries, p priors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from crossknn.errors import InputError
from crossknn.files import scratch
from crossknn.fitting.prior import fit_dense, fit_sparse
from crossknn.index.base import Index, lacking
from crossknn.index.item_index import ItemIndex
from crossknn.index.nearest import LARGE
from crossknn.linalg import standardised
from crossknn.methods.gp import GaussianProcess
from crossknn.methods.kriging import Kriging, compared_vectors, points_of
from crossknn.methods.prior import NAME, Prior, possible_leads, stored_prior, trend_retrievers
from crossknn.retrievers.specs import (
    default_vectors,
    encoders,
    retriever_scores,
    stage_names,
    unfitted,
)
from crossknn.scores.sparse import SparseScores
from crossknn.spec import Spec, parse
from crossknn.types import NO_ITEM, FloatArray, IntArray, Observed, Progress, Queries

SEED, _QUERIES_AT_ONCE = 0, 64

FEWEST, SAMPLES = 4, 1_000
"""Minimum number of a query's scores for measuring the gain, and number of bootstrap samples."""

CAUTION = 0.5
"""Share of the mean scores' expected weight that is kept if this predicts better than all of it."""

TEACHING_ANCHORS = 10
"""With at least this many anchors, the prior is fitted to anchors only, not to past searches."""

PER_ITEM = 1 / 8
"""Minimum number of scores per item of the index from which searches teach. With fewer, or with
fewer than `FEWEST_SCORES` per query, what is learned lost up to three points of recall."""


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


def fit_prior(
    index: ItemIndex,
    scores: SparseScores | None = None,
    *,
    retriever: str | Spec | None = None,
    stored: int = 0,
    progress: Progress | None = None,
) -> Prior:
    """Fit kriging's prior to the index's anchors, or to `scores` if it has fewer than ten anchors,
    and store it in the index.

    Args:
        index, scores: The items, and one cross-encoder's scores of queries that are not anchors.
        retriever: Retrievers whose scores the trends use; by default those of the index's prior, or
            else BM25 and vectors.
        stored: Number of searched queries' scores in the store, noted in the prior.
        progress: Called with (steps done, maximum number of steps).
    """
    anchors = index.artifacts.get("anchors")
    of_anchors = None if anchors is None else anchors.meta.get("fingerprint")
    fingerprint = of_anchors if scores is None else scores.fingerprint
    index = index.for_scorer(fingerprint)
    prior = prior_of(index, scores, retriever=retriever, progress=progress)
    prior = with_gain(index, scores, prior) if scores and prior.from_searches else prior
    prior = replace(prior, fingerprint=fingerprint, stored=stored)
    index.put_artifact(NAME, *prior.kept())
    if index.n >= LARGE and find_spec("faiss") is not None:
        add_points(index)
    return prior


def prior_of(
    index: Index,
    scores: SparseScores | None = None,
    *,
    retriever: str | Spec | None = None,
    progress: Progress | None = None,
) -> Prior:
    """Fit the prior of `fit_prior` without storing it."""
    if retriever is None:
        before = stored_prior(index)
        retriever = trend_retrievers(index) if before is None else before.retriever
    retriever = parse(retriever) if isinstance(retriever, str) else retriever
    if not index.vectors:
        raise InputError("kriging needs item vectors: build the index with some")
    count = 0 if index.anchors is None else len(index.anchors.scores)
    if count and (count >= TEACHING_ANCHORS or not scores):
        prior = _of_anchors(index, retriever, progress=progress)
        return replace(prior, queries=count, pairs=count * index.n, n_anchor_queries=count)
    if scores:
        return _of_searches(index, scores, retriever, progress)
    raise InputError(
        f"the index has no scores to fit to{lacking(index, 'anchors')}: search it, "
        "or score anchor queries with  crossknn collect INDEX --anchors QUERIES"
    )


def with_gain(index: Index, scores: SparseScores, prior: Prior) -> Prior:
    """Return the prior with its `gain` and the weight of the mean scores that predicts better,
    measured with priors fitted to half of the queries; unchanged if there are too few queries."""
    scores = scores.take(np.diff(scores.by_query)[scores.query] >= FEWEST)
    chosen, spec = scores.scored_queries, parse(prior.retriever)
    if len(chosen) < 4:
        return prior

    def cautious(given: Prior) -> Prior:  # the mean scores are the last column
        shares = np.append(np.ones(len(given.trends[0].mean) - 1), CAUTION)
        return replace(given, trends=[t._replace(mean=shares * t.mean) for t in given.trends])

    errors = np.empty((3, len(chosen)))
    for half in (0, 1):
        inside = np.isin(scores.query, chosen[half::2])
        other = prior_of(index, scores.take(~inside), retriever=spec)
        priors = None, other, cautious(other)
        errors[:, half::2] = late_errors(index, priors, scores.take(inside), spec)
    if errors[2].sum() < errors[1].sum():
        prior, errors = cautious(prior), errors[[0, 2]]
    return replace(prior, gain=Gain.of(errors[:2]))


def late_errors(
    index: Index, priors: Sequence[Prior | None], scores: SparseScores, retriever: Spec
) -> FloatArray:
    """Squared errors (p, q) of each query's late scores, as predicted from its early scores with
    each prior, or without one."""
    method = Kriging(mean=retriever)
    plain, *_ = predictors = [method.plan_with(p, index, 1, 0).predictor for p in priors]
    assert isinstance(plain, GaussianProcess)
    lead = 1 + possible_leads(index, stage_names(index, retriever))[0]
    chosen = scores.scored_queries
    errors = np.empty((len(priors), len(chosen)))
    for start in range(0, len(chosen), _QUERIES_AT_ONCE):
        rows = chosen[start : start + _QUERIES_AT_ONCE]
        queries = Queries([scores.queries[row] for row in rows])
        states = [predictor.start(queries) for predictor in predictors]
        parts = [slice(*scores.by_query[row : row + 2]) for row in rows]
        width = max(part.stop - part.start for part in parts)
        items = np.full((len(rows), width), NO_ITEM)
        exact = np.zeros((len(rows), width), np.float32)
        for q, part in enumerate(parts):
            asked = scores.item[part]
            by_lead = plain.basis(states[0], q, asked, plain.points(asked))[:, lead]
            order = np.argsort(-by_lead, kind="stable")
            items[q, : len(order)] = asked[order]
            exact[q, : len(order)] = scores.score[part][order]
        early = np.count_nonzero(items != NO_ITEM, axis=1) // 2
        late = (np.arange(width) >= early[:, None]) & (items != NO_ITEM)
        for row, predictor, state in zip(errors, predictors, states, strict=True):
            state = predictor.update(state, Observed(items, exact, early))
            squares = np.square(predictor.predict(state, items).mean - exact)
            row[start : start + len(rows)] = np.sum(squares, axis=1, where=late)
    return errors


def cross_fitted(index: Index, retriever: Spec, folds: int) -> Iterator[tuple[IntArray, Prior]]:
    """Yield each fold of the anchor queries, as positions, and the prior fitted to the others."""
    assert index.anchors is not None
    rows = np.arange(len(index.anchors.scores))
    cheap = retriever_scores(index, retriever, index.anchors.queries, SEED)
    for fold in np.array_split(rows, min(folds, len(rows))):
        yield fold, _of_anchors(index, retriever, np.setdiff1d(rows, fold), cheap)


def add_points(index: ItemIndex, progress: Progress | None = None) -> None:
    """Build the approximate index of the items' points, if there is a prior, so that the time of a
    search round depends on the pool, not on all items."""
    if (prior := stored_prior(index)) is not None:
        points = points_of(index, prior, compared_vectors(index, prior))
        index.add_nearest(NAME, points, progress=progress)


def _of_anchors(
    index: Index,
    retriever: Spec,
    rows: IntArray | None = None,
    cheap: Sequence[FloatArray] | None = None,
    progress: Progress | None = None,
) -> Prior:
    """Fit to the anchor queries at the positions `rows`, by default to all. `cheap` are the
    retrievers' scores (k_q, n) of all anchor queries."""
    assert index.anchors is not None
    queries, scores = index.anchors.queries, index.anchors.scores
    cheap = retriever_scores(index, retriever, queries, SEED) if cheap is None else cheap
    names = stage_names(index, retriever)
    lead = _chosen_lead(possible_leads(index, names), cheap, scores, rows)
    vectors, space = _space(index, names[lead])
    own = None if space is None else index.query_vectors(queries, space)
    prior = fit_dense(
        scores, cheap, index.vectors[vectors], own, lead=lead, rows=rows, progress=progress
    )
    return replace(prior, space=space, retriever=str(retriever))


def _of_searches(
    index: Index, scores: SparseScores, retriever: Spec, progress: Progress | None
) -> Prior:
    queries = Queries([scores.queries[row] for row in scores.scored_queries])
    names = stage_names(index, retriever)
    # The scored items are the best by the leading retriever, so it is not chosen by their scores.
    lead = possible_leads(index, names)[0]
    vectors, space = _space(index, names[lead])
    cheap = [scratch((len(queries), index.n)) for _ in names]
    for start in range(0, len(queries), _QUERIES_AT_ONCE):
        rows = np.arange(start, min(start + _QUERIES_AT_ONCE, len(queries)))
        some = retriever_scores(index, retriever, queries.take(rows), SEED)
        for stage, of_some in zip(cheap, some, strict=True):
            stage[rows] = standardised(of_some)
    own = None if space is None else index.query_vectors(queries, space)
    prior = fit_sparse(scores, cheap, index.vectors[vectors], own, lead=lead, progress=progress)
    prior = replace(prior, space=space, retriever=str(retriever))
    return replace(prior, queries=len(queries), pairs=len(scores))


def _chosen_lead(
    leads: Sequence[int], cheap: Sequence[FloatArray], exact: FloatArray, rows: IntArray | None
) -> int:
    """Return the position of the retriever, among `leads`, whose scores have the highest mean
    correlation with the exact scores of the anchors at `rows`."""
    if len(leads) == 1:
        return leads[0]
    units = {q: standardised(exact[q]) for q in (range(len(exact)) if rows is None else rows)}
    sums = [sum(float(standardised(cheap[r][q]) @ units[q]) for q in units) for r in leads]
    return leads[int(np.argmax(sums))]


def _space(index: Index, lead: str) -> tuple[str, str | None]:
    """Return the name of the vectors that smooth the factors, those of the encoder `lead` or the
    default, and of those that describe queries: the same, or None if queries have no such ones."""
    is_encoder = lead in index.vectors and lead in encoders(index)
    name = lead if is_encoder else unfitted(index) or default_vectors(index)
    return name, name if index.has_query_vectors(name) else None
