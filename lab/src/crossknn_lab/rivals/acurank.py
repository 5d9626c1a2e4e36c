"""AcuRank: calls where the top k is uncertain, and so many as that needs (Yoon et al., 2505.18512).

AcuRank                              here
relevance x_i ~ N(mu_i, sigma_i^2)   exact scores; of unscored items, a line through the retriever's
t, s_i = P(x_i > t), sum s_i = R     `level`, R = `k`
uncertain: eps < s_i < 1 - eps       `tolerance`
stop: fewer than U are uncertain     `uncertain`
windows of 20                        `batch`

Axes: m queries, b scored items of a query, c items.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn.errors import SpecError
from crossknn.index.base import Index
from crossknn.methods.base import FAR, SMALLEST, Method, Plan, Prediction, Predictor, Stop
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.specs import AUTO, open_retriever
from crossknn.spec import Spec, option
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Observed, Queries
from crossknn_lab.rivals.graph_methods import in_batches

CLOSE = 1e-6
"""How near `level` is found, as a share of the range of scores."""
LEAST = 3
"""Scores of a query, at least, that a line and its deviation are fitted to."""


@dataclass(frozen=True, kw_only=True)
class AcuRank(Method):
    """Rerank, and say of each query how uncertain its top k still is.

    A pair's exact score is certain, so what is left to score comes in the retriever's order: with
    the same budget for each query it finds what `rerank` finds. The uncertainty decides how many
    calls each query gets, with `uncertain`.

    Args:
        retriever: Ranks the items; a line turns its scores into exact ones.
        batch: Pairs scored at once.
        shortlist: Items of the retriever that have a chance of being in the top k; as many as the
            budget if that is more.
        uncertain: A query ends when fewer items than this are uncertain; its budget is then what it
            may spend at most. By default all of the budget is spent.
        tolerance: An item is certain if its chance of being in the top k is below this, or above
            1 - this.
        k: How many are to be found, where `uncertain` ends queries.
    """

    name = "acurank"
    retriever: Spec = AUTO
    batch: int = option(20, least=1)
    shortlist: int = option(100, least=1)
    uncertain: int | None = option(None, least=1)
    tolerance: float = 0.01
    k: int = option(10, least=1)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        if not 0 < self.tolerance < 0.5:
            raise SpecError(f"{self}: tolerance must lie between 0 and 0.5")
        retriever = open_retriever(index, self.retriever, seed)
        few = self.uncertain
        stop = few and StopWhenCertain(k=self.k, expected=1 - few, tolerance=self.tolerance)
        return Plan(
            retriever=retriever,
            predictor=Calibrated(retriever),
            batches=in_batches(budget, self.batch),
            shortlist=self.shortlist if self.shortlist < index.n else None,
            stop=stop or None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StopWhenCertain(Stop):
    """A query is done when few unscored items are uncertain, as AcuRank stops: their number, minus
    1 times, is `expected` or more. `tolerance` as of `n_uncertain`."""

    tolerance: float

    def value(self, known: FloatArray, mean: FloatArray, std: FloatArray) -> float:
        """Minus the number of uncertain items; arguments as of `Stop.value`."""
        return -float(n_uncertain(known, mean, std, self.k, self.tolerance))


def n_uncertain(
    known: FloatArray, mean: FloatArray, std: FloatArray, k: int, tolerance: float
) -> int:
    """How many unscored items may be in the top k or not: their chance of being above the `level`
    lies between `tolerance` and 1 - `tolerance` (AcuRank, 2505.18512).

    `known` (b,) are exact scores, `mean` and `std` (c,) the predictions of the unscored items.

    >>> n_uncertain(np.array([2.0, 1.0]), np.array([1.5, -9.0]), np.array([1.0, 1.0]), 2, 0.01)
    1
    """
    from scipy.special import ndtri

    if not len(mean):
        return 0
    deviations = np.maximum(std, SMALLEST, dtype=np.float64)
    z = (mean - level(known, mean, deviations, k)) / deviations
    z[np.argsort(-z, kind="stable")[: max(k - len(known), 0)]] = np.inf  # it takes them to have k
    return int(np.count_nonzero(np.abs(z) < -ndtri(tolerance)))


def level(known: FloatArray, mean: FloatArray, std: FloatArray, k: int) -> float:
    """The score above which k of all items are expected, known (b,) or not (c,); by bisection."""
    from scipy.optimize import bisect
    from scipy.special import ndtr

    def excess(score: float) -> float:
        return float(np.count_nonzero(known > score) + ndtr((mean - score) / std).sum() - k)

    if len(known) + len(mean) <= k:
        return float(np.concatenate([known, mean]).min())
    ends = np.concatenate([known, mean - FAR * std, mean + FAR * std])
    low, high = float(ends.min()) - 1, float(ends.max())
    return float(bisect(excess, low, high, xtol=(high - low) * CLOSE))


@dataclass(frozen=True, slots=True)
class Lines:
    """Of m queries: mean = `slopes` x retriever's score + `offsets`, and deviations; (m,) each."""

    queries: Queries
    slopes: FloatArray
    offsets: FloatArray
    stds: FloatArray


@dataclass(frozen=True, eq=False)
class Calibrated(Predictor[Lines]):
    """Predicts by a line through the retriever's scores, and chooses in the retriever's order."""

    retriever: Retriever

    def start(self, queries: Queries) -> Lines:
        m = len(queries)
        return Lines(queries, np.ones(m), np.zeros(m), np.full(m, np.nan))

    def update(self, state: Lines, observed: Observed) -> Lines:
        cheap = self.retriever.scores(state.queries, observed.items)
        lines = [(1.0, 0.0, np.nan)] * len(state.queries)
        for q, items, scores in observed.rows():
            if len(scores) >= LEAST:
                lines[q] = _line(cheap[q, : len(items)].astype(np.float64), scores)
        return Lines(state.queries, *np.array(lines).T)

    def predict(self, state: Lines, items: IntArray | None = None) -> Prediction:
        return self._at(state, self.retriever.scores(state.queries, items))

    def top(
        self,
        state: Lines,
        count: int,
        exclude: IntArray,
        allowed: BoolArray | None = None,
        pool: IntArray | None = None,
    ) -> Candidates:
        """What the retriever ranks next: an item's chance rises with its score."""
        found = self.retriever.top(state.queries, exclude.shape[1] + count, allowed)
        rows = []
        for row, scores, out in zip(found.items, found.scores, exclude, strict=True):
            kept = np.flatnonzero((row != NO_ITEM) & ~np.isin(row, out))[:count]
            rows.append((row[kept], scores[kept]))
        ranked = Candidates.from_rows(rows)
        mean, std = self._at(state, ranked.scores)
        return Candidates(ranked.items, mean, std)

    def _at(self, state: Lines, cheap: FloatArray) -> Prediction:
        """Means and deviations (m, c) for the retriever's scores (m, c)."""
        mean = state.slopes[:, None] * cheap + state.offsets[:, None]
        std = np.broadcast_to(state.stds[:, None], cheap.shape)
        return Prediction(mean.astype(np.float32), std.astype(np.float32))


def _line(cheap: FloatArray, exact: FloatArray) -> tuple[float, float, float]:
    """Slope, not below 0, and offset of exact scores (b,) by the retriever's (b,), by least
    squares, and the deviation about this line."""
    moved, scores = cheap - cheap.mean(), exact.astype(np.float64)
    square = float(moved @ moved)
    slope = max(0.0, float(moved @ scores) / square) if square > 0 else 0.0
    rest = scores - scores.mean() - slope * moved
    std = np.sqrt(rest @ rest / (len(scores) - 2))
    return slope, float(scores.mean() - slope * cheap.mean()), float(std)
