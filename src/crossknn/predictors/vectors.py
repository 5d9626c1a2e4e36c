"""What the predictors with one vector per query share: approximate score = query . item."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from crossknn.index.base import Scale
from crossknn.linalg import inner
from crossknn.search.predictor import Prediction, Predictor
from crossknn.types import FloatArray, IntArray, Observed, Queries


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """State of a vector predictor.

    `current` (m, d) predicts; `parametric` (m, d) is what the query's encoder says, if there is
    one; `scales` brings each query's exact scores to the vectors' scale; `seen` (m,) counts the
    exact scores that `current` has already learnt from.
    """

    current: FloatArray
    parametric: FloatArray | None
    scales: tuple[Scale, ...]
    seen: IntArray


class VectorPredictor(Predictor[QueryVectors]):
    """Approximate scores `current @ items.T`, put back on the scale of the exact scores.

    `items` (n, d) are the item vectors, float32 or float16. Subclasses say how a query's vector is
    refitted.
    """

    def __init__(self, items: FloatArray) -> None:
        self.items = items

    def parametric(self, queries: Queries) -> FloatArray | None:
        """The query vectors (m, d) known before any exact score; None if there are none."""
        return None

    @abstractmethod
    def fit(
        self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray
    ) -> tuple[FloatArray, Scale]:
        """Query `row`'s new vector (d,) and scale, from all its items (b,) and raw scores (b,)."""

    def start(self, queries: Queries) -> QueryVectors:
        m = len(queries)
        parametric = self.parametric(queries)
        current = np.zeros((m, self.items.shape[1])) if parametric is None else parametric
        return QueryVectors(
            current.astype(np.float32), parametric, (Scale(),) * m, np.zeros(m, np.int64)
        )

    def update(self, state: QueryVectors, observed: Observed) -> QueryVectors:
        current, scales = state.current.copy(), list(state.scales)
        for row, items, scores in observed.rows():
            current[row], scales[row] = self.fit(state, row, items, scores.astype(np.float64))
        return QueryVectors(current, state.parametric, tuple(scales), observed.counts)

    def predict(self, state: QueryVectors, items: IntArray | None = None) -> Prediction:
        if items is None:
            approx = inner(state.current, self.items)
        else:
            approx = np.stack(
                [self.items[row] @ u for row, u in zip(items, state.current, strict=True)]
            )
        for row, scale in enumerate(state.scales):
            if scale != Scale():
                approx[row] /= scale.beta
                approx[row] += scale.alpha
        return Prediction(approx)


class NormalizedPredictor(VectorPredictor):
    """A vector predictor that fits normalised scores, on a scale settled at the first of them."""

    @abstractmethod
    def scale(self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray) -> Scale:
        """Normalization of query `row`, from its first exact scores: items (b,), scores (b,)."""

    @abstractmethod
    def refit(
        self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray
    ) -> FloatArray:
        """Query `row`'s new vector (d,) from all its scored items (b,), scores (b,) normalised."""

    def fit(
        self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray
    ) -> tuple[FloatArray, Scale]:
        known = state.scales[row] if state.seen[row] else self.scale(state, row, items, scores)
        return self.refit(state, row, items, known.beta * (scores - known.alpha)), known
