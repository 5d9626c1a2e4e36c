"""Relevance feedback as Qdrant has it (version 1.17, the strategy named naive).

    F(d) = a sim(q, d) + sum over pairs of  gap^b  c (sim(d, positive) - sim(d, negative))

Pairs are all two scored items with different scores, `gap` is the difference of their scores. With
inner products for sim, F is an inner product with one vector, so an index searches it like any
query: a q + c sum_i w_i v_i, where w_i = sum_j sign(s_i - s_j) |s_i - s_j|^b.
"""

from __future__ import annotations

import numpy as np

from crossknn.index.base import Index
from crossknn.predictors.scaled import Normalize, ScaledPredictor
from crossknn.predictors.vectors import QueryVectors
from crossknn.types import FloatArray, IntArray


class FeedbackFormula(ScaledPredictor):
    """Predicts F, with exact scores `normalize`d before their gaps are taken."""

    def __init__(
        self,
        index: Index,
        vectors: str,
        *,
        a: float,
        b: float,
        c: float,
        pairs: int | None,
        normalize: Normalize,
    ) -> None:
        super().__init__(index, vectors, normalize)
        self.a, self.b, self.c, self.pairs = a, b, c, pairs

    def refit(
        self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray
    ) -> FloatArray:
        assert state.parametric is not None
        vectors = self.items[items].astype(np.float64)
        weights = pair_weights(scores, self.b, self.pairs)
        return self.a * state.parametric[row] + self.c * (weights @ vectors)


def pair_weights(scores: FloatArray, b: float, pairs: int | None = None) -> FloatArray:
    """Sum over the pairs that an item is in, of gap^b as the positive, of -gap^b as the negative.

    (b,) -> (b,); the weights sum to 0. `pairs` takes so many pairs of the widest gaps, ties by the
    place of the positive, then of the negative.

    >>> pair_weights(np.array([3.0, 1.0, 1.0]), 2.0)
    array([ 8., -4., -4.])
    >>> pair_weights(np.array([3.0, 1.0, 1.0]), 2.0, pairs=1)
    array([ 4., -4.,  0.])
    """
    gaps = scores[:, None] - scores
    if pairs is not None:
        narrow = np.argsort(-gaps, axis=None, kind="stable")[pairs:]
        gaps.ravel()[narrow] = 0.0
    strength = np.where(gaps > 0, np.maximum(gaps, 0.0) ** b, 0.0)
    return strength.sum(axis=1) - strength.sum(axis=0)
