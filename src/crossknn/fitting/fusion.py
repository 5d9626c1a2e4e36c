"""What fusion weighs by: how far a query's candidates lie apart, by each kind of score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.retrievers.specs import open_retriever, unfitted
from crossknn.scorers.base import Scorer
from crossknn.scores.collect import Limits, collect, fingerprint_of
from crossknn.search.fusion import FUSION
from crossknn.types import NO_ITEM, Pairs, Progress, Queries

VECTORS, BM25 = 0.75, 0.5  # weights in deviations: 0.5 to 1 were right on nearly all sets tried


def fit_fusion(
    index: ItemIndex,
    scorer: Scorer,
    queries: Sequence[str],
    *,
    depth: int = 100,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score the first `depth` items of `hybrid` for m train queries; their scores are kept.

    Returns:
        The artefact "fusion" of the index: `deviations`, the means over the queries of the standard
        deviations of their candidates' scores; the shipped `weights`, in these; `fingerprint`.

    Raises:
        InputError: the index has no retriever to fuse, or scores do not differ.
        ScorerError: pairs could not be scored.
    """
    known = {unfitted(index): VECTORS, "bm25": BM25}
    weights = {n: w for n, w in known.items() if n in {*index.vectors, *index.retrievers}}
    if not weights or not len(queries):
        raise InputError("fusion needs train queries, and an index with vectors or words")
    batch, store = Queries(queries), index.scores
    items = open_retriever(index, "hybrid").top(batch, min(depth, index.n)).items
    query, column = np.nonzero(items != NO_ITEM)
    pairs = Pairs(query, items[query, column])
    collect(store, scorer, queries, index.items.texts, pairs, limits=limits, progress=progress)
    ids = store.pair_ids(queries, index.items.texts, pairs)
    scores = np.full((1 + len(weights), *items.shape), np.nan)
    for row, name in zip(scores[1:], weights, strict=True):
        row[query, column] = open_retriever(index, name).scores(batch, items)[query, column]
    scores[0, query, column] = store.lookup(fingerprint_of(scorer, store), *ids)
    deviations = np.nanstd(scores, axis=2).mean(axis=1)
    if not (deviations > 0).all():
        raise InputError("fusion needs scores that differ, and all candidates have equal ones")
    names = ["exact", *weights]
    fitted = {"weights": weights, "deviations": dict(zip(names, deviations.tolist(), strict=True))}
    found = fitted | {"fingerprint": scorer.fingerprint, "queries": len(queries)}
    index.put_artifact(FUSION, found, {})
    return found
