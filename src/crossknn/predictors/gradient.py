"""One gradient step on the query vector after each batch: TOUR as AXN runs it (AXN B.2)."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from crossknn.index.base import Index
from crossknn.predictors.scaled import Normalize, ScaledPredictor
from crossknn.predictors.vectors import QueryVectors
from crossknn.types import FloatArray, IntArray

Loss: TypeAlias = Literal["kl", "mse"]


class GradientStep(ScaledPredictor):
    """`u - lr * gradient` of KL(softmax(exact) || softmax(approx)) or of the mean squared error.

    The loss is taken over the items of the latest batch.
    """

    def __init__(
        self, index: Index, vectors: str, *, loss: Loss, lr: float, normalize: Normalize
    ) -> None:
        super().__init__(index, vectors, normalize)
        self.loss, self.lr = loss, lr

    def refit(
        self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray
    ) -> FloatArray:
        latest = slice(int(state.seen[row]), None)
        batch, exact = self.items[items[latest]].astype(np.float64), scores[latest]
        if not len(batch):
            return state.current[row]
        approx = batch @ state.current[row]
        if self.loss == "kl":
            slope = softmax(approx) - softmax(exact)
        else:
            slope = 2 * (approx - exact) / len(batch)
        return state.current[row] - self.lr * (slope @ batch)


def softmax(values: FloatArray) -> FloatArray:
    """Of one row of values: (b,) -> (b,), summing to 1."""
    weights = np.exp(values - values.max())
    return weights / weights.sum()
