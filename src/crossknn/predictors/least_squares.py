"""One query vector per query by least squares on its exact scores (ADACUR 2.2, AXN 2.2)."""

from __future__ import annotations

from crossknn.index.base import Index, Scale
from crossknn.linalg import least_squares
from crossknn.predictors.scaled import Normalize, ScaledPredictor
from crossknn.predictors.vectors import NormalizedPredictor, QueryVectors
from crossknn.search.predictor import Prediction
from crossknn.types import FloatArray, IntArray


class AnchorLeastSquares(NormalizedPredictor):
    """`c pinv(R[:, S]) R`: least squares on the columns of R_anc (k_q, n) (ANNCUR 2.2, eq. 5).

    The constant `center` is subtracted from R and c, and added to the approximation:
    u . (r_i - center) is u . r_i less center * sum(u), so R itself is never copied. With 0 it is
    CUR as published.
    """

    def __init__(self, rows: FloatArray, *, center: float, rcond: float) -> None:
        super().__init__(rows.T)
        self.center, self.rcond = Scale(alpha=center), rcond

    def scale(self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray) -> Scale:
        return self.center

    def predict(self, state: QueryVectors, items: IntArray | None = None) -> Prediction:
        mean, std = super().predict(state, items)
        mean -= self.center.alpha * state.current.sum(axis=1)[:, None]
        return Prediction(mean, std)

    def refit(
        self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray
    ) -> FloatArray:
        return least_squares(self.items[items] - self.center.alpha, scores, self.rcond)


class BlendedLeastSquares(ScaledPredictor):
    """`(1 - blend) * least squares + blend * parametric query vector` (AXN 2.2, eq. 4 and 7)."""

    def __init__(
        self, index: Index, vectors: str, *, blend: float, rcond: float, normalize: Normalize
    ) -> None:
        super().__init__(index, vectors, normalize)
        self.blend, self.rcond = blend, rcond

    def refit(
        self, state: QueryVectors, row: int, items: IntArray, scores: FloatArray
    ) -> FloatArray:
        fitted = least_squares(self.items[items], scores, self.rcond)
        if state.parametric is None:
            return fitted
        return (1 - self.blend) * fitted + self.blend * state.parametric[row]
