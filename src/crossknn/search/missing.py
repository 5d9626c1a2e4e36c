"""How many items above a score a search has not scored, expected of its predictions.

    expected(q) = sum over unscored items i of  chance((mean_i - min_score) / std_i)

With anchor queries the `chance` is what came of such predictions when they were searched: isotonic
regression over their unscored items (Zadrozny and Elkan 2002). Without, it is the normal
distribution's, which sums to several times too much for `gp`: what is scored is chosen to be high,
so that predictions far from it are too high as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from crossknn.methods.base import Rehearsal
from crossknn.search.loop import Search, simulate
from crossknn.types import FloatArray

LEAST = 300
"""Unscored items above a threshold that a curve is fitted to: anchors may have fewer above the one
that is asked for, and then it is fitted to a lower one."""

MOST = 100
"""Anchor queries that are searched, at most: evenly spaced ones of all."""

_CELLS = 1 << 24  # unscored items that are kept, of all anchors
_TINY = np.finfo(np.float32).tiny


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Predictions of unscored items and what they were: `mean`, `std` and `final` scores (c,)."""

    mean: FloatArray
    std: FloatArray
    final: FloatArray

    def chance(self, min_score: float) -> Callable[[FloatArray], FloatArray]:
        """That an item predicted so many deviations above `min_score` reaches it: (d,) -> (d,)."""
        from sklearn.isotonic import IsotonicRegression

        few = min(LEAST, len(self.final) // 4)
        score = min(min_score, float(-np.partition(-self.final, few)[few]))
        curve = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip")
        curve.fit((self.mean - score) / self.std, self.final >= score)
        predict: Callable[[FloatArray], FloatArray] = curve.predict
        return predict


def rehearse(searches: Iterable[Rehearsal], anchors: int) -> Outcomes | None:
    """What searches of so many anchor queries had left unscored; None if they predict nothing."""
    rows = []
    for plan, queries, scores in searches:
        most = min(MOST, max(_CELLS // scores.shape[1], 1))
        chosen = np.arange(0, len(queries), -(-anchors // most))
        asked, exact = queries.take(chosen), scores[chosen]
        final = exact if plan.known is None else exact + plan.known(asked)
        for q, items, mean, std in simulate(plan, asked, exact).predicted():
            rows.append((mean, np.maximum(std, _TINY), final[q, items]))
    parts = [np.concatenate(part) for part in zip(*rows, strict=True)]
    return Outcomes(*parts) if parts and len(parts[0]) else None


def expected_missing(
    search: Search, min_score: float, outcomes: Outcomes | None
) -> list[float | None]:
    """The unscored items of each query that are expected to reach `min_score`: (m,); None where
    nothing can be said."""
    from scipy.special import ndtr

    left = search.available - search.n_scored
    found: list[float | None] = [None if count else 0.0 for count in left.tolist()]
    chance = ndtr if outcomes is None else outcomes.chance(min_score)
    for q, _, mean, std in search.predicted():
        found[q] = float(chance((mean - min_score) / np.maximum(std, _TINY)).sum())
    return found
