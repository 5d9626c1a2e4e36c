"""How the scores of items vary together: what anchor queries teach about every other query.

    score of item i = weights . [1, cheap scores of i, mean score of i] + residual of i

The weights are a query's own. Those of the anchors say what to expect of them, and the anchors'
residuals which items are liked by the same queries.

Axes: q anchor queries, n items, f columns, r factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import solve_scaled
from crossknn.types import FloatArray

RANK = 100
"""Factors kept, at most."""


@dataclass(frozen=True, slots=True)
class Covariance:
    """What is known before a query's first score.

    `factor` (n, r): its products with itself are the residuals' covariance between items; `mean`
    (n,) the items' mean scores, about their mean; `weights` (f,) and `precision` (f, f) the prior
    of a query's weights, flat in the first of them, so that where zero lies does not matter;
    `variance` the mean square of the residuals.
    """

    factor: FloatArray
    mean: FloatArray
    weights: FloatArray
    precision: FloatArray
    variance: float

    @classmethod
    def of(cls, scores: FloatArray, cheap: Sequence[FloatArray], rank: int = RANK) -> Covariance:
        """From exact scores (q, n) of anchor queries and their `cheap` ones, each (q, n).

        An item's mean, in the regression of an anchor, is that over the other anchors. One (q, n)
        array of residuals in single precision is made, and q^2 n multiplications. Raises
        `InputError` for fewer than two anchors.
        """
        q, n = scores.shape
        if q < 2:
            raise InputError(
                "one anchor query says nothing about how items vary together: add more, or use "
                "kriging(anchors=false)"
            )
        total = _centred(scores.sum(axis=0, dtype=np.float64))
        weights, residuals = np.zeros((q, 2 + len(cheap))), np.empty((q, n), np.float32)
        for row in range(q):
            exact = _centred(scores[row])
            columns = np.stack([*(_centred(c[row]) for c in cheap), (total - exact) / (q - 1)])
            weights[row, 1:] = solve_scaled(columns @ columns.T, columns @ exact)
            residuals[row] = exact - weights[row, 1:] @ columns
        return cls(
            factor=_factor(residuals, rank),
            mean=(total / q).astype(np.float32),
            weights=weights.mean(axis=0),
            precision=_precision(weights),
            variance=float(np.square(residuals).mean(dtype=np.float64)),
        )


def _centred(values: FloatArray) -> FloatArray:
    exact: FloatArray = values.astype(np.float64)
    return exact - exact.mean()


def _factor(residuals: FloatArray, rank: int) -> FloatArray:
    """(q, n) -> (n, r), by the eigenvectors of the (q, q) products."""
    q = len(residuals)
    values, vectors = np.linalg.eigh((residuals @ residuals.T).astype(np.float64) / q)
    kept = np.flatnonzero(values > 1e-6 * values[-1])[::-1][:rank]
    return residuals.T @ (vectors[:, kept] / np.sqrt(q)).astype(np.float32)


def _precision(weights: FloatArray) -> FloatArray:
    """Of the columns after the first: (q, f) -> (f, f), 0 where anchors are too few to tell."""
    q, f = weights.shape
    precision = np.zeros((f, f))
    if q > f + 1:
        spread = np.atleast_2d(np.cov(weights[:, 1:].T))
        size = np.sqrt(np.diag(spread))
        size = np.where(size > 0, size, 1)
        alike = spread / size / size[:, None]
        alike[np.diag_indices(f - 1)] *= 1 + 1e-6
        inverse = np.linalg.pinv(alike, rcond=1e-12, hermitian=True)
        precision[1:, 1:] = inverse / size / size[:, None]
    return precision
