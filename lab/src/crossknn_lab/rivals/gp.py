"""A Gaussian process over item vectors (the idea of BAGEL, arXiv 2604.17906; ReBOL, 2603.20513).

there                           here
first observations              `retriever`, a batch of budget // `rounds`
mean + sqrt(beta) * deviation   mean + `beta` * std
the query as an observation     `query=true`

Axes: b scored points, c predicted points, p coordinates of a point.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from crossknn.errors import SpecError
from crossknn.index.base import Index
from crossknn.methods.base import Method, equal_rounds, option, pool_size
from crossknn.methods.features import of_retriever
from crossknn.methods.gp import GaussianProcess
from crossknn.methods.plan import Plan
from crossknn.methods.posterior import Directional, Kernel, Model
from crossknn.retrievers.base import stages_of
from crossknn.retrievers.specs import AUTO, default_vectors, need_query_vectors, open_retriever
from crossknn.spec import Spec
from crossknn.types import FloatArray


@dataclass(frozen=True, slots=True)
class Linear:
    """`x . y`: scores linear in the vectors, as AXN has them."""

    def __call__(
        self, left: FloatArray, right: FloatArray, lengths: FloatArray | None = None
    ) -> FloatArray:
        return left @ right.T

    def lengths(self, points: FloatArray) -> None:
        return None

    def variance(self, points: FloatArray) -> FloatArray:
        return np.einsum("cp,cp->c", points, points)

    def unit(self, points: FloatArray) -> float:
        return float(self.variance(points).mean()) or 1.0

    def direction(self, weights: FloatArray, points: FloatArray) -> FloatArray:
        return weights @ points


@dataclass(frozen=True, slots=True)
class Matern(Directional):
    """Of smoothness 5/2 and length scale sqrt(1 / (2 scale)), of vectors brought to unit length
    (Rasmussen and Williams 2006, 4.17)."""

    def at(self, distances: FloatArray) -> FloatArray:
        """Covariances at squared distances, of the same shape."""
        far = np.sqrt(10 * self.scale * distances)
        near: FloatArray = (1 + far + far**2 / 3) * np.exp(-far)
        return near


KERNELS: dict[str, Callable[[float], Kernel]] = {
    "rbf": Directional,
    "matern": Matern,
    "linear": lambda scale: Linear(),
}


@dataclass(frozen=True, kw_only=True)
class GP(Method):
    """Score the items with the highest predicted mean plus `beta` standard deviations.

    Args:
        retriever: Picks the first batch.
        rounds: Number of batches.
        vectors: Name of the item vectors; by default the index chooses.
        kernel: Covariance of two items, by their vectors.
        beta: Standard deviations that are added to the mean to rank items; 0 ranks by the mean.
        scale: of squared distances in the kernels `rbf` and `matern`.
        noise: variance that vectors cannot explain, as a share of what they can.
        mean: `none`; `average`, that of the scores known so far; `constant`, by generalised least
            squares (ordinary kriging); `retriever`, linear in the retriever's scores, or those of
            each stage of a fusion (universal kriging).
        query: count the query's vector as an item with the best score known; by default where the
            index can make one.
        shortlist: rounds predict so many items of the retriever, and those that the linear part of
            the prediction ranks first; by default all up to 12,000 items, else three for
            each call, and at least 400.
    """

    name = "gp"
    retriever: Spec = AUTO
    rounds: int = option(10, least=1)
    kernel: Literal["rbf", "matern", "linear"] = "rbf"
    scale: float = 1.0
    noise: float = 0.05
    mean: Literal["none", "average", "constant", "retriever"] = "constant"
    beta: float = 1.0
    query: bool | None = None
    vectors: str = "auto"
    shortlist: int | None = option(None, least=1)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        if self.scale <= 0 or self.noise < 0 or self.beta < 0:
            raise SpecError(f"{self}: scale must be above 0, noise and beta 0 or more")
        vectors = default_vectors(index, self.vectors)
        retriever = open_retriever(index, self.retriever, seed)
        own = None
        if self.query or (self.query is None and index.has_query_vectors(vectors)):
            own = partial(index.query_vectors, name=need_query_vectors(index, vectors, self.name))
        kernel: Kernel = KERNELS[self.kernel](self.scale)
        store, pool = index.store(vectors), pool_size(index, budget, self.shortlist)
        stages = stages_of(retriever) if self.mean == "retriever" else ()
        predictor = GaussianProcess(
            arrays=[store],
            model=Model(
                kernel=kernel,
                noise=self.noise,
                centre=self.mean != "none",
            ),
            retriever=retriever,
            beta=self.beta,
            intercept=self.mean in ("constant", "retriever"),
            features=[of_retriever(stage, store) for stage in stages],
            own=own,
            near=None if pool is None else index.lists(vectors) or store,
        )
        return Plan(
            retriever=retriever,
            predictor=predictor,
            batches=equal_rounds(budget, self.rounds),
            shortlist=pool,
            stages=stages,
        )
