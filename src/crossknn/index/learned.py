"""What an index has learned from all scores at hand: kriging's covariance, kept with the items."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.index.covariance import RANK, Covariance
from crossknn.index.factor_model import covariance_of
from crossknn.index.settings import Settings
from crossknn.index.sparse import SparseScores
from crossknn.index.storage import IndexReader
from crossknn.index.writing import IndexWriter
from crossknn.retrievers.fusion import stages_of
from crossknn.retrievers.specs import (
    default_vectors,
    open_retriever,
    retriever_scores,
    stage_names,
    unfitted,
)
from crossknn.spec import Spec, parse
from crossknn.types import FloatArray, Progress, Queries

LEARNED = "learned"
"""Its name in an index."""

_AT_ONCE = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """A covariance for searches that begin with `retriever`, and what it was made of.

    `pairs` exact scores of `queries` train queries, the `anchors` among them with every item;
    `fingerprint` names the cross-encoder. `settings` are kriging's, where a search gives none.
    """

    covariance: Covariance
    retriever: str
    fingerprint: str | None
    queries: int
    pairs: int
    anchors: int
    settings: Settings = field(default_factory=Settings)

    @classmethod
    def of(
        cls,
        index: Index,
        scores: SparseScores,
        fingerprint: str | None,
        retriever: Spec,
        *,
        rank: int = RANK,
        settings: Settings | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Prior:
        """From sparse scores and those of the index's anchor queries, if there are any.

        Costs what `covariance_of` does, or without sparse scores `Covariance.of`. Raises
        `InputError` for fewer than two queries.
        """
        anchors, dense = index.anchors, None
        if rank < 1:
            raise InputError(f"rank is {rank}; it must be 1 or more")
        if not index.vector_names:
            raise InputError("kriging needs item vectors: build the index with some")
        if anchors is None and not len(scores):
            raise InputError(
                "the index has nothing to learn from: search with  --cache FILE  and give that "
                "here, or score anchor queries with  crossknn index ... --anchors QUERIES"
            )
        if anchors is not None:
            seen, queries = index.anchored()
            dense = anchors.scores, retriever_scores(seen, retriever, queries, seed)
        if dense is not None and not len(scores):
            covariance = Covariance.of(*dense, rank)
        else:
            covariance = covariance_of(
                scores,
                _at_entries(index, retriever, scores, seed),
                index.vectors(unfitted(index) or default_vectors(index)),
                rank=rank,
                anchors=dense,
                seed=seed,
                progress=progress,
            )
        known = 0 if anchors is None else len(anchors.scores)
        return cls(
            covariance=covariance,
            retriever=str(retriever),
            fingerprint=fingerprint,
            queries=len(scores.scored_queries) + known,
            pairs=len(scores) + known * index.n,
            anchors=known,
            settings=settings or Settings(),
        )

    @property
    def logged(self) -> bool:
        """Whether there were scores of more queries than the anchors."""
        return self.queries > self.anchors

    def meta(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {
            "retriever": self.retriever,
            "fingerprint": self.fingerprint,
            "queries": self.queries,
            "pairs": self.pairs,
            "anchors": self.anchors,
            "settings": asdict(self.settings),
            "variance": self.covariance.variance,
        }

    def write(self, writer: IndexWriter, name: str) -> None:
        """Put it on the disk as `name`."""
        writer.replace(f"learned-{name}.")
        for key in ("factor", "mean", "weights", "precision"):
            writer.array(f"learned-{name}.{key}", np.asarray(getattr(self.covariance, key)))

    @staticmethod
    def read(reader: IndexReader, name: str) -> Prior:
        """What was stored as `name`, mapped."""
        meta = dict(reader.meta["learned"][name])
        variance = meta.pop("variance")
        settings = Settings(**meta.pop("settings"))
        arrays = {
            key: reader.array(f"learned-{name}.{key}")
            for key in ("factor", "mean", "weights", "precision")
        }
        return Prior(covariance=Covariance(**arrays, variance=variance), settings=settings, **meta)


def without_anchors(anchors: Sequence[str], scores: SparseScores) -> SparseScores:
    """Less the scores of queries that are anchors, which have them all."""
    known = set(anchors)
    mine = np.array([text not in known for text in scores.queries], np.bool_)
    return scores.take(mine[scores.query]) if len(scores) else scores


def fits(learned: Prior, index: Index, retriever: Spec) -> bool:
    """Whether it is of use for predictions from the stages of `retriever`, from all that is known."""
    if stage_names(index, parse(learned.retriever)) != stage_names(index, retriever):
        return False
    known = 0 if index.anchors is None else len(index.anchors.scores)
    return learned.logged or learned.anchors == known


def check_same_scorer(known: str | None, given: str | None, anchors: int) -> None:
    """`InputError` if scores of one cross-encoder would be mixed with the anchors' of another."""
    if anchors and known != given:
        raise InputError(
            f"the index has anchor queries scored by the cross-encoder {known}, and these scores "
            f"are of {given or 'one without a fingerprint'}: scores of two are never mixed, so "
            "learn from those of the index's own, or build an index without these anchors"
        )


def _at_entries(index: Index, retriever: Spec, scores: SparseScores, seed: int) -> list[FloatArray]:
    """Each stage's scores at the entries: (e,)."""
    parts = list(_parts(index, retriever, scores, seed))
    count = len(stages_of(open_retriever(index, retriever, seed)))
    empty = [np.empty(0, np.float32)]
    return [np.concatenate([*(part[c] for part in parts), *empty]) for c in range(count)]


def _parts(
    index: Index, retriever: Spec, scores: SparseScores, seed: int
) -> Iterator[list[FloatArray]]:
    chosen = scores.scored_queries
    for start in range(0, len(chosen), _AT_ONCE):
        rows = chosen[start : start + _AT_ONCE]
        where = slice(scores.by_query[rows[0]], scores.by_query[rows[-1] + 1])
        query, item = np.searchsorted(rows, scores.query[where]), scores.item[where]
        texts = Queries([scores.queries[row] for row in rows])
        yield [cheap[query, item] for cheap in retriever_scores(index, retriever, texts, seed)]
