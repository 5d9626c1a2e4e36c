"""Fitting the weights of fusion: from judgements where there are some, else the shipped ones.

A grid on few queries overfits (on 60 it lost 4.6 points of nDCG@10, on 80 to 100 it held), so the
best weights of a grid are shrunk towards `DEFAULT` by as much as cross-validation supports.

Axes: m queries, c candidates, r retrievers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product

import numpy as np

from crossknn.data.queries import Qrels, QuerySet
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.retrievers.specs import open_retriever, unfitted
from crossknn.scorers.base import Scorer
from crossknn.scores.collect import Limits, collect, fingerprint_of
from crossknn.search.fusion import FUSION
from crossknn.types import NO_ITEM, FloatArray, IntArray, Pairs, Progress, Queries

DEFAULT = {"dense": 0.75, "bm25": 0.5}
"""Weights in deviations; 0.5 to 1 were right on nearly all sets that were tried."""

GRID = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
SHRINKAGE = (0.0, 0.5, 1.0)
FOLDS, LEAST, CUTOFF = 5, 5, 10
DISCOUNTS = 1 / np.log2(np.arange(CUTOFF) + 2)


@dataclass(frozen=True, kw_only=True)
class FittedFusion:
    """Weights by retriever, in deviations, and the mean `deviations` of a query's candidates.

    `ndcg` is nDCG@10 over the train queries: of the best retriever's order, of the cross-encoder's
    and of the fused one, the last by cross-validation; None without judgements.
    """

    weights: Mapping[str, float]
    deviations: Mapping[str, float]
    fingerprint: str | None
    queries: int
    judged: int
    shrinkage: float
    ndcg: Mapping[str, float] | None


def fit_fusion(
    index: ItemIndex,
    scorer: Scorer,
    queries: QuerySet,
    qrels: Qrels | None = None,
    *,
    depth: int = 100,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> FittedFusion:
    """Score the first `depth` items of `hybrid` for m train queries, and fit weights to them.

    Args:
        qrels: judgements of the queries; without them the weights are `DEFAULT`.
        depth: candidates of each query; their scores are kept in the index.

    Returns:
        What was fitted; the index keeps it as the artefact "fusion".

    Raises:
        InputError: the index has no retriever to fuse, fewer than five queries are judged, or no
            candidate is relevant.
        ScorerError: pairs could not be scored.
    """
    texts, base = queries.texts, unfitted(index)
    if not texts:
        raise InputError("there are no queries to fit the weights of a fusion to")
    names = [
        name for name in (base, "bm25") if name and name in {*index.vectors, *index.retrievers}
    ]
    if not names:
        raise InputError("the index has neither vectors nor words to fuse: build it with some")
    batch, store = Queries(texts), index.scores
    items = open_retriever(index, "hybrid").top(batch, min(depth, index.n)).items
    stack = np.full((1 + len(names), *items.shape), np.nan)  # exact scores, then the retrievers'
    query, column = np.nonzero(items != NO_ITEM)
    pairs = Pairs(query, items[query, column])
    collect(store, scorer, texts, index.items.texts, pairs, limits=limits, progress=progress)
    ids = store.pair_ids(texts, index.items.texts, pairs)
    stack[0, query, column] = store.lookup(fingerprint_of(scorer, store), *ids)
    for row, name in zip(stack[1:], names, strict=True):
        row[query, column] = open_retriever(index, name).scores(batch, items)[query, column]
    deviations = np.nanmean(np.nanstd(stack, axis=2), axis=1)
    if not (deviations > 0).all():
        raise InputError("all candidates have equal scores: fusion needs scores that differ")
    start = np.array([DEFAULT["bm25" if name == "bm25" else "dense"] for name in names])
    weights, shrinkage, judged, ndcg = start, 0.0, 0, None
    if qrels is not None:
        gains, ideal = _gains(qrels, queries.ids, items, index.items.ids)
        rows = np.flatnonzero(ideal > 0)
        judged = len(rows)
        if judged < LEAST:
            raise InputError(
                f"{judged} of the {len(queries)} queries have a relevant item: fusion is fitted to "
                f"{LEAST} or more"
            )
        unit, about = stack[:, rows] / deviations[:, None, None], (gains[rows], ideal[rows])
        weights, shrinkage, fused = _shrunk(unit, *about, start)
        alone = [float(ndcg_of(part, *about).mean()) for part in unit]
        ndcg = {"retriever": max(alone[1:]), "cross-encoder": alone[0], "fused": fused}
    found = FittedFusion(
        weights={name: float(w) for name, w in zip(names, weights, strict=True)},
        deviations=dict(zip(["exact", *names], map(float, deviations), strict=True)),
        fingerprint=scorer.fingerprint,
        queries=len(texts),
        judged=judged,
        shrinkage=shrinkage,
        ndcg=ndcg,
    )
    index.put_artifact(FUSION, asdict(found), {})
    return found


def _gains(
    qrels: Qrels, query_ids: Sequence[str], items: IntArray, ids: Sequence[str]
) -> tuple[FloatArray, FloatArray]:
    """Grades of the candidates (m, c), and the largest DCG@10 of any order of all items (m,)."""
    gains, ideal = np.zeros(items.shape), np.zeros(len(items))
    for q, query in enumerate(query_ids):
        grades = {item: max(grade, 0) for item, grade in qrels.get(query, {}).items()}
        gains[q] = [grades.get(ids[i], 0) if i != NO_ITEM else 0 for i in items[q].tolist()]
        best = np.sort([*grades.values(), 0])[::-1][:CUTOFF]
        ideal[q] = best @ DISCOUNTS[: len(best)]
    return gains, ideal


def ndcg_of(scores: FloatArray, gains: FloatArray, ideal: FloatArray) -> FloatArray:
    """nDCG@10 (m,) of candidates (m, c) ordered by `scores`, NaN last, ties by position."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), axis=1, kind="stable")[:, :CUTOFF]
    found = np.take_along_axis(gains, order, axis=1)
    return found @ DISCOUNTS[: found.shape[1]] / ideal


def _fused(unit: FloatArray, weights: FloatArray) -> FloatArray:
    """Final scores (m, c) in deviations; `unit` (1 + r, m, c) has the exact ones first."""
    return unit[0] + np.tensordot(weights, unit[1:], axes=1)


def _shrunk(
    unit: FloatArray, gains: FloatArray, ideal: FloatArray, start: FloatArray
) -> tuple[FloatArray, float, float]:
    """The grid's best weights, shrunk towards `start` by the share that cross-validation likes
    best; that share, from 0 (`start`) to 1, and the cross-validated nDCG@10."""
    grid = np.array(list(product(GRID, repeat=len(start))))
    table = np.stack([ndcg_of(_fused(unit, weights), gains, ideal) for weights in grid])
    m = table.shape[1]
    fold, held = np.random.default_rng(0).permutation(m) % FOLDS, np.zeros((len(SHRINKAGE), m))
    for part in range(FOLDS):
        out = fold == part
        best = grid[table[:, ~out].mean(axis=1).argmax()]
        for row, share in enumerate(SHRINKAGE):
            scores = _fused(unit[:, out], start + share * (best - start))
            held[row, out] = ndcg_of(scores, gains[out], ideal[out])
    means, best = held.mean(axis=1), grid[table.mean(axis=1).argmax()]
    share = SHRINKAGE[int(means.argmax())]
    return start + share * (best - start), share, float(means.max())
