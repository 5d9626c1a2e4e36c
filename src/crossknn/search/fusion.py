"""Fusion: the final score is the exact score plus weighted scores of retrievers.

    final(q, i) = exact(q, i) + sum over retrievers r of  weight_r * score_r(q, i)

The sum is known of every item before anything is scored, and predictors predict the exact part, so
that what is searched for, returned and measured is the top k by the final score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.specs import FUSION, open_weighted
from crossknn.search.plan import KnownPart, Plan, Prediction, Predictor
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Observed, Queries

Fuse: TypeAlias = Mapping[str, float] | str | None
"""Weights by retriever, each in deviations; "auto" for the fitted ones, if there are any; none."""


@dataclass(frozen=True, eq=False)
class Fusion:
    """What is added to exact scores: `retriever`'s scores, in their units."""

    retriever: Retriever

    def known(self, queries: Queries) -> FloatArray:
        """What is added to the exact scores of all items: (m, n)."""
        return self.retriever.scores(queries)

    def plan(self, plan: Plan) -> Plan:
        """The plan that searches for the top k by the final score."""
        known = lru_cache(maxsize=1)(self.known)  # loop and predictor ask for the same queries
        return replace(plan, predictor=Fused(plan.predictor, known), known=known)


class Fused(Predictor[tuple[Any, FloatArray]]):
    """Predicts final scores: the exact part by `predictor`, the other part is known.

    A predictor whose numbers are no scores is given final scores in the place of exact ones.
    """

    def __init__(self, predictor: Predictor[Any], known: KnownPart) -> None:
        self.predictor, self.known = predictor, known
        self.has_std = predictor.has_std  # type: ignore[misc]

    def start(self, queries: Queries) -> tuple[Any, FloatArray]:
        return self.predictor.start(queries), self.known(queries)

    def update(self, state: tuple[Any, FloatArray], observed: Observed) -> tuple[Any, FloatArray]:
        if not self.predictor.predicts_scores:
            part = np.take_along_axis(state[1], np.maximum(observed.items, 0), axis=1)
            observed = replace(observed, scores=observed.scores + part)
        return self.predictor.update(state[0], observed), state[1]

    def predict(self, state: tuple[Any, FloatArray], items: IntArray | None = None) -> Prediction:
        mean, std = self.predictor.predict(state[0], items)
        if not self.predictor.predicts_scores:
            return Prediction(mean, std)
        part = state[1] if items is None else np.take_along_axis(state[1], items, axis=1)
        return Prediction(mean + part, std)

    def acquisition(self, prediction: Prediction) -> FloatArray:
        return self.predictor.acquisition(prediction)

    def joining(
        self,
        state: tuple[Any, FloatArray],
        count: int,
        exclude: IntArray,
        allowed: BoolArray | None = None,
    ) -> IntArray:
        return self.predictor.joining(state[0], count, exclude, allowed)

    def top(self, state: tuple[Any, FloatArray], *args: Any) -> Candidates:
        if self.predictor.predicts_scores:
            return super().top(state, *args)
        return self.predictor.top(state[0], *args)


def open_fusion(index: Index, fuse: Fuse, seed: int) -> Fusion | None:
    """The fusion that is asked for; None for none, and for "auto" where nothing was fitted.

    Raises `InputError` where the index has no deviations, or none for one of the weights.
    """
    if not isinstance(fuse, Mapping | None) and fuse not in ("auto", "none"):
        raise InputError(f"fuse is {fuse!r}; give 'auto', None, or weights such as {{'dense': 1}}")
    if fuse in (None, "none") or (fuse == "auto" and FUSION not in index.artifacts):
        return None
    weights = fuse if isinstance(fuse, Mapping) else None
    if weights is not None and not any(weights.values()):
        return None
    return Fusion(open_weighted(index, weights, seed))
