"""The reranker distilled into the query vector at search time (ReFIT; Gangi Reddy et al. 2023)."""

from __future__ import annotations

import numpy as np

from crossknn.index.base import Index
from crossknn.predictors.gradient import softmax
from crossknn.predictors.scaled import Normalize, ScaledPredictor
from crossknn.predictors.vectors import QueryVectors
from crossknn.types import FloatArray, IntArray


class Distilled(ScaledPredictor):
    """`steps` steps of gradient descent on KL(softmax(exact) || softmax(query . item)).

    Over all scored items; from the encoder's query vector in the first round, then from the vector
    that the round before left.
    """

    def __init__(
        self, index: Index, vectors: str, *, steps: int, lr: float, normalize: Normalize
    ) -> None:
        super().__init__(index, vectors, normalize)
        self.steps, self.lr = steps, lr

    def refit(
        self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray
    ) -> FloatArray:
        vectors, wanted = self.items[items].astype(np.float64), softmax(scores)
        query = state.current[row].astype(np.float64)
        for _ in range(self.steps):
            query -= self.lr * ((softmax(vectors @ query) - wanted) @ vectors)
        return query
