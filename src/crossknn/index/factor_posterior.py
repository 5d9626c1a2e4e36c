"""What a query's exact scores say of its weights and factors, where few of the items are scored.

    score of item i = weights . drift of i + factors . loadings of i + noise

Axes: b scored items, f weights, r factors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn.types import FloatArray


@dataclass(frozen=True, slots=True)
class Posterior:
    """Of a query's f weights and r factors: `mean` (f + r,) and `covariance` (f + r, f + r)."""

    mean: FloatArray
    covariance: FloatArray

    @property
    def square(self) -> FloatArray:
        """Expected products, (f + r, f + r)."""
        return np.outer(self.mean, self.mean) + self.covariance


def posterior(
    drift: FloatArray,
    loadings: FloatArray,
    scores: FloatArray,
    noise: FloatArray,
    weights: FloatArray,
    precision: FloatArray,
    products: FloatArray | None = None,
) -> Posterior:
    """From b `scores` (b,), with `drift` (b, f), `loadings` (b, r) and variances `noise` (b,).

    A priori weights are Gaussian, with mean `weights` (f,) and `precision` (f, f), and factors
    standard. Costs b r min(b, r) multiplications and r^2 min(b, r); b r and r^3 where `products`
    (r, r) of the loadings over the noise are there already.
    """
    (_, f), r = drift.shape, loadings.shape[1]
    spread: FloatArray
    left = scores - drift @ weights
    both = np.column_stack([drift, left])
    if products is None and len(scores) <= r:
        inverse = np.linalg.inv(loadings @ loadings.T + np.diag(noise))
        whole = inverse @ both
        mixed, own = loadings.T @ whole, both.T @ whole
        spread = np.eye(r) - loadings.T @ inverse @ loadings
    else:
        scaled = loadings / noise[:, None]
        if products is None:
            products = loadings.T @ scaled
        spread = np.linalg.inv(np.eye(r) + products)
        cross = scaled.T @ both
        mixed = spread @ cross
        own = both.T @ (both / noise[:, None]) - cross.T @ mixed
    joint = np.empty((f + r, f + r))
    joint[:f, :f] = np.linalg.pinv(precision + own[:f, :f], rcond=1e-12, hermitian=True)
    joint[f:, :f] = -mixed[:, :f] @ joint[:f, :f]
    joint[:f, f:] = joint[f:, :f].T
    joint[f:, f:] = spread - joint[f:, :f] @ mixed[:, :f].T
    moved = joint[:f, :f] @ own[:f, f]
    return Posterior(np.concatenate([weights + moved, mixed[:, f] - mixed[:, :f] @ moved]), joint)
