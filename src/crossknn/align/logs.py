"""What searches leave behind, put beside what an alignment paid for."""

from __future__ import annotations

from crossknn.align.bank import ScoreBank
from crossknn.align.job import BANK
from crossknn.indexes.covariance import RANK
from crossknn.indexes.item_index import ItemIndex
from crossknn.indexes.learned import Learned
from crossknn.indexes.sparse import SparseScores
from crossknn.indexes.stages import HYBRID
from crossknn.methods.fitting import choose
from crossknn.scorers.cache import CachedScorer
from crossknn.spec import Spec
from crossknn.types import Progress


def learn_all(
    index: ItemIndex,
    fingerprint: str | None,
    cached: CachedScorer | None = None,
    *,
    first: Spec = HYBRID,
    rank: int = RANK,
    progress: Progress | None = None,
) -> Learned:
    """`ItemIndex.learn` from all scores that there are, with the settings that its anchors choose.

    Costs what `folded`, `choose` and `ItemIndex.learn` do, and no cross-encoder calls.
    """
    scores = folded(index, fingerprint, cached)
    settings = choose(index, first, rank=rank)
    return index.learn(scores, first=first, rank=rank, settings=settings, progress=progress)


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
