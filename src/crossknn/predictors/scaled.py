"""Vector predictors whose exact scores are first brought to the scale of the item vectors."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Index, Scale
from crossknn.predictors.vectors import NormalizedPredictor, QueryVectors
from crossknn.types import FloatArray, IntArray, Queries

Normalize: TypeAlias = Literal["auto", "anchors", "first", "none"]
BY_INDEX: tuple[Normalize, ...] = ("auto", "anchors")
"""Those that take the scale that the index knows."""


class ScaledPredictor(NormalizedPredictor):
    """Predicts in the space of an encoder's vectors, from `normalize`d exact scores.

    AXN has no intercept, so where zero lies on the scale of the scores matters (AXN A.2). The
    scale is the index's (`anchors`: mean and deviation of both kinds of score over anchor or train
    queries), comes from the query's own first batch (`retriever`: the same two moments, or the mean
    alone where queries have no vectors), or is left alone (`none`); `auto` takes `anchors` where
    the index knows them, else `retriever`.
    """

    def __init__(self, index: Index, vectors: str, normalize: Normalize = "auto") -> None:
        super().__init__(index.vectors(vectors))
        self.index, self.name, self.normalize = index, vectors, normalize
        self.known = index.scale(vectors) if normalize in BY_INDEX else None
        if normalize == "anchors" and self.known is None:
            raise InputError(
                f"normalize=anchors needs a scale for the item vectors {vectors!r}, and the index "
                "has none: add anchor queries, or use normalize=first"
            )

    def parametric(self, queries: Queries) -> FloatArray | None:
        if self.name not in self.index.query_vector_names:
            return None
        return self.index.query_vectors(queries, self.name)

    def scale(self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray) -> Scale:
        if self.normalize == "none":
            return Scale()
        if self.known is not None:
            return self.known
        if state.parametric is None:
            return Scale.match(scores, np.zeros(1))
        return Scale.match(scores, self.items[items] @ state.parametric[row])
