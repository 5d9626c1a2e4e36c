"""Calibrate kriging's `target_recall` on the anchor queries.

A search's estimates of its own recall (`expected_recall`) are slightly too high. Calibration
searches each anchor query with a prior fitted to the others, compares estimated with actual recall,
and finds the estimate at which a search must stop to reach the target.

Axes: m searches, t rounds, n items.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from crossknn.fitting.kriging import cross_fitted
from crossknn.index.base import Index
from crossknn.linalg import top_k
from crossknn.methods.base import Plan, Stop
from crossknn.methods.kriging import NEVER, Corners, Kriging, calibrated
from crossknn.methods.prior import trend_retrievers
from crossknn.search.loop import simulate
from crossknn.spec import parse
from crossknn.types import BoolArray, FloatArray, Queries

FOLDS = 10
"""Number of folds of the anchor queries; each is searched with a prior fitted to the others."""

Rehearsal: TypeAlias = tuple[Plan, Queries, FloatArray]
"""A search with a known outcome: its plan, m queries, and their exact scores (m, n)."""


def calibrate(index: Index, method: Kriging, budget: int, seed: int = 0) -> Corners:
    """Calibrate `target_recall` for searches with a method, its `k`, and a budget, by searching for
    the anchors; the index keeps the result in memory until its anchors change."""
    return calibrated(
        method,
        index,
        budget,
        lambda: record_curve(rehearsals(index, method, budget, seed), method.k).corners(),
    )


def rehearsals(index: Index, method: Kriging, budget: int, seed: int) -> Iterator[Rehearsal]:
    """Make searches of the anchor queries, each with a prior fitted without them."""
    anchors, prior = index.anchors, method.prior(index)
    assert anchors is not None
    mean = method.mean or trend_retrievers(index)
    retriever = mean if prior is None else parse(prior.retriever)
    for fold, without in cross_fitted(index, retriever, FOLDS):
        plan = method.plan_with(without, index, budget, seed)
        yield plan, anchors.queries.take(fold), anchors.scores[fold]


@dataclass(frozen=True, slots=True)
class CalibrationCurve:
    """Expected recall of m searches before each round and at the end (NaN), and their actual
    recall: (t, m)."""

    expected: FloatArray
    achieved: FloatArray

    def recall(self, threshold: float) -> float:
        """Return the recall of queries that stop at this expected recall, or at the end: the mean
        minus its standard error, since it must hold for other queries."""
        enough: BoolArray = self.expected >= threshold
        enough[-1] = True
        reached = self.achieved[enough.argmax(axis=0), np.arange(enough.shape[1])]
        return float(reached.mean() - reached.std() / np.sqrt(len(reached)))

    def corners(self) -> Corners:
        """Return pairs (expected recall, actual recall at this and all higher expectations), in
        falling order, with the lowest expectation for each recall."""
        expected, lowest, corners = self.expected[:-1], np.inf, dict[float, float]()
        for threshold in np.unique(expected[np.isfinite(expected)])[::-1].tolist():
            lowest = min(lowest, self.recall(threshold))
            corners[lowest] = threshold
        return [(expected, recall) for recall, expected in corners.items()]


def record_curve(searches: Iterable[Rehearsal], k: int) -> CalibrationCurve:
    """Search queries whose exact scores (m, n) are known to the end, each group by its plan."""
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
