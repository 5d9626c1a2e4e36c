"""Kriging: a Gaussian process whose mean and covariance were learned from other queries' scores."""

from __future__ import annotations

import numpy as np

from crossknn.index.covariance import Covariance
from crossknn.index.settings import Settings
from crossknn.linalg import top_k
from crossknn.predictors.gaussian_process import GaussianProcess, Posteriors
from crossknn.predictors.kernels import Content, Factored
from crossknn.predictors.posterior import Posterior, Trend
from crossknn.retrievers.base import Retriever
from crossknn.types import NO_ITEM, BoolArray, Candidates, FloatArray, IntArray, Queries


def content_of(settings: Settings) -> Content:
    """The covariance by the vectors' directions, in units of the residuals' variance."""
    return Content(settings.scale, settings.smooth, settings.linear)


class Kriging(GaussianProcess):
    """Universal kriging: the mean is linear in the retriever's scores and, with anchors, in the
    items' mean scores; the covariance is of the anchors and of the vectors, by `settings`.

    `items` (n, d). A round costs what that of `GaussianProcess` does with d + r dimensions.
    """

    likely = True

    def __init__(
        self,
        items: FloatArray,
        retriever: Retriever,
        covariance: Covariance | None,
        *,
        settings: Settings,
        beta: float,
    ) -> None:
        self.covariance = covariance
        self.planar: Content | Factored = content_of(settings)
        prior = None
        if covariance is not None:
            self.planar = Factored(
                rank=covariance.factor.shape[1],
                share=settings.share,
                amount=covariance.variance or 1.0,
                rest=self.planar,
            )
            prior = Trend(covariance.weights, covariance.precision)
        noise = settings.noise
        super().__init__(
            items, self.planar, retriever, mean="first", noise=noise, beta=beta, prior=prior
        )

    def columns(self, queries: Queries) -> FloatArray:
        columns = super().columns(queries)
        if self.covariance is None:
            return columns
        mean = np.broadcast_to(self.covariance.mean, columns.shape[1:])
        return np.concatenate([columns, mean[None]])

    def vectors(self, items: IntArray | slice) -> FloatArray:
        vectors = super().vectors(items)
        if self.covariance is None:
            return vectors
        return np.hstack([self.covariance.factor[items], vectors])

    def shortlist(
        self, state: Posteriors, pool: IntArray, allowed: BoolArray | None = None
    ) -> IntArray:
        """Half of it the retriever's, half what the linear part of the prediction ranks first.

        That part costs n (d + r) multiplications once, so that a million items stay searchable.
        """
        size, rows = pool.shape[1], []
        known = {row: posterior for row, posterior in enumerate(state.rows) if posterior}
        promises = dict(zip(known, self._planes(state, known), strict=True))
        for row in range(len(state.rows)):
            kept = pool[row][pool[row] != NO_ITEM]
            if row in promises:
                promise = promises[row]
                kept = kept[: size - size // 2]
                promise[kept] = -np.inf
                if allowed is not None:
                    promise[~allowed] = -np.inf
                kept = np.concatenate([kept, top_k(promise[None], size - len(kept)).items[0]])
            rows.append((kept, np.zeros(len(kept), np.float32)))
        return Candidates.from_rows(rows).items

    def _planes(self, state: Posteriors, rows: dict[int, Posterior]) -> FloatArray:
        """The linear part of the predictions of these queries at all items: (rows, n)."""
        promise = np.empty((len(rows), len(self.items)), np.float32)
        for place, (row, posterior) in enumerate(rows.items()):
            promise[place] = posterior.trend @ state.columns[:, row]
        if rows:
            found = rows.values()
            directions = np.stack([self.planar.direction(p.weights, p.points) for p in found])
            for part in self._blocks():
                promise[:, part] += self.planar.plane(directions, self.vectors(part))
        return promise
