"""fixedITEM: a query's vector is its exact scores with fixed items (ANNCUR 3.2, figure 7)."""

from __future__ import annotations

import numpy as np

from crossknn.index.base import ItemScores, Scale
from crossknn.predictors.vectors import QueryVectors, VectorPredictor
from crossknn.types import FloatArray, IntArray


class FixedItemScores(VectorPredictor):
    """Items and query as vectors of exact scores with the same fixed items; their dot product.

    Item i's vector is `item_scores.scores[:, i]`; the query's is 0 where it is not scored yet.
    """

    def __init__(self, item_scores: ItemScores) -> None:
        super().__init__(item_scores.scores.T)
        self.dimension = {int(item): d for d, item in enumerate(item_scores.items)}

    def fit(
        self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray
    ) -> tuple[FloatArray, Scale]:
        vector = np.zeros(self.items.shape[1])
        for item, score in zip(items, scores, strict=True):
            if int(item) in self.dimension:
                vector[self.dimension[int(item)]] = score
        return vector, Scale()
