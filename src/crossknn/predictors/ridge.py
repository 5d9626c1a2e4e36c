"""Least squares drawn towards the encoder's query vector, with an intercept (beyond AXN 2.2).

AXN regularises its fit by averaging it with the parametric vector. Ridge regression does so where
the data are thin and lets go where they are not; scale and offset between the two kinds of score
are fitted with it, on this query's scores, so nothing has to be normalised beforehand. In the words
of geostatistics: universal kriging with a linear covariance and the drift [1, parametric score].
"""

from __future__ import annotations

import numpy as np

from crossknn.index.base import Index, Scale
from crossknn.predictors.vectors import QueryVectors, VectorPredictor
from crossknn.types import FloatArray, IntArray, Queries


class RidgeToEncoder(VectorPredictor):
    """score ~ offset + gain * (u0 . v) + (u . v), |u|^2 penalised by `ridge`; u0 is the encoder's.

    `ridge` is in units of |v|^2: the variance of what vectors cannot explain over that of what
    they can. Offset and gain are not penalised.
    """

    def __init__(self, index: Index, vectors: str, *, ridge: float) -> None:
        super().__init__(index.vectors(vectors))
        self.index, self.name, self.ridge = index, vectors, ridge

    def parametric(self, queries: Queries) -> FloatArray | None:
        return self.index.query_vectors(queries, self.name)

    def fit(
        self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray
    ) -> tuple[FloatArray, Scale]:
        assert state.parametric is not None
        vectors = self.items[items].astype(np.float64)
        prior = state.parametric[row].astype(np.float64)
        vector, offset = ridge_to(vectors, scores, prior, self.ridge)
        return vector, Scale(alpha=offset)


def ridge_to(
    vectors: FloatArray, scores: FloatArray, prior: FloatArray, ridge: float
) -> tuple[FloatArray, float]:
    """Vector (d,) and offset that predict `scores` (b,) from `vectors` (b, d), drawn to `prior`.

    Generalised least squares for offset and gain, then the ridge solution for their residuals,
    through one Cholesky factor of the (b, b) covariance.
    """
    covariance = vectors @ vectors.T
    covariance[np.diag_indices_from(covariance)] += ridge
    factor = np.linalg.cholesky(covariance)
    drift = np.stack([np.ones(len(scores)), vectors @ prior], axis=1)
    white = np.linalg.solve(factor, np.column_stack([drift, scores]))
    (offset, gain), *_ = np.linalg.lstsq(white[:, :2], white[:, 2], rcond=1e-6)
    residual = white[:, 2] - white[:, :2] @ np.array([offset, gain])
    weights = np.linalg.solve(factor.T, residual)
    return gain * prior + weights @ vectors, float(offset)
