"""Fitting to the scores that are there: what searches, collections and fits have left in the store.

Calls no cross-encoder.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from crossknn.errors import InputError
from crossknn.fitting.factors import Targets
from crossknn.fitting.fit import ALS, fitted_vectors
from crossknn.index.item_index import ItemIndex
from crossknn.index.vectors import IndexingCost, ItemVectors
from crossknn.methods.kriging import RANK, Prior
from crossknn.methods.kriging_fit import check_same_scorer, fit_hyperparameters, fit_prior
from crossknn.retrievers.specs import HYBRID, unfitted
from crossknn.scores.store import ScoreStore, SparseScores
from crossknn.spec import Spec
from crossknn.types import Pairs, Progress, Queries

VECTORS = "log"
"""What the item vectors are called that are fitted to a log."""


def fit_from_log(
    index: ItemIndex,
    fingerprint: str | None,
    *,
    retriever: Spec = HYBRID,
    rank: int = RANK,
    progress: Progress | None = None,
) -> Prior:
    """Fit what `kriging` knows, and item vectors for `axn`, to all scores of a cross-encoder.

    `fingerprint` names it; the scores are those of the index's store. Kriging's prior has the
    kernel parameters that the anchors choose. A query that has all its scores is an anchor, or was
    scored to be compared with: nothing is fitted to the latter. Scores of other queries also
    give fitted vectors `log`, by alternating least squares from the index's own, unless it has
    others that were fitted on purpose.

    Raises InputError for scores of another cross-encoder than the anchors', and if there are none.
    """
    check_same_scorer(index.scorer_of("anchors"), fingerprint, len(index.anchor_queries))
    log = index.scores.log(fingerprint or "", index.items.texts)
    anchors = set(index.anchor_queries)
    anchored = np.array([text in anchors for text in log.queries], np.bool_)
    dense = (np.diff(log.by_query) == index.n) | anchored
    scores = log.take(~dense[log.query])
    parameters = fit_hyperparameters(index, retriever, rank=rank)
    found = fit_prior(
        index, scores, retriever=retriever, rank=rank, parameters=parameters, progress=progress
    )
    base = unfitted(index)
    if len(scores) and base is not None and index.has_query_vectors(base) and _free(index):
        index.add_fitted(VECTORS, log_vectors(index, scores, base), replace=True)
    return found


def log_vectors(index: ItemIndex, scores: SparseScores, base: str) -> ItemVectors:
    """Item vectors by `als` from those named `base`, fitted to what searches have scored.

    Their scale is that of these scores: no random pairs are among them to tell a better one.
    """
    chosen, queries = ALS(), index.query_vectors(Queries(scores.queries), base)
    found = chosen.factorize(Targets.of(scores, index.vectors[base], queries))
    cost = IndexingCost(
        queries=len(scores.scored_queries),
        calls=len(scores),
        fitting_seconds=round(found.seconds, 3),
    )
    made = fitted_vectors(str(chosen), base, found, scores.fingerprint, cost)
    return replace(made, details={**made.details, VECTORS: True})


def add_scores(index: ItemIndex, store: ScoreStore, fingerprint: str) -> int:
    """Take the scores of the index's items from another store; returns how many were new.

    Raises InputError if it has none by this cross-encoder.
    """
    items = index.items.texts
    log = store.log(fingerprint, items)
    if not len(log):
        raise InputError(
            f"the cache has no score of these items by {fingerprint}: search this index with it "
            "first, or name the cross-encoder that it was filled with (--scorer)"
        )
    return index.scores.put(fingerprint, log.queries, items, Pairs(log.query, log.item), log.score)


def _free(index: ItemIndex) -> bool:
    """Whether vectors of the log would stand before no others that were fitted on purpose."""
    mine = index.fitted.get(VECTORS)
    if mine is not None:
        return bool(mine.details.get(VECTORS))
    return not (index.fitted or VECTORS in {*index.vectors, *index.retrievers, *index.late})
