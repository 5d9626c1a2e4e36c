"""What fusion weighs by: from judgements where there are some, else from agreement.

A grid fitted to few queries overfits (on 60 it lost 4.6 points of nDCG@10), so its best weights are
shrunk towards `VECTORS` and `BM25` by as much as cross-validation supports. Without judgements,
scores that agree with the others are trusted more (`_by_agreement`).

Axes: m queries, c candidates, r retrievers; `unit` (1 + r, m, c) are scores in deviations, the
exact ones first.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from crossknn.data.queries import Qrels, QuerySet
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.retrievers.specs import FUSION, open_retriever, unfitted
from crossknn.scorers.base import Scorer
from crossknn.scores.collect import Limits, collect, fingerprint_of
from crossknn.types import NO_ITEM, FloatArray, IntArray, Pairs, Progress, Queries

VECTORS, BM25 = 0.75, 0.5
"""Shipped weights, in deviations: 0.5 to 1 were right on nearly all sets that were tried."""

GRID, SHRINKAGE = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0), (0.0, 0.5, 1.0)
FOLDS, LEAST, CUTOFF = 5, 5, 10
DISCOUNTS = 1 / np.log2(np.arange(CUTOFF) + 2)


def fit_fusion(
    index: ItemIndex,
    scorer: Scorer,
    queries: Sequence[str] | QuerySet,
    qrels: Qrels | None = None,
    *,
    depth: int = 100,
    seed: int = 0,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fit weights to the scores of m train queries; the scores are kept in the index.

    Scored are the first `depth` items of `hybrid` for each query and, without judgements, as many
    random ones.

    Args:
        queries: Texts, or a `QuerySet`, whose ids judgements name.
        qrels: Judgements: the weights are those of the best nDCG@10, shrunk towards the shipped
            ones. Without them weights come from the agreement of the scores.
        seed: Draws the random items.

    Returns:
        The artefact "fusion" of the index: `weights`, in deviations; `deviations`, the means over
        the queries of the standard deviations of their candidates' scores; `fingerprint`; how many
        `queries`, how many of them `judged`; with judgements `shrinkage`, from 0 (the shipped
        weights) to 1, and `ndcg` of the retriever, the cross-encoder and, cross-validated, both.

    Raises:
        InputError: The index has no retriever to fuse, scores do not differ, or fewer than five
            queries have a relevant item.
        ScorerError: Pairs could not be scored.
    """
    texts = queries.texts if isinstance(queries, QuerySet) else queries
    ids = queries.ids if isinstance(queries, QuerySet) else tuple(map(str, range(len(texts))))
    known = {unfitted(index): VECTORS, "bm25": BM25}
    shipped = {n: w for n, w in known.items() if n in {*index.vectors, *index.retrievers}}
    if not shipped or not len(texts):
        raise InputError("fusion needs train queries, and an index with vectors or words")
    if qrels is not None:
        _check_judged(qrels, ids)
    items = open_retriever(index, "hybrid").top(Queries(texts), min(depth, index.n)).items
    first = items.shape[1]
    if qrels is None:
        drawn = np.random.default_rng(seed).integers(index.n, size=items.shape)
        items = np.concatenate([items, drawn], axis=1)
    stack = _scores(index, scorer, texts, items, [*shipped], limits, progress)
    deviations = np.nanstd(stack[:, :, :first], axis=2).mean(axis=1)
    if not (deviations > 0).all():
        raise InputError("fusion needs scores that differ, and all candidates have equal ones")
    unit, start = stack / deviations[:, None, None], np.array([*shipped.values()])
    found: dict[str, Any] = {"judged": 0}
    if qrels is None:
        weights = _by_agreement(unit, start)
    else:
        gains, ideal = _gains(qrels, ids, items, index.items.ids)
        rows = np.flatnonzero(ideal > 0)
        about = gains[rows], ideal[rows]
        weights, shrinkage, fused = _shrunk(unit[:, rows], *about, start)
        alone = [float(_ndcg(part, *about).mean()) for part in unit[:, rows]]
        ndcg = {"retriever": max(alone[1:]), "cross-encoder": alone[0], "fused": fused}
        found = {"judged": len(rows), "shrinkage": shrinkage, "ndcg": ndcg}
    names = ["exact", *shipped]
    found |= {
        "weights": dict(zip(shipped, weights.tolist(), strict=True)),
        "deviations": dict(zip(names, deviations.tolist(), strict=True)),
        "fingerprint": scorer.fingerprint,
        "queries": len(texts),
        "pairs": int((items != NO_ITEM).sum()),
    }
    index.put_artifact(FUSION, found, {})
    return found


def _check_judged(qrels: Qrels, ids: Sequence[str]) -> None:
    """`InputError` for too few queries with a relevant item, before anything is scored."""
    relevant = [query for query in ids if max(qrels.get(query, {"": 0}).values(), default=0) > 0]
    if len(relevant) < LEAST:
        raise InputError(
            f"{len(relevant)} of the {len(ids)} queries have a relevant item in the judgements: "
            f"fusion is fitted to {LEAST} or more; do their ids agree?"
        )


def _scores(
    index: ItemIndex,
    scorer: Scorer,
    texts: Sequence[str],
    items: IntArray,
    names: Sequence[str],
    limits: Limits | None,
    progress: Progress | None,
) -> FloatArray:
    """Scores (1 + r, m, c) of candidates, the exact ones first; NaN where there is no item."""
    store, batch = index.scores, Queries(texts)
    query, column = np.nonzero(items != NO_ITEM)
    pairs = Pairs(query, items[query, column])
    collect(store, scorer, texts, index.items.texts, pairs, limits=limits, progress=progress)
    ids = store.pair_ids(texts, index.items.texts, pairs)
    stack = np.full((1 + len(names), *items.shape), np.nan)
    stack[0, query, column] = store.lookup(fingerprint_of(scorer, store), *ids)
    for row, name in zip(stack[1:], names, strict=True):
        row[query, column] = open_retriever(index, name).scores(batch, items)[query, column]
    return stack


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


def _ndcg(scores: FloatArray, gains: FloatArray, ideal: FloatArray) -> FloatArray:
    """nDCG@10 (m,) of candidates (m, c) ordered by `scores`, NaN last, ties by position."""
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), axis=1, kind="stable")[:, :CUTOFF]
    found = np.take_along_axis(gains, order, axis=1)
    return found @ DISCOUNTS[: found.shape[1]] / ideal


def _fused(unit: FloatArray, weights: FloatArray) -> FloatArray:
    """Final scores (m, c) in deviations."""
    return unit[0] + np.tensordot(weights, unit[1:], axes=1)


def _shrunk(
    unit: FloatArray, gains: FloatArray, ideal: FloatArray, start: FloatArray
) -> tuple[FloatArray, float, float]:
    """The grid's best weights, shrunk towards `start` by the share that cross-validation likes
    best; that share, from 0 (`start`) to 1, and the cross-validated nDCG@10."""
    grid = np.array(list(product(GRID, repeat=len(start))))
    table = np.stack([_ndcg(_fused(unit, weights), gains, ideal) for weights in grid])
    m = table.shape[1]
    fold, held = np.random.default_rng(0).permutation(m) % FOLDS, np.zeros((len(SHRINKAGE), m))
    for part in range(FOLDS):
        out = fold == part
        best = grid[table[:, ~out].mean(axis=1).argmax()]
        for row, share in enumerate(SHRINKAGE):
            scores = _fused(unit[:, out], start + share * (best - start))
            held[row, out] = _ndcg(scores, gains[out], ideal[out])
    means, best = held.mean(axis=1), grid[table.mean(axis=1).argmax()]
    share = SHRINKAGE[int(means.argmax())]
    return start + share * (best - start), share, float(means.max())


def _by_agreement(unit: FloatArray, start: FloatArray) -> FloatArray:
    """Weights (r,) from how far the scores agree, without judgements; `start` unless r is 2.

    Three judges of one thing whose errors are independent correlate as the products of their
    loadings, corr(i, j) = a_i a_j, so that a_i^2 = corr(i, j) corr(i, k) / corr(j, k); the best
    linear estimate of the thing weighs each by a_i / (1 - a_i^2) (one-factor model; Thurstone's
    factor scores). Errors of retrievers are not quite independent, so the weight is the geometric
    mean of this and the shipped one, from 0.25 to 1.
    """
    if len(start) != 2:
        return start
    centred = unit - np.nanmean(unit, axis=2, keepdims=True)
    centred /= np.maximum(np.nanstd(unit, axis=2, keepdims=True), 1e-12)
    ab, ac, bc = (np.nanmean(centred[i] * centred[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    if min(ab, ac, bc) <= 0:
        return start
    loading = np.clip([ab * ac / bc, ab * bc / ac, ac * bc / ab], 0.02, 0.9)
    factor = np.sqrt(loading) / (1 - loading)
    return np.clip(np.sqrt(start * factor[1:] / factor[0]), 0.25, 1.0)
