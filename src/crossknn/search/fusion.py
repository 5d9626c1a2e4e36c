"""Fusion: the final score is the exact score plus weighted scores of retrievers.

    final(q, i) = exact(q, i) + sum over retrievers r of  weight_r * score_r(q, i)

The sum is known of every item before anything is scored, and predictors predict the exact part, so
that what is searched for, returned and measured is the top k by the final score.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.specs import open_retriever
from crossknn.search.plan import KnownPart, Plan, Prediction, Predictor
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Observed, Queries

FUSION = "fusion"
"""What an index keeps the fitted weights as."""

Fuse: TypeAlias = Mapping[str, float] | str | None
"""Weights by retriever, each in deviations; "auto" for the fitted ones, if there are any; none."""


@dataclass(frozen=True, eq=False)
class Fusion:
    """Retrievers and their `weights`, in units of the exact score for each unit of theirs."""

    retrievers: tuple[Retriever, ...]
    weights: tuple[float, ...]

    def known(self, queries: Queries) -> FloatArray:
        """The weighted sums of all items: (m, n)."""
        both = zip(self.weights, self.retrievers, strict=True)
        parts = [np.float32(weight) * stage.scores(queries) for weight, stage in both]
        return np.sum(parts, axis=0, dtype=np.float32)

    def plan(self, plan: Plan) -> Plan:
        """The plan that searches for the top k by the final score."""
        return replace(plan, predictor=Fused(plan.predictor, self.known), known=self.known)


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

    def shortlist(
        self, state: tuple[Any, FloatArray], pool: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        return self.predictor.shortlist(state[0], pool, allowed)

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
    fitted = index.artifacts.get(FUSION)
    if fuse in (None, "none") or (fuse == "auto" and fitted is None):
        return None
    if fitted is None:
        how = "fit them with  crossknn fit INDEX fusion --queries FILE"
        raise InputError(f"weights are in deviations of scores, and the index knows none: {how}")
    deviations = fitted.meta["deviations"]
    known = deviations.keys() - {"exact"}
    weights = fuse if isinstance(fuse, Mapping) else fitted.meta["weights"]
    for name, weight in weights.items():
        if name not in known or not isinstance(weight, int | float) or not np.isfinite(weight):
            raise InputError(
                f"fuse gives {name!r} the weight {weight!r}: give finite numbers for retrievers of "
                f"which deviations are known, {', '.join(sorted(known))}"
            )
    used = {name: weight for name, weight in weights.items() if weight}
    if not used:
        return None
    return Fusion(
        retrievers=tuple(open_retriever(index, name, seed) for name in used),
        weights=tuple(w * deviations["exact"] / deviations[name] for name, w in used.items()),
    )
