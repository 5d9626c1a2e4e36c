"""Vector predictors whose exact scores are first brought to the scale of the item vectors."""

from __future__ import annotations

from typing import Literal, TypeAlias

from crossknn.errors import InputError
from crossknn.indexes.base import Index, Scale
from crossknn.predictors.vectors import NormalizedPredictor, QueryVectors
from crossknn.types import FloatArray, IntArray, Queries

Normalize: TypeAlias = Literal["auto", "anchors", "first", "none"]


class ScaledPredictor(NormalizedPredictor):
    """Predicts in the space of an encoder's vectors, from `normalize`d exact scores.

    AXN has no intercept, so where zero lies on the scale of the scores matters (AXN A.2). The
    scale comes from anchor queries (`anchors`: mean and deviation of both kinds of score over all
    of them), from the query's own first batch (`first`: the same two moments), or is left alone
    (`none`); `auto` takes `anchors` where the index knows them, else `first`.
    """

    def __init__(self, index: Index, vectors: str, normalize: Normalize = "auto") -> None:
        super().__init__(index.vectors(vectors))
        self.index, self.name, self.normalize = index, vectors, normalize
        self.known = index.scale(vectors) if normalize in ("auto", "anchors") else None
        if normalize == "anchors" and self.known is None:
            raise InputError(
                "normalize=anchors needs an index with anchor queries: add them, or use "
                "normalize=first"
            )

    def parametric(self, queries: Queries) -> FloatArray | None:
        return self.index.query_vectors(queries, self.name)

    def scale(self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray) -> Scale:
        if self.normalize == "none" or state.parametric is None:
            return Scale()
        if self.known is not None:
            return self.known
        return Scale.match(scores, self.items[items] @ state.parametric[row])
