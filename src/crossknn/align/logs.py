"""What searches leave behind, put beside what an alignment paid for."""

from __future__ import annotations

from crossknn.align.aligner import kept
from crossknn.align.bank import ScoreBank
from crossknn.align.factorizations import Als
from crossknn.align.factors import Targets
from crossknn.align.job import BANK
from crossknn.indexes.aligned import AlignedVectors, IndexingCost
from crossknn.indexes.covariance import RANK
from crossknn.indexes.item_index import ItemIndex
from crossknn.indexes.learned import Learned
from crossknn.indexes.sparse import SparseScores
from crossknn.indexes.stages import HYBRID, unaligned
from crossknn.methods.fitting import choose
from crossknn.scorers.cache import CachedScorer
from crossknn.spec import Spec
from crossknn.types import Progress, Queries

VECTORS = "log"
"""What the item vectors are called that are fitted to a log."""


def learn_all(
    index: ItemIndex,
    fingerprint: str | None,
    cached: CachedScorer | None = None,
    *,
    first: Spec = HYBRID,
    rank: int = RANK,
    progress: Progress | None = None,
) -> Learned:
    """Learn from all scores that there are: what `kriging` knows, and vectors for `axn`.

    `ItemIndex.learn` with the settings that the anchors choose; and from sparse scores aligned
    vectors `log`, by alternating least squares from the index's own. Calls no cross-encoder.
    """
    scores = folded(index, fingerprint, cached)
    settings = choose(index, first, rank=rank)
    found = index.learn(scores, first=first, rank=rank, settings=settings, progress=progress)
    base = unaligned(index)
    if len(scores) and base is not None and base in index.query_vector_names:
        index.add_aligned(VECTORS, log_vectors(index, scores, base), replace=True)
    return found


def log_vectors(index: ItemIndex, scores: SparseScores, base: str) -> AlignedVectors:
    """Item vectors by `als` from those named `base`, fitted to what searches revealed.

    Their scale is that of these scores: no random pairs are among them to tell a better one.
    """
    chosen = Als()
    queries = Queries(scores.queries)
    targets = Targets.of(scores, index.vectors(base), index.query_vectors(queries, base))
    fit = chosen.fit(targets)
    cost = IndexingCost(
        queries=len(scores.scored_queries), calls=len(scores), fitting_seconds=round(fit.seconds, 3)
    )
    return kept(str(chosen), base, fit, scores.fingerprint, cost)


def folded(index: ItemIndex, fingerprint: str | None, cached: CachedScorer | None) -> SparseScores:
    """All sparse scores that the index has of this cross-encoder, those of a cache put to them.

    An index in a folder keeps them there, so that a cache is needed once, and `align` pays for none
    of them. Raises `InputError` for scores of another cross-encoder in the index.
    """
    folder = None if index.folder is None else index.folder / BANK
    if folder is not None and cached is None and not folder.exists():
        folder = None
    bank = ScoreBank.open(index.items.texts, fingerprint=fingerprint, folder=folder)
    if cached is not None:
        queries, pairs, scores = cached.paid(index.items.texts)
        if len(pairs):
            bank.know(queries, bank.items, pairs, scores)
    return bank.scores(bank.queries)
