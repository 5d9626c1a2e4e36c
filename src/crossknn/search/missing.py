"""How many items above a score a search has not scored, expected of its predictions.

    expected(q) = ratio_q  sum over unscored items i of  chance((mean_i - min_score) / std_i)

What is scored is chosen to be high, and says little of how low all the others are. So the last
round is not: it is drawn from the unscored items, in proportion to their chances, and `ratio` is
how many of these items reached the score, over how many were expected to (both plus `PRIOR`).

With anchor queries the `chance` is what came of such predictions when they were searched: isotonic
regression over their unscored items (Zadrozny and Elkan 2002). Without, it is the normal
distribution's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy.special import ndtr

from crossknn.linalg import isotonic
from crossknn.methods.base import Rehearsal
from crossknn.search.loop import Search, simulate
from crossknn.search.plan import Plan, Prediction
from crossknn.types import FloatArray, Queries

Chance: TypeAlias = Callable[[FloatArray], FloatArray]
"""That items predicted so many deviations above a score reach it: (d,) -> (d,)."""

normal: Chance = ndtr
"""The chance where nothing was measured."""

LEAST = 300
"""Unscored items above a threshold that a curve is fitted to: anchors may have fewer above the one
that is asked for, and then it is fitted to a lower one."""

MOST = 100
"""Anchor queries that are searched, at most: evenly spaced ones of all."""

PRIOR = 0.5
"""Items that the chances count as, before any was drawn."""

_CELLS = 1 << 24  # unscored items that are kept, of all anchors
_TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Predictions of unscored items and what they were: `mean`, `std` and `final` scores (c,)."""

    mean: FloatArray
    std: FloatArray
    final: FloatArray

    def chance(self, min_score: float) -> Chance:
        """That an item predicted so many deviations above `min_score` reaches it: (d,) -> (d,)."""
        few = min(LEAST, len(self.final) // 4)
        score = min(min_score, float(-np.partition(-self.final, few)[few]))
        at, height = isotonic((self.mean - score) / self.std, self.final >= score)
        return lambda deviations: np.interp(deviations, at, height)


def rehearse(searches: Iterable[Rehearsal], anchors: int) -> Outcomes | None:
    """What searches of so many anchor queries had left unscored; None if they predict nothing."""
    rows = []
    for plan, queries, scores in searches:
        most = min(MOST, max(_CELLS // scores.shape[1], 1))
        chosen = np.arange(0, len(queries), -(-anchors // most))
        asked, exact = queries.take(chosen), scores[chosen]
        final = exact if plan.known is None else exact + plan.known(asked)
        plan = replace(plan, batches=plan.batches[:-1] or plan.batches)  # the last one is drawn
        for q, mean, std, items in simulate(plan, asked, exact).predicted():
            rows.append((mean, np.maximum(std, _TINY), final[q, items]))
    parts = [np.concatenate(part) for part in zip(*rows, strict=True)]
    return Outcomes(*parts) if parts and len(parts[0]) else None


def with_draw(plan: Plan, chance: Chance, min_score: float, queries: Queries, seed: int) -> Plan:
    """The plan whose last round, if it has several and its predictor deviations, is drawn: without
    replacement, in proportion to what `chance` says of predictions above `min_score`."""
    if len(plan.batches) < 2 or not plan.predictor.has_std:
        return plan

    def drawn(prediction: Prediction) -> FloatArray:
        """log chance + Gumbel noise, whose largest are such a draw (Vieira 2014); of a query of
        which nothing is known, the mean."""
        mean, std = prediction
        assert std is not None
        chosen = mean.astype(np.float64)
        for q in np.flatnonzero(~np.isnan(std).any(axis=1)).tolist():
            chances = chance((mean[q] - min_score) / np.maximum(std[q], _TINY))
            noise = queries.generator(q, seed).gumbel(size=len(chances))
            chosen[q] = np.log(np.maximum(chances, _TINY)) + noise
        return chosen

    return replace(plan, last=drawn)


def expected_missing(search: Search, min_score: float, chance: Chance) -> list[float | None]:
    """The unscored items of each query that are expected to reach `min_score`: (m,); None where
    nothing can be said."""
    left = search.available - search.n_scored
    found: list[float | None] = [None if count else 0.0 for count in left.tolist()]
    picks = search.picks()
    drawn = (picks.rounds >= len(search.plan.batches)) & ~np.isnan(picks.std)
    reached = np.count_nonzero(drawn & (picks.scores + picks.known >= min_score), axis=1)
    for q, mean, std, _ in search.predicted() if left.any() else ():
        ratio = 1.0
        if search.plan.last is not None:
            before = (picks.approx[q] - min_score) / np.maximum(picks.std[q], _TINY)
            expected = chance(before[drawn[q]]).sum() if drawn[q].any() else 0.0
            ratio = float((PRIOR + reached[q]) / (PRIOR + expected))
        found[q] = ratio * float(chance((mean - min_score) / np.maximum(std, _TINY)).sum())
    return found
