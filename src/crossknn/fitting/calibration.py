"""Scores into probabilities of relevance, by judgements: isotonic regression of the items returned.

Isotonic regression (Zadrozny and Elkan 2002) of one of three sums, chosen by cross-validation over
queries: the score; the score less the mean of its query's best; both and the lead over the best
other item, weighed by logistic regression.

Axes: m queries, k items of each, p pairs of them.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from crossknn.data.qrels import Qrels, given_qrels
from crossknn.data.queries import Texts, own_items, query_set
from crossknn.errors import InputError
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import isotonic, logistic_weights
from crossknn.methods import DEFAULT, Method
from crossknn.scorers import as_scorer
from crossknn.scores.stored import StoredScorer
from crossknn.search.calibration import CALIBRATION, CONTEXT, Calibration, features, weights_of
from crossknn.search.fusion import Fuse
from crossknn.searcher.searcher import PER_QUERY, Budget, Searcher
from crossknn.types import NO_ITEM, BoolArray, FloatArray, Progress

LEAST, FOLDS, BINS = 5, 5, 10
SCORE = (1.0, 0.0, 0.0)
WAYS = {"score": SCORE, "score - mean": (1.0, -1.0, 0.0), "score, mean, lead": None}
"""Weights of a score, of the mean of its query's best and of its lead; None for fitted ones."""


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
    """Fit the probability of relevance to the scores of the ten best items of judged queries.

    Items that are not judged count as not relevant; queries without judgements are left out. Later
    searches with this cross-encoder and this fusion have calibrated probabilities.

    Args:
        index: The items.
        scorer: The cross-encoder, or whatever else `Searcher` takes.
        queries: Queries with the ids that judgements name.
        qrels: Judgements, `{query id: {item id: grade}}`; above 0 is relevant.
        method, budget, fuse, seed: Of the search, as later searches will have them.
        keep_own: Count the item that has a query's id as any other; as in BEIR it is left out,
            since it is the query itself where queries are documents of the corpus.
        progress: Called with (done, total) scored pairs.

    Returns:
        What was found, kept as the artefact "calibration" of the index: the `way` that was chosen
        and each one's held-out Brier score; `ece`, the expected calibration error of held-out
        queries (0-1), and `ece_logistic`, that of the logistic function of the score; `reliability`
        and `reliability_logistic`, of ten bins of as many items the mean probability, the share
        that is relevant, and the number of items.

    Raises:
        InputError: Fewer than five queries are judged, no judged item is in the index, or all items
            that were found are relevant, or none.
        ScorerError: No pair could be scored.
    """
    asked, qrels = query_set(queries), given_qrels(qrels)
    judged = asked.take(q for q, name in enumerate(asked.ids) if qrels.get(name))
    if len(judged) < LEAST:
        raise InputError(
            f"{len(judged)} of the {len(asked)} queries are judged: calibration is fitted to "
            f"{LEAST} or more; do their ids agree?"
        )
    if not {item for query in judged.ids for item in qrels[query]} & {*index.items.ids}:
        raise InputError("none of the judged items is in the index: do their ids agree?")
    scorer = as_scorer(scorer)
    exact = scorer if scorer.fingerprint is None else StoredScorer(scorer, index.scores)
    searcher = Searcher(index, exact, method, fuse=fuse, seed=seed)
    own = own_items(judged, () if keep_own else index.items.ids, qrels)
    wanted = min(CONTEXT + int((own != NO_ITEM).any()), len(index))
    results = searcher.search(judged, wanted, budget, progress=progress)
    scores = np.full((len(judged), CONTEXT), np.nan)
    relevant = np.zeros(scores.shape, np.bool_)
    for q, (query, found_hits) in enumerate(zip(judged.ids, results, strict=True)):
        hits = [hit for hit in found_hits if hit.position != own[q]][:CONTEXT]
        scores[q, : len(hits)] = [hit.final_score for hit in hits]
        relevant[q, : len(hits)] = [qrels[query].get(hit.id, 0) > 0 for hit in hits]
    fitted, found = fit_scores(scores, relevant, seed)
    found |= {"method": results.method, "budget": results.budget, "calls": results.n_calls}
    found |= {"fingerprint": scorer.fingerprint, "fusion": weights_of(searcher.fusion)}
    index.put_artifact(CALIBRATION, found, asdict(fitted))
    return found


def fit_scores(
    scores: FloatArray, relevant: BoolArray, seed: int = 0
) -> tuple[Calibration, dict[str, Any]]:
    """Fit to the final scores (m, k) of each query's best items, in descending order, NaN padded;
    which of them are `relevant` (m, k). The calibration, and what `fit_calibration` returns of it.
    """
    known = ~np.isnan(scores)
    if not 0 < relevant[known].sum() < known.sum():
        which = "all" if relevant[known].any() else "none"
        raise InputError(
            f"{which} of the {known.sum()} items that were found are relevant: calibration needs "
            "both kinds; do the ids of the judgements agree with the index's?"
        )
    sums = features(scores, scores)
    fold = np.random.default_rng(seed).permutation(len(scores)) % min(FOLDS, len(scores))
    held = {way: np.full(scores.shape, np.nan) for way in WAYS}
    for part in np.unique(fold):
        out = fold == part
        for way in WAYS:
            weights, at, chance = _curve(way, sums[~out], relevant[~out], known[~out])
            held[way][out] = np.interp(sums[out] @ weights, at, chance)
    brier = {w: float(np.square(p - relevant)[known].mean()) for w, p in held.items()}
    way = min(WAYS, key=brier.__getitem__)
    some = np.any(relevant, axis=1)
    top, found = _isotonic(held[way][:, 0], some) if not some.all() else (np.zeros(1), np.ones(1))
    logistic = np.exp(-np.logaddexp(0, -scores[known]))
    after, before = ((p, relevant[known]) for p in (held[way][known], logistic))
    return Calibration(*_curve(way, sums, relevant, known), top, found), {
        "way": way,
        "brier": brier,
        "queries": len(scores),
        "items": int(known.sum()),
        "relevant": int(relevant[known].sum()),
        "ece": calibration_error(*after),
        "ece_logistic": calibration_error(*before),
        "reliability": reliability(*after).tolist(),
        "reliability_logistic": reliability(*before).tolist(),
    }


def reliability(chance: FloatArray, relevant: BoolArray, bins: int = BINS) -> FloatArray:
    """Of `bins` of as many of p items, by ascending probability: the mean probability, the share
    that is relevant, and the number of items (bins, 3).

    >>> reliability(np.array([0.9, 0.1]), np.array([True, False]), 2).tolist()
    [[0.1, 0.0, 1.0], [0.9, 1.0, 1.0]]
    """
    parts = np.array_split(np.argsort(chance, kind="stable"), min(bins, len(chance)))
    return np.array([(chance[p].mean(), relevant[p].mean(), len(p)) for p in parts])


def calibration_error(chance: FloatArray, relevant: BoolArray, bins: int = BINS) -> float:
    """Expected calibration error, 0-1: how far probability and share of the bins lie apart, in the
    mean over items (Nguyen and O'Connor 2015, with bins of as many items).

    >>> calibration_error(np.array([0.75, 0.25]), np.array([True, False]), 2)
    0.25
    """
    means, shares, counts = reliability(chance, relevant, bins).T
    return float(np.abs(means - shares) @ counts / counts.sum())


def _curve(
    way: str, sums: FloatArray, relevant: BoolArray, known: BoolArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Weights of the features (m, k, 3), and the isotonic curve over their sum."""
    rows, which = sums[known], relevant[known]
    weights = np.array(WAYS[way] or SCORE)
    if WAYS[way] is None and 0 < which.sum() < len(which):
        weights = logistic_weights(rows, which, ridge=1.0)
    return weights, *_isotonic(rows @ weights, which)


def _isotonic(values: FloatArray, found: BoolArray) -> tuple[FloatArray, FloatArray]:
    """The knots (b,) and probabilities (b,) of the rising curve nearest to what was `found` (p,);
    1 / (p + 2) from 0 and 1 at least, since p items show no more."""
    at, chance = isotonic(values, found)
    edge = 1 / (len(values) + 2)
    return at, chance.clip(edge, 1 - edge)
