"""What searches leave behind, put beside what an alignment paid for."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from crossknn.errors import InputError
from crossknn.fitting.aligner import kept
from crossknn.fitting.bank import ScoreBank
from crossknn.fitting.factorizations import Als
from crossknn.fitting.factors import Targets
from crossknn.fitting.job import BANK
from crossknn.fitting.work import read_meta, there
from crossknn.index.fitted import FittedVectors, IndexingCost
from crossknn.index.item_index import ItemIndex
from crossknn.index.sparse import SparseScores
from crossknn.methods.kriging import Prior
from crossknn.methods.kriging.fitting import check_same_scorer, fit_hyperparameters, fit_prior
from crossknn.methods.kriging.prior import RANK
from crossknn.retrievers.specs import HYBRID, unfitted
from crossknn.scorers.cache import CachedScorer
from crossknn.spec import Spec
from crossknn.types import Progress, Queries

logger = logging.getLogger(__name__)

VECTORS = "log"
"""What the item vectors are called that are fitted to a log."""


def learn_all(
    index: ItemIndex,
    fingerprint: str | None,
    cached: CachedScorer | None = None,
    *,
    retriever: Spec = HYBRID,
    rank: int = RANK,
    progress: Progress | None = None,
) -> Prior:
    """Learn from all scores that there are: what `kriging` knows, and vectors for `axn`.

    `fit_prior` with the kernel parameters that the anchors choose; and from sparse scores fitted
    vectors `log`, by alternating least squares from the index's own, unless it has others that
    were fitted on purpose. Calls no cross-encoder. Raises `InputError`, with nothing kept, for
    scores of another one than the index's, and a cache that has none of its items.
    """
    if cached is not None:
        check_same_scorer(index.scorer_of("anchors"), fingerprint, len(index.anchor_queries))
    scores = folded(index, fingerprint, cached)
    parameters = fit_hyperparameters(index, retriever, rank=rank)
    found = fit_prior(
        index, scores, retriever=retriever, rank=rank, parameters=parameters, progress=progress
    )
    base = unfitted(index)
    if len(scores) and base is not None and base in index.query_vector_names and _free(index):
        index.add_fitted(VECTORS, log_vectors(index, scores, base), replace=True)
    return found


def _free(index: ItemIndex) -> bool:
    """Whether vectors of the log would stand before no others that were fitted on purpose."""
    mine = index.fitted.get(VECTORS)
    if mine is not None:
        return bool(mine.details.get(VECTORS))
    taken = {*index.vector_names, *index.retriever_names, *index.late_names}
    return not index.fitted_names and VECTORS not in taken


def log_vectors(index: ItemIndex, scores: SparseScores, base: str) -> FittedVectors:
    """Item vectors by `als` from those named `base`, fitted to what searches n_scored.

    Their scale is that of these scores: no random pairs are among them to tell a better one.
    """
    chosen = Als()
    queries = Queries(scores.queries)
    targets = Targets.of(scores, index.vectors(base), index.query_vectors(queries, base))
    fit = chosen.fit(targets)
    cost = IndexingCost(
        queries=len(scores.scored_queries), calls=len(scores), fitting_seconds=round(fit.seconds, 3)
    )
    made = kept(str(chosen), base, fit, scores.fingerprint, cost)
    return replace(made, details={**made.details, VECTORS: True})


def folded(index: ItemIndex, fingerprint: str | None, cached: CachedScorer | None) -> SparseScores:
    """All sparse scores that the index has of this cross-encoder, those of a cache put to them.

    An index in a folder keeps them there, so that a cache is needed once, and `align` pays for none
    of them. Pairs of another cross-encoder in the index are passed over, with a warning. Raises
    `InputError` for a cache beside them, and for one that has no scores of these items.
    """
    folder = None if index.folder is None else index.folder / BANK
    if folder is not None and there(folder) and (why := _other(folder, fingerprint)):
        if cached is not None:
            raise InputError(
                f"the index keeps scores of pairs by the cross-encoder {why}, and these are of "
                f"{fingerprint}: scores of two are never mixed, so learn with that one, or build "
                "an index of its own for this one"
            )
        logger.warning("not learning from the pairs in the index: they are of %s", why)
        folder = None
    if folder is not None and cached is None and not folder.exists():
        folder = None
    queries, pairs, scores = ([], None, None) if cached is None else cached.paid(index.items.texts)
    if cached is not None and not queries:
        raise InputError(
            f"the cache has no score of these items by {fingerprint}: search this index with it "
            "first, or name the cross-encoder that it was filled with (--scorer)"
        )
    bank = ScoreBank.open(index.items.texts, fingerprint=fingerprint, folder=folder)
    if pairs is not None and scores is not None:
        bank.know(queries, bank.items, pairs, scores)
    return bank.scores(bank.queries)


def _other(folder: Path, fingerprint: str | None) -> str | None:
    """The cross-encoder of the pairs in a folder, if it is another one."""
    known = read_meta(folder).fingerprint
    return None if known == fingerprint else known
