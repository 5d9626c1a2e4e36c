"""The predictor that learns nothing: an item is as good as the retriever says (reranking)."""

from __future__ import annotations

import numpy as np

from crossknn.retrievers.base import Retriever
from crossknn.search.predictor import Prediction, Predictor
from crossknn.types import FloatArray, IntArray, Observed, Queries


class FirstStageScores(Predictor[FloatArray]):
    """Predicts a retriever's scores, whatever has been observed."""

    def __init__(self, retriever: Retriever) -> None:
        self.retriever = retriever

    def start(self, queries: Queries) -> FloatArray:
        return self.retriever.scores(queries)

    def update(self, state: FloatArray, observed: Observed) -> FloatArray:
        return state

    def predict(self, state: FloatArray, items: IntArray | None = None) -> Prediction:
        if items is None:
            return Prediction(state.copy())
        return Prediction(np.take_along_axis(state, items, axis=1))
