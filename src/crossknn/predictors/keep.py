"""The predictor that learns nothing: an item is as good as the first stage says (reranking)."""

from __future__ import annotations

import numpy as np

from crossknn.first.base import FirstStage
from crossknn.predictors.base import Prediction, Predictor
from crossknn.types import FloatArray, IntArray, Observed, Queries


class Keep(Predictor[FloatArray]):
    """Predicts a first stage's scores, whatever has been observed."""

    def __init__(self, first: FirstStage) -> None:
        self.first = first

    def start(self, queries: Queries) -> FloatArray:
        return self.first.scores(queries)

    def update(self, state: FloatArray, observed: Observed) -> FloatArray:
        return state

    def predict(self, state: FloatArray, items: IntArray | None = None) -> Prediction:
        if items is None:
            return Prediction(state.copy())
        return Prediction(np.take_along_axis(state, items, axis=1))
