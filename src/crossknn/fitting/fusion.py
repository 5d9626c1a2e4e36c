"""Fit the weights of a fusion to judgements.

The retrievers' weights relative to each other are fitted to their ranking of the whole corpus; the
weight of their sum beside the exact scores, to the order of the first candidates. A grid overfits
to few queries (to 60, it lost 4.6 points of nDCG@10), so the result is shrunk towards the default
weights as far as cross-validation supports. If the retrievers alone rank better than their sum with
the exact scores, they decide the order.

Axes: m queries, c candidates, r retrievers; `unit` (..., m, c) are scores in standard deviations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from crossknn.data.qrels import Qrels, by_position, given_qrels
from crossknn.data.queries import Texts, own_items, query_set
from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.index.item_index import ItemIndex
from crossknn.retrievers.specs import FUSION, open_retriever, unfitted
from crossknn.scorers.opening import as_scorer
from crossknn.scores.collect import Limits, collect, fingerprint_of
from crossknn.types import NO_ITEM, FloatArray, IntArray, Pairs, Progress, Queries

VECTORS, LSA, BM25 = 0.75, 0.0, 0.5
"""Default weights, in standard deviations; 0.5 to 1 were right on nearly all data sets tried. LSA
has this weight only beside BM25; alone it has the weight of vectors."""

RATIOS = ((1, 0), (1, 0.125), (1, 0.25), (1, 0.5), (1, 1), (0.5, 1), (0.25, 1), (0.125, 1), (0, 1))
SCALES, SHRINKAGE = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0), (0.0, 0.5, 1.0)
"""Grids of the fit: one retriever's weight relative to another's, the weight of their sum relative
to the exact scores, and the distance from the default weights. Zero weight is excluded, because the
sum would no longer influence the search."""

DECIDING = 10_000.0
"""Weight of the retrievers' sum, in standard deviations, if exact scores only break ties."""

FOLDS, FEWEST_QUERIES, POOL = 5, 5, 1000


def fit_fusion(
    index: ItemIndex,
    scorer: Any,
    queries: Texts,
    qrels: Qrels | None = None,
    *,
    depth: int = 100,
    keep_own: bool = False,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fit the weights of retriever scores in the final score, on m training queries.

    Scores the first `depth` items of `hybrid` for each query into the store. Returns the artifact
    "fusion" of the index: `weights`, in units of the candidates' standard `deviations` (means over
    queries). With judgements it has `ndcg`, nDCG@10 of the candidates ordered by the retrievers, by
    the cross-encoder and, cross-validated, by both; and a `note` if the retrievers alone order
    better, and so decide the order.

    Args:
        index, scorer: The items, and a cross-encoder or its name.
        queries: m texts, or queries with the ids that judgements name.
        qrels: Judgements. The retrievers' relative weights maximise nDCG@100 of their sum, and the
            sum's weight nDCG@10 of the sum plus the exact score; both are shrunk towards the
            default weights, which are used without judgements.
        depth: How many items of `hybrid` are scored for each query.
        keep_own: Keep an item that has the query's id among the candidates; BEIR leaves it out.
        limits, progress: As for `collect`.
    """
    asked, opened = query_set(queries), as_scorer(scorer)
    if not len(asked):
        raise InputError(f"there are no queries: fitting a fusion needs {FEWEST_QUERIES} or more")

    def score(pairs: Pairs) -> FloatArray:
        given = asked.texts, index.items.texts, pairs
        collect(index.scores, opened, *given, limits=limits, progress=progress)
        table = index.scores.table()
        return table.lookup(fingerprint_of(opened, index.scores), *table.pair_ids(*given))

    judged = None if qrels is None else given_qrels(qrels)
    rows = None if judged is None else by_position(judged, asked.ids, index.items.ids)
    own = None if keep_own else own_items(asked, index.items.ids, judged)
    fusion = _weigh(index, Queries(asked.texts), score, rows, own, depth)
    fusion["fingerprint"] = opened.fingerprint
    index.put_artifact(FUSION, fusion, {})
    return fusion


def _weigh(
    index: Index,
    queries: Queries,
    score: Callable[[Pairs], FloatArray],
    rows: Sequence[Mapping[str, int]] | None,
    own: IntArray | None,
    depth: int,
) -> dict[str, Any]:
    """Compute the result of `fit_fusion`, except the fingerprint; `rows` are the grades of each
    query by position of the items, and `own` (m,) the item to leave out of a query's candidates."""
    shipped = _shipped(index)
    stages = [open_retriever(index, name) for name in shipped]

    def cheap(items: IntArray) -> FloatArray:
        scores = np.stack([stage.scores(queries, items) for stage in stages])
        return np.where(items == NO_ITEM, np.nan, scores)

    best = None if rows is None else _best_grades(rows)
    items = open_retriever(index, "hybrid").top(queries, min(depth, index.n)).items
    items = _without(items, own)
    query, column = np.nonzero(items != NO_ITEM)
    scores = np.concatenate([np.full((1, *items.shape), np.nan), cheap(items)])
    scores[0, query, column] = score(Pairs(query, items[query, column]))
    weights, measured = np.array([*shipped.values()]), dict[str, Any]()
    if rows is None or best is None:
        deviations = _deviations(scores)
    else:
        pool = _pool([stage.top(queries, min(POOL, index.n)).items for stage in stages])
        pool = _without(pool, own)
        grades = _grades(rows, items), _grades(rows, pool), best
        weights, deviations, ndcg = by_judgements(scores, cheap(pool), grades, weights)
        measured["ndcg"] = ndcg
        if ndcg["both"] < ndcg["retrievers"]:
            measured["note"] = (
                "the retrievers order better without this cross-encoder (nDCG@10 "
                f"{ndcg['retrievers']:.3f}, with it {ndcg['both']:.3f}, cross-encoder alone "
                f"{ndcg['cross-encoder']:.3f}): the weights are those of the retrievers' fusion, "
                "which decides the order; --method retrieve gives this order without scoring pairs"
            )
    return measured | {
        "judged": 0 if best is None else int(best.any(axis=1).sum()),
        "weights": dict(zip(shipped, weights.tolist(), strict=True)),
        "deviations": dict(zip(["exact", *shipped], deviations.tolist(), strict=True)),
        "queries": len(queries),
        "pairs": len(query),
    }


def _shipped(index: Index) -> dict[str, float]:
    """Return the default weights of the index's retrievers that are fused."""
    vectors = unfitted(index)
    beside_words = vectors == "lsa" and "bm25" in index.retrievers
    weights = {vectors: LSA if beside_words else VECTORS, "bm25": BM25}
    shipped = {n: w for n, w in weights.items() if n in {*index.vectors, *index.retrievers}}
    if not shipped:
        raise InputError("fusion needs an index with item vectors or bm25")
    return shipped


def _without(items: IntArray, own: IntArray | None) -> IntArray:
    """Replace each query's own item (m,) among its candidates (m, c) by `NO_ITEM`."""
    return items if own is None else np.where(items == own[:, None], NO_ITEM, items)


def by_judgements(
    scores: FloatArray,
    pool: FloatArray,
    judged: tuple[FloatArray, FloatArray, FloatArray],
    start: FloatArray,
) -> tuple[FloatArray, FloatArray, dict[str, float]]:
    """Return weights (r,) from judgements, shrunk towards `start` (r,); deviations (1 + r,); and
    the nDCG@10 of the candidates ordered by the retrievers (their sum, or one of them if that is
    better), by the exact scores and, cross-validated, by both.

    `scores` (1 + r, m, c) are the candidates' exact and then retriever scores; `pool` (r, m, p) the
    retriever scores of all retrievers' best items. `judged` are the grades of the candidates (m,
    c), of the pool (m, p), and of all relevant items, best first (m, 100).
    """
    rows = np.flatnonzero(judged[2].any(axis=1))
    gains, pool_gains, best = (of[rows] for of in judged)
    deviations = _deviations(scores)
    unit, wide = scores / deviations[:, None, None], pool / deviations[1:, None, None]

    def retrieved(weights: FloatArray) -> FloatArray:
        return _ndcg(np.tensordot(weights, wide[:, rows], axes=1), pool_gains, best, 100)

    def ordered(scale: FloatArray) -> FloatArray:
        return _ndcg(unit[0, rows] + scale * sums[rows], gains, best, 10)

    grid = start.sum() * np.array(RATIOS if len(start) == 2 else [(1.0,)])
    ratio, _ = _shrunk(grid, retrieved, start)
    sums = np.tensordot(ratio, unit[1:], axes=1)
    spread, usual = _deviations(sums), _deviations(np.tensordot(start, unit[1:], axes=1))
    scale, fused = _shrunk(np.array(SCALES)[:, None] / spread, ordered, usual[None] / spread)
    ratios = [ratio, *np.eye(len(start))[: len(start) * (len(start) > 1)]]
    alone = [np.tensordot(r, unit[1:], axes=1) for r in ratios]
    exact, *means = (float(_ndcg(of[rows], gains, best, 10).mean()) for of in (unit[0], *alone))
    ndcg = {"retrievers": max(means), "cross-encoder": exact, "both": fused}
    if fused < ndcg["retrievers"]:
        leading = int(np.argmax(means))
        ratio, scale = ratios[leading], DECIDING / _deviations(alone[leading])
    return scale * ratio, deviations, ndcg


def _deviations(scores: FloatArray) -> FloatArray:
    """Means over queries of standard deviations over candidates: (..., m, c) -> (...)."""
    deviations = np.asarray(np.nanstd(scores, axis=-1).mean(axis=-1))
    if not (deviations > 0).all():
        raise InputError("fusion needs scores that differ, but all candidates have the same score")
    return deviations


def _pool(rankings: Sequence[IntArray]) -> IntArray:
    """All items of rankings (m, c) by position, with `NO_ITEM` in place of repeated ones."""
    pool = np.sort(np.concatenate(rankings, axis=1), axis=1)
    return np.where(np.diff(pool, axis=1, prepend=NO_ITEM) == 0, NO_ITEM, pool)


def _grades(rows: Sequence[Mapping[str, int]], items: IntArray) -> FloatArray:
    """The grades (m, c) of items; 0 if there is none."""
    both = zip(rows, items.tolist(), strict=True)
    return np.array([[max(row.get(str(i), 0), 0) for i in of] for row, of in both], np.float64)


def _best_grades(rows: Sequence[Mapping[str, int]]) -> FloatArray:
    """Each query's 100 best grades (m, 100); `InputError` if under five have one above 0."""
    padded = ([*(max(grade, 0) for grade in row.values()), *[0] * 100] for row in rows)
    best = np.array([sorted(row, reverse=True)[:100] for row in padded], np.float64)
    if (judged := int(best.any(axis=1).sum())) < FEWEST_QUERIES:
        raise InputError(
            f"{judged} of the {len(rows)} queries have a relevant item in the judgements: "
            f"fusion is fitted to {FEWEST_QUERIES} or more; do their ids agree?"
        )
    return best


def _ndcg(scores: FloatArray, gains: FloatArray, best: FloatArray, cutoff: int) -> FloatArray:
    """nDCG (m,) of candidates (m, c) ordered by `scores`, NaN last, ties by position."""
    discounts = 1 / np.log2(np.arange(cutoff) + 2)
    order = np.argsort(-np.nan_to_num(scores, nan=-np.inf), axis=1, kind="stable")[:, :cutoff]
    taken = np.take_along_axis(gains, order, axis=1)
    return taken @ discounts[: taken.shape[1]] / (best[:, :cutoff] @ discounts)


def _shrunk(
    grid: FloatArray, measure: Callable[[FloatArray], FloatArray], start: FloatArray
) -> tuple[FloatArray, float]:
    """Return the best weights of a grid (g, r), shrunk towards `start` (r,) by the largest amount
    whose cross-validated mean is within a standard error of the best. Return that mean, too;
    `measure` computes the queries' values (m,) for weights."""
    table = np.stack([measure(weights) for weights in grid])
    m = table.shape[1]
    fold, held = np.random.default_rng(0).permutation(m) % FOLDS, np.zeros((len(SHRINKAGE), m))
    for part in range(FOLDS):
        out = fold == part
        best = grid[table[:, ~out].mean(axis=1).argmax()]
        for row, share in enumerate(SHRINKAGE):
            held[row, out] = measure(start + share * (best - start))[out]
    lead = held[held.mean(axis=1).argmax()] - held  # of the best share, over each share
    within = lead.mean(axis=1) <= lead.std(axis=1) / np.sqrt(m)
    row, best = int(within.argmax()), grid[table.mean(axis=1).argmax()]
    return start + SHRINKAGE[row] * (best - start), float(held[row].mean())
