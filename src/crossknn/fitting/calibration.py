"""Calibrate scores to probabilities of relevance, from judgements, by isotonic regression (Zadrozny
and Elkan 2002) of a sum of three features: the score, the mean of the query's best scores, and the
lead over the best other item, weighted by logistic regression. The score alone, or the score minus
the mean, did better in only 3 of 30 folds.

Axes: m queries, k items of each, p pairs of them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from crossknn.data.qrels import Qrels, given_qrels
from crossknn.data.queries import QuerySet, Texts, own_items, query_set
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.methods import DEFAULT, Method
from crossknn.scorers.opening import as_scorer
from crossknn.scores.stored import StoredScorer
from crossknn.search.fusion import CALIBRATION, CONTEXT, Calibration, Fuse, features, weights_of
from crossknn.search.searcher import PER_QUERY, Budget, Searcher
from crossknn.types import NO_ITEM, BoolArray, FloatArray, Progress

FEWEST_QUERIES, FOLDS, BINS = 5, 5, 10


def fit_calibration(
    index: ItemIndex,
    scorer: Any,
    queries: Texts,
    qrels: Qrels,
    *,
    method: str | Method = DEFAULT,
    budget: int | Budget = PER_QUERY,
    fuse: Fuse = "auto",
    keep_own: bool = False,
    seed: int = 0,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fit probabilities of relevance to the scores of the ten best items of judged queries.

    Unjudged items count as not relevant; queries without judgements are left out. Later searches
    with this cross-encoder and this fusion return calibrated probabilities. Returns the report,
    also stored as the artifact "calibration": numbers of `queries`, `items` and `relevant` items,
    and expected calibration errors on held-out queries, in ten bins of equal size: of the
    calibrated probabilities (`ece`), and of the logistic function of the score (`ece_logistic`).

    Args:
        index, scorer: The items, and the cross-encoder in any form that `Searcher` accepts.
        queries: Queries with the ids that the judgements use.
        qrels: Judgements, `{query id: {item id: grade}}`; above 0 is relevant.
        method, budget, fuse, seed: Options of the search, the same as for later searches.
        keep_own: Count an item that has the query's id like any other; BEIR leaves it out.
        progress: Called with (done, total) scored pairs.
    """
    qrels, scorer = given_qrels(qrels), as_scorer(scorer)
    judged = _judged(index, query_set(queries), qrels)
    exact = scorer if scorer.fingerprint is None else StoredScorer(scorer, index.scores)
    searcher = Searcher(index, exact, method, fuse=fuse, seed=seed)
    own = own_items(judged, () if keep_own else index.items.ids, qrels)
    wanted = min(CONTEXT + int((own != NO_ITEM).any()), len(index))
    results = searcher.search(judged, wanted, budget, progress=progress)
    scores = np.full((len(judged), CONTEXT), np.nan)
    relevant = np.zeros(scores.shape, np.bool_)
    for q, (query, best) in enumerate(zip(judged.ids, results, strict=True)):
        hits = [hit for hit in best if hit.position != own[q]][:CONTEXT]
        scores[q, : len(hits)] = [hit.final_score for hit in hits]
        relevant[q, : len(hits)] = [qrels[query].get(hit.id, 0) > 0 for hit in hits]
    fitted, report = fit_scores(scores, relevant, seed)
    report |= {"method": results.method, "budget": results.budget, "calls": results.n_calls}
    report |= {"fingerprint": scorer.fingerprint, "fusion": weights_of(searcher.fusion)}
    index.put_artifact(CALIBRATION, report, asdict(fitted))
    return report


def _judged(index: ItemIndex, asked: QuerySet, qrels: Qrels) -> QuerySet:
    """Select the judged queries, five or more; `InputError` if no judged item is in the index."""
    judged = asked.take(q for q, name in enumerate(asked.ids) if qrels.get(name))
    if len(judged) < FEWEST_QUERIES:
        raise InputError(
            f"{len(judged)} of the {len(asked)} queries are judged: calibration is fitted to "
            f"{FEWEST_QUERIES} or more; do their ids agree?"
        )
    if not {item for query in judged.ids for item in qrels[query]} & {*index.items.ids}:
        raise InputError(
            "none of the judged items is in the index: check that both use the same ids"
        )
    return judged


def fit_scores(
    scores: FloatArray, relevant: BoolArray, seed: int = 0
) -> tuple[Calibration, dict[str, Any]]:
    """Fit a calibration to the final scores (m, k) of each query's best items, in descending order
    and padded with NaN, and whether they are `relevant` (m, k). Return it and its report."""
    scored = ~np.isnan(scores)
    if not 0 < relevant[scored].sum() < scored.sum():
        which = "all" if relevant[scored].any() else "none"
        raise InputError(
            f"{which} of the {scored.sum()} items that were found are relevant: calibration needs "
            "relevant and other items; do the judgements use the ids of the index?"
        )
    sums = features(scores, scores)
    fold = np.random.default_rng(seed).permutation(len(scores)) % min(FOLDS, len(scores))
    held = np.full(scores.shape, np.nan)
    for part in np.unique(fold):
        out = fold == part
        weights, at, chance = _curve(sums[~out], relevant[~out], scored[~out])
        held[out] = np.interp(sums[out] @ weights, at, chance)
    some = np.any(relevant, axis=1)
    top, answered = _isotonic(held[:, 0], some) if not some.all() else (np.zeros(1), np.ones(1))
    logistic = np.exp(-np.logaddexp(0, -scores[scored]))
    return Calibration(*_curve(sums, relevant, scored), top, answered), {
        "queries": len(scores),
        "items": int(scored.sum()),
        "relevant": int(relevant[scored].sum()),
        "ece": calibration_error(held[scored], relevant[scored]),
        "ece_logistic": calibration_error(logistic, relevant[scored]),
    }


def calibration_error(chance: FloatArray, relevant: BoolArray, bins: int = BINS) -> float:
    """Compute the expected calibration error, 0-1: the difference between mean probability and
    relevant share in an item's bin, averaged (Nguyen and O'Connor 2015, with bins of equal size).

    >>> calibration_error(np.array([0.75, 0.25]), np.array([True, False]), 2)
    0.25
    """
    parts = np.array_split(np.argsort(chance, kind="stable"), min(bins, len(chance)))
    return float(sum(abs(np.sum(chance[p] - relevant[p])) for p in parts) / len(chance))


def _curve(
    sums: FloatArray, relevant: BoolArray, scored: BoolArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Fit the weights of the features (m, k, 3), and the isotonic curve over their weighted sum. If
    all items are relevant, or none is, the sum is the score alone."""
    rows, which = sums[scored], relevant[scored]
    weights = np.array([1.0, 0.0, 0.0])
    if 0 < which.sum() < len(which):
        weights = _logistic_weights(rows, which, ridge=1.0)
    return weights, *_isotonic(rows @ weights, which)


def _isotonic(values: FloatArray, which: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Like `isotonic`, but at least 1 / (p + 2) from 0 and 1: p items can prove no more."""
    at, chance = isotonic(values, which)
    edge = 1 / (len(values) + 2)
    return at, chance.clip(edge, 1 - edge)


def isotonic(values: FloatArray, which: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Isotonic regression: fit the rising curve with the least squared error to `which` (p,) at
    `values` (p,). Return its knots (b,) and heights (b,), for `np.interp`.

    >>> isotonic(np.array([1, 2, 3, 3]), np.array([True, False, True, False]))
    (array([1, 3]), array([0.5, 0.5]))
    """
    from scipy.optimize import isotonic_regression

    at, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    height = isotonic_regression(np.bincount(place, which) / counts, weights=counts).x
    kept = np.ones(len(at), np.bool_)  # the ends, and where the height changes
    kept[1:-1] = (height[1:-1] != height[:-2]) | (height[1:-1] != height[2:])
    return at[kept], height[kept]


def _logistic_weights(values: FloatArray, within: BoolArray, ridge: float) -> FloatArray:
    """Fit a logistic regression: weights (f,) of features (e, f) that predict which of e examples
    are `within` (e,). `ridge` penalises squared weights of features scaled to variance 1; the
    intercept is not returned, because it changes no order."""
    size = values.std(axis=0)
    size = np.where(size > 0, size, 1.0)
    columns = np.column_stack([(values - values.mean(axis=0)) / size, np.ones(len(values))])
    penalty = ridge * np.append(np.ones(values.shape[1]), 0.0)
    weights = np.zeros(columns.shape[1])
    for _ in range(50):  # Newton's method
        chance = 1 / (1 + np.exp(-columns @ weights))
        slope = columns.T @ (within - chance) - penalty * weights
        curve = (columns.T * np.maximum(chance * (1 - chance), 1e-9)) @ columns
        step = np.linalg.solve(curve + np.diag(penalty + 1e-9), slope)
        weights += step
        if np.abs(step).max() < 1e-6:
            break
    return weights[:-1] / size
