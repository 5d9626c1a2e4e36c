"""Kriging's prior: what the exact scores of other queries say of a query before its first one.

    score of item i = w . [1, cheap scores of i, mean score of i] + residual of i

The weights w are a query's own. Those of the other queries say what to expect of them, and their
residuals which items are liked by the same queries.

Axes: q anchor queries, n items, f basis functions, r factors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import solve_scaled
from crossknn.methods.gp import GaussianProcess
from crossknn.methods.posterior import Directional, LowRankPlusResidual, Model, Weights
from crossknn.retrievers.base import Retriever, stages_of
from crossknn.types import FloatArray

NAME = "kriging"
"""Of the artifact that an index keeps a prior as."""

RANK = 100
"""Factors kept, at most."""

ARRAYS = ("factor", "mean", "weights", "precision")


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelParameters:
    """`share` of the covariance over the other queries; `smooth` of exp(-`scale` * distance^2) and
    `linear` of the cosine, in units of the residuals' variance; `noise`, the variance that none of
    it explains, as a share of those two's sum."""

    share: float = 0.7
    scale: float = 2.0
    smooth: float = 0.3
    linear: float = 0.5
    noise: float = 0.25


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """What is known before a query's first score, and what it was fitted to.

    Args:
        factor: (n, r), whose products with itself are the residuals' covariance between items.
        mean: (n,) the items' mean scores, about their mean.
        weights: (f,) expected weights of a query.
        precision: (f, f) of these, flat in the first: where zero lies does not matter.
        variance: mean square of the residuals.
        retriever: whose searches it serves, as a spec.
        fingerprint: of the cross-encoder.
        queries, pairs: how many were scored, the `anchors` among them with every item.
    """

    factor: FloatArray
    mean: FloatArray
    weights: FloatArray
    precision: FloatArray
    variance: float
    parameters: KernelParameters = field(default_factory=KernelParameters)
    retriever: str = ""
    fingerprint: str | None = None
    queries: int = 0
    pairs: int = 0
    anchors: int = 0

    @property
    def from_log(self) -> bool:
        """Whether it was fitted to scores of more queries than the anchors."""
        return self.queries > self.anchors

    def meta(self) -> dict[str, Any]:
        """All but the arrays, as JSON."""
        names = ("retriever", "fingerprint", "queries", "pairs", "anchors", "variance")
        return {**{n: getattr(self, n) for n in names}, "parameters": asdict(self.parameters)}

    @classmethod
    def of(cls, meta: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Prior:
        """From what an index keeps."""
        parameters = KernelParameters(**meta["parameters"])
        return cls(**{**meta, **{name: arrays[name] for name in ARRAYS}, "parameters": parameters})


def fit_dense(scores: FloatArray, cheap: Sequence[FloatArray], rank: int = RANK) -> Prior:
    """A prior from exact scores (q, n) of anchor queries and their `cheap` ones, each (q, n).

    An item's mean, in the regression of an anchor, is that over the other anchors. Makes one (q, n)
    array of residuals in single precision, for q^2 n multiplications. Raises `InputError` for fewer
    than two anchors.
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
        basis = np.stack([*(_centred(c[row]) for c in cheap), (total - exact) / (q - 1)])
        weights[row, 1:] = solve_scaled(basis @ basis.T, basis @ exact)
        residuals[row] = exact - weights[row, 1:] @ basis
    # E'E / q = F F' by the eigenvectors of the smaller EE' / q (q, q), E being the residuals.
    values, vectors = np.linalg.eigh((residuals @ residuals.T).astype(np.float64) / q)
    kept = np.flatnonzero(values > 1e-6 * values[-1])[::-1][:rank]
    return Prior(
        factor=residuals.T @ (vectors[:, kept] / np.sqrt(q)).astype(np.float32),
        mean=(total / q).astype(np.float32),
        weights=weights.mean(axis=0),
        precision=_precision(weights),
        variance=float(np.square(residuals).mean(dtype=np.float64)),
        queries=q,
        pairs=q * n,
        anchors=q,
    )


def _centred(values: FloatArray) -> FloatArray:
    exact: FloatArray = values.astype(np.float64)
    return exact - exact.mean()


def _precision(weights: FloatArray) -> FloatArray:
    """Of all weights but the first: (q, f) -> (f, f), 0 where anchors are too few to tell."""
    q, f = weights.shape
    precision = np.zeros((f, f))
    if q > f + 1:
        spread = np.atleast_2d(np.cov(weights[:, 1:].T))
        size = np.sqrt(np.diag(spread))
        size = np.where(size > 0, size, 1)
        correlation = spread / size / size[:, None]
        correlation[np.diag_indices(f - 1)] *= 1 + 1e-6
        inverse = np.linalg.pinv(correlation, rcond=1e-12, hermitian=True)
        precision[1:, 1:] = inverse / size / size[:, None]
    return precision


def process(
    vectors: FloatArray,
    retriever: Retriever,
    prior: Prior | None,
    parameters: KernelParameters,
    beta: float = 0.0,
) -> GaussianProcess:
    """Kriging's predictor over item vectors (n, d), linear in the scores of `retriever`'s stages.

    With a prior also in the items' mean scores; its factors come before an item's vector.
    """
    kernel = LowRankPlusResidual(
        rank=0 if prior is None else prior.factor.shape[1],
        share=parameters.share,
        amount=1.0 if prior is None else prior.variance or 1.0,
        rest=Directional(parameters.scale, parameters.smooth, parameters.linear),
    )
    return GaussianProcess(
        arrays=[vectors] if prior is None else [prior.factor, vectors],
        model=Model(
            kernel=kernel,
            noise=parameters.noise,
            likely=True,
            prior=None if prior is None else Weights(prior.weights, prior.precision),
        ),
        retriever=retriever,
        beta=beta,
        stages=stages_of(retriever),
        item_mean=None if prior is None else prior.mean,
    )
