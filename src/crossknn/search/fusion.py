"""The final score of an item, by fusion, and its probability of relevance, by calibration.

    final(q, i) = exact(q, i) + sum over retrievers r of  weight_r * score_r(q, i)

The weighted sum is known for every item before anything is scored, so predictors predict only the
exact score; a search looks for the top k by final score.

A cross-encoder's scores shift from query to query. So the probability of an item depends on a
weighted sum of three features: its score, the mean of its query's best scores, and its lead over
the best other score. `fitting.calibration` fits the weights to judgements. Axes: m queries, n
items, k hits of a query, c best scores of a query.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.methods.base import AddedScores, Plan, Prediction, Predictor
from crossknn.retrievers.base import WeightedSum
from crossknn.retrievers.specs import FUSION, open_weighted
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Observed, Queries

CALIBRATION = "calibration"
"""Name under which an index stores a fitted calibration."""

CONTEXT = 10
"""Number of a query's best scores whose mean is the second feature."""

Fuse: TypeAlias = Mapping[str, float] | str | None
"""Weights of retrievers by name, in standard deviations of their scores; "auto": the fitted weights
if the index has any; None: no fusion."""

FusedState: TypeAlias = tuple[Any, FloatArray]
"""The wrapped predictor's state, and the weighted retrievers' scores of all items (m, n)."""


@dataclass(frozen=True, eq=False)
class Fusion:
    """A fusion of exact scores with the scores of `retriever`, in units of exact scores."""

    retriever: WeightedSum

    def added(self, queries: Queries) -> FloatArray:
        """Compute the weighted retrievers' scores of all items: (m, n)."""
        return self.retriever.scores(queries)

    def plan(self, plan: Plan) -> Plan:
        """Return a plan that searches for the top k by final score."""
        added = lru_cache(maxsize=1)(self.added)  # the loop and the predictor both call it
        return replace(plan, predictor=Fused(plan.predictor, added), added=added)


class Fused(Predictor[FusedState]):
    """Predicts final scores: `predictor` predicts the exact score, and the weighted retrievers'
    scores are added.

    A predictor that does not predict scores on the exact scale is given final scores to learn from.
    """

    def __init__(self, predictor: Predictor[Any], added: AddedScores) -> None:
        self.predictor, self.added = predictor, added

    def start(self, queries: Queries) -> FusedState:
        return self.predictor.start(queries), self.added(queries)

    def update(self, state: FusedState, observed: Observed) -> FusedState:
        if not self.predictor.predicts_scores:
            added = np.take_along_axis(state[1], np.maximum(observed.items, 0), axis=1)
            observed = replace(observed, scores=observed.scores + added)
        return self.predictor.update(state[0], observed), state[1]

    def predict(self, state: FusedState, items: IntArray | None = None) -> Prediction:
        mean, std = self.predictor.predict(state[0], items)
        if not self.predictor.predicts_scores:
            return Prediction(mean, std)
        added = state[1] if items is None else np.take_along_axis(state[1], items, axis=1)
        return Prediction(mean + added, std)

    def acquisition(self, prediction: Prediction) -> FloatArray:
        return self.predictor.acquisition(prediction)

    def taught(self, state: FusedState) -> int:
        return self.predictor.taught(state[0])

    def joining(
        self, state: FusedState, count: int, exclude: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        return self.predictor.joining(state[0], count, exclude, allowed)

    def top(self, state: FusedState, *args: Any) -> Candidates:
        if self.predictor.predicts_scores:
            return super().top(state, *args)
        return self.predictor.top(state[0], *args)


def open_fusion(index: Index, fuse: Fuse, seed: int) -> Fusion | None:
    """Open the requested fusion; None without a request, or for "auto" if no fusion was fitted.

    Raises `InputError` if weights need a fitted fusion, but it is missing or lacks a retriever.
    """
    if not isinstance(fuse, Mapping | None) and fuse not in ("auto", "none"):
        raise InputError(f"fuse is {fuse!r}; give 'auto', None, or weights such as {{'dense': 1}}")
    if fuse in (None, "none") or (fuse == "auto" and FUSION not in index.artifacts):
        return None
    weights = fuse if isinstance(fuse, Mapping) else None
    if weights is not None and not any(weights.values()):
        return None
    return Fusion(open_weighted(index, weights, seed))


def features(scores: FloatArray, best: FloatArray) -> FloatArray:
    """Compute the features (m, k, 3) of scores (m, k), given each query's best scores in descending
    order (m, c): the score, the mean of the best scores, and the lead over the best other score.
    Rows are padded with NaN.

    >>> features(np.array([[5.0, 2.0]]), np.array([[5.0, 2.0]]))[0].tolist()
    [[5.0, 3.5, 3.0], [2.0, 3.5, -3.0]]
    """
    scored = ~np.isnan(best)
    mean = np.where(scored, best, 0).sum(axis=1) / np.maximum(scored.sum(axis=1), 1)
    first = best[:, :1]
    second = best[:, 1:2] if best.shape[1] > 1 else np.full_like(first, np.nan)
    lead = scores - np.where(scores >= first, np.where(np.isnan(second), first, second), first)
    return np.stack([scores, np.broadcast_to(mean[:, None], scores.shape), lead], axis=2)


@dataclass(frozen=True, eq=False)
class Calibration:
    """Tables from which probabilities are interpolated linearly.

    `weights` (3,) give the weighted sum of an item's features; a sum in `at` (b,) means the
    probability at the same place in `chance` (b,). If a query's best item has a probability in
    `top` (d,), one of its 10 best items is relevant with the probability in `found` (d,).
    """

    weights: FloatArray
    at: FloatArray
    chance: FloatArray
    top: FloatArray
    found: FloatArray

    def probabilities(self, scores: FloatArray, best: FloatArray) -> FloatArray:
        """Compute the probabilities (m, k) that items with these final scores (m, k) are
        relevant."""
        return np.interp(features(scores, best) @ self.weights, self.at, self.chance)

    def none_relevant(self, best: FloatArray) -> FloatArray:
        """Compute the probabilities (m,) that none of a query's 10 best items is relevant; NaN if
        nothing was scored."""
        if not best.shape[1]:
            return np.full(len(best), np.nan)
        return 1 - np.interp(self.probabilities(best[:, :1], best)[:, 0], self.top, self.found)


def open_calibration(
    index: Index, fusion: Fusion | None, fingerprint: str | None
) -> Calibration | None:
    """Return the index's calibration, if it was fitted to this cross-encoder's scores with the same
    fusion."""
    kept = index.artifacts.get(CALIBRATION)
    if kept is None or kept.meta["fingerprint"] != fingerprint:
        return None
    if not np.array_equal(kept.meta["fusion"], weights_of(fusion)):
        return None
    return Calibration(**{name: np.asarray(values) for name, values in kept.arrays.items()})


def weights_of(fusion: Fusion | None) -> list[float]:
    """Return the weights by which fusion multiplies retrievers' scores; [] without fusion."""
    return [] if fusion is None else [float(weight) for weight in fusion.retriever.weights]
