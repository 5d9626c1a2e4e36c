"""AXN: adaptive cross-encoder nearest neighbours (Yadav et al. 2024, algorithm 1).

paper            here
V                item vectors `vectors`, (n, d)
R, k_s           `rounds`, equal batches
INIT             `retriever`
u_q              the query's vector, `least_squares` (eq. 4)
lambda           `blend`: the weight of the PARAMETRIC query vector (eq. 7)

Beyond the paper: `ridge` regression towards the parametric vector.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

import numpy as np

from crossknn.errors import SpecError
from crossknn.index.base import Index
from crossknn.linalg import least_squares
from crossknn.methods.base import Plan, equal_rounds
from crossknn.methods.vectors import Scored, VectorMethod, encoder_predictor
from crossknn.retrievers.specs import default_vectors, need_query_vectors, open_retriever
from crossknn.spec import option
from crossknn.types import FloatArray

RIDGE = 0.3
"""The best penalty on dev queries of five score matrices, among 0.1, 0.3 and 1."""


@dataclass(frozen=True, kw_only=True)
class AXN(VectorMethod):
    """Refit the query's vector to its exact scores in each round, and score the items nearest to
    it.

    With `blend` this is AXN as published. Without it, it is a ridge regression, which was better on
    dev queries. If queries have no vectors, `blend` is 0.

    Args:
        rounds: Number of batches.
        blend: Weight of the encoder's query vector beside the least-squares one, 0 to 1.
        ridge: Penalty of the ridge regression towards the encoder's vector, 0.3 by default;
            replaces `blend` and `normalize`.
        rcond: Singular values below this share of the largest are dropped.
        retriever, vectors, normalize: See `VectorMethod`.
    """

    name = "axn"
    rounds: int = option(10, least=1)
    blend: float | None = option(None, least=0, most=1)
    ridge: float | None = None
    rcond: float = option(1e-6, least=0, most=1)

    def required_artifacts(self, index: Index) -> Collection[str]:
        ridge = self._ridge(index, default_vectors(index, self.vectors))
        return super().required_artifacts(index) if ridge is None else ()

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        vectors = default_vectors(index, self.vectors)
        ridge = self._ridge(index, vectors)
        if self.blend or ridge is not None:
            need_query_vectors(index, vectors, self.name)
        fit = partial(blended, blend=self.blend or 0.0, rcond=self.rcond)
        if ridge is not None:
            fit = partial(ridge_to_parametric, ridge=ridge)
        normalize = self.normalize if ridge is None else "none"
        return Plan(
            retriever=open_retriever(index, self.retriever, seed),
            predictor=encoder_predictor(index, vectors, fit, normalize),
            batches=equal_rounds(budget, self.rounds),
        )

    def _ridge(self, index: Index, vectors: str) -> float | None:
        """Return the ridge penalty, or None if `blend` is used."""
        if self.ridge is not None:
            if self.blend or self.ridge <= 0:
                raise SpecError(
                    f"{self}: ridge must be above 0, and replaces blend: give ridge or blend"
                )
            return self.ridge
        return None if self.blend is not None or not index.has_query_vectors(vectors) else RIDGE


def blended(scored: Scored, *, blend: float, rcond: float) -> tuple[FloatArray, float]:
    """Compute u = (1 - lambda) argmin |V u - c|^2 + lambda u_parametric (AXN 2.2, eq. 4 and 7)."""
    fitted = least_squares(scored.vectors, scored.scores, rcond)
    if scored.parametric is None:
        return fitted, 0.0
    return (1 - blend) * fitted + blend * scored.parametric, 0.0


def ridge_to_parametric(scored: Scored, *, ridge: float) -> tuple[FloatArray, float]:
    """Regress towards the parametric vector: score ~ offset + gain (prior . v) + u . v.

    The `ridge` penalty on |u|^2, in units of |v|^2, has a strong effect while scores are few, and a
    weak one later. In geostatistics this is universal kriging with a linear covariance and the
    trend [1, parametric score]. Offset and gain are not penalised, so scores need no normalization.
    """
    assert scored.parametric is not None
    vectors, scores = scored.vectors.astype(np.float64), scored.scores
    prior = scored.parametric.astype(np.float64)
    covariance = vectors @ vectors.T
    covariance[np.diag_indices_from(covariance)] += ridge
    # With all terms whitened by the Cholesky factor L of the (b, b) covariance, generalised least
    # squares for offset and gain is ordinary least squares.
    factor = np.linalg.cholesky(covariance)
    trend = np.stack([np.ones(len(scores)), vectors @ prior], axis=1)
    white = np.linalg.solve(factor, np.column_stack([trend, scores]))
    (offset, gain), *_ = np.linalg.lstsq(white[:, :2], white[:, 2], rcond=1e-6)
    # The ridge solution in its dual form: u = V' (V V' + ridge I)^-1 (scores - trend).
    residual = white[:, 2] - white[:, :2] @ np.array([offset, gain])
    weights = np.linalg.solve(factor.T, residual)
    return gain * prior + weights @ vectors, float(offset)
