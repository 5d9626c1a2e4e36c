"""When a search has found enough: `target_recall` of kriging, calibrated on the anchor queries.

A search expects to have found a share of its true top k (`crossknn.search.stopping`). Predictions
are a little too sure of themselves, so a target is not an expectation. Each anchor is searched with
the prior of the others, and what these searches expected and achieved says at which expectation a
search has to stop so that the target is reached.

Axes: m searches, t rounds, n items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.fitting.kriging import cross_fitted
from crossknn.index.base import Index, lacking
from crossknn.index.item_index import ItemIndex
from crossknn.linalg import top_k
from crossknn.methods import DEFAULT, parse_method
from crossknn.methods.kriging import NEVER, STOPPING, Kriging, stopping_key, trend_retrievers
from crossknn.scorers import as_scorer
from crossknn.search.loop import simulate
from crossknn.search.plan import Plan, Stop
from crossknn.spec import parse
from crossknn.types import Artifact, BoolArray, FloatArray, Queries

FOLDS = 10
"""Parts of the anchor queries that are searched, each with what the others teach."""

FEWEST = 3
"""Anchors, at least, that calibrate anything."""

Rehearsal: TypeAlias = tuple[Plan, Queries, FloatArray]
"""A search whose outcome can be judged: its plan, m queries, and their exact scores (m, n)."""


def fit_stopping(
    index: ItemIndex,
    scorer: Any,
    *,
    method: str | Kriging = DEFAULT,
    k: int = 10,
    budget: int = 100,
    seed: int = 0,
) -> None:
    """Calibrate `target_recall` for searches with this k and budget, and keep that with the index.

    It makes no calls. Nothing is done where the index has this calibration, of the same anchors.

    Args:
        index: The index, with three anchor queries or more of this cross-encoder.
        scorer: The cross-encoder.
        method: Kriging, with the options of the searches that are to use it.
        k: How many items a search is to find.
        budget: The most that a query may spend.
        seed: Seed of the searches.

    Raises:
        InputError: There are too few anchors, or the method is another one.
    """
    chosen = parse_method(method)
    if not isinstance(chosen, Kriging):
        raise InputError(f"{chosen.name} cannot estimate its recall: use kriging")
    chosen = replace(chosen, k=k, target_recall=None)
    fingerprint = as_scorer(scorer).fingerprint
    own = index.for_scorer(fingerprint)
    known = own.artifacts.get(STOPPING)
    made = stopping_artifact(own, chosen, budget, seed, known)
    if made is not known:
        meta = {**made.meta, "fingerprint": fingerprint}
        own.put_artifact(STOPPING, meta, {})


def stopping_artifact(
    index: Index, method: Kriging, budget: int, seed: int = 0, known: Artifact | None = None
) -> Artifact:
    """The calibration of this search, beside those that are `known` of the same anchors."""
    anchors = index.anchors if method.use_anchors else None
    if anchors is None or len(anchors.scores) < FEWEST:
        raise InputError(
            f"{method}: target_recall is calibrated on three anchor queries or more"
            f", scored with this cross-encoder{lacking(index, 'anchors')}: add some with  "
            "crossknn collect INDEX --anchors QUERIES"
            + ("" if method.use_anchors else ", or leave out use_anchors=false")
        )
    count, key, curves = len(anchors.scores), stopping_key(method, budget), dict[str, Any]()
    if known is not None and known.meta["anchors"] == count:
        if key in known.meta["curves"]:
            return known
        curves = dict(known.meta["curves"])
    curves[key] = record_curve(rehearsals(index, method, budget, seed), method.k).corners()
    return Artifact({"anchors": count, "curves": curves}, {})


def rehearsals(index: Index, method: Kriging, budget: int, seed: int) -> Iterator[Rehearsal]:
    """Searches of the anchor queries, each with a prior that knows nothing of their scores."""
    anchors, prior = index.anchors, method.prior(index)
    assert anchors is not None
    retriever = method.mean or trend_retrievers(index)
    if prior is not None:
        retriever = parse(prior.retriever)
    for fold, without in cross_fitted(index, retriever, FOLDS):
        plan = method.plan_with(without, index, budget, seed)
        yield plan, anchors.queries.take(fold), anchors.scores[fold]


@dataclass(frozen=True, slots=True)
class CalibrationCurve:
    """What m searches expected of their top k before each round and at the end (NaN), and what they
    had achieved: (t, m)."""

    expected: FloatArray
    achieved: FloatArray

    def recall(self, threshold: float) -> float:
        """What queries reach that stop when they expect so much, or at the end: their mean less its
        standard error, since other queries than these are to be promised something."""
        enough: BoolArray = self.expected >= threshold
        enough[-1] = True
        reached = self.achieved[enough.argmax(axis=0), np.arange(enough.shape[1])]
        return float(reached.mean() - reached.std() / np.sqrt(len(reached)))

    def corners(self) -> list[tuple[float, float]]:
        """(expectation, recall that it and every higher one reach): falling expectations, of each
        recall the lowest."""
        known, lowest, corners = self.expected[:-1], np.inf, dict[float, float]()
        for tried in np.unique(known[np.isfinite(known)])[::-1].tolist():
            lowest = min(lowest, self.recall(tried))
            corners[lowest] = tried
        return [(expected, recall) for recall, expected in corners.items()]


def record_curve(searches: Iterable[Rehearsal], k: int) -> CalibrationCurve:
    """Search queries whose exact scores (m, n) are known, each part by its plan, to the end."""
    expected, achieved = [], []
    for plan, queries, scores in searches:
        search = simulate(replace(plan, stop=Stop(k=k, expected=NEVER)), queries, scores)
        picks, truth = search.picks().items, top_k(scores, k).items
        hits = np.array([np.isin(p, t) for p, t in zip(picks, truth, strict=True)])
        so_far, rows = np.cumsum(hits, axis=1) / truth.shape[1], np.arange(len(scores))
        before = [so_far[rows, count - 1] for count, _ in search.expectations]
        achieved.append([*before, so_far[:, -1]])
        expected.append([*(e for _, e in search.expectations), np.full(len(scores), np.nan)])
    return CalibrationCurve(np.hstack(expected), np.hstack(achieved))
