"""A Gaussian process over item vectors (the idea of BAGEL, arXiv 2604.17906; ReBOL, 2603.20513).

there                           here
first observations              `retriever`, a batch of budget // `rounds`
mean + sqrt(beta) * deviation   mean + `beta` * deviation
the query as an observation     `query=true`
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

from crossknn.errors import SpecError
from crossknn.index.base import Index
from crossknn.methods.base import HYBRID, Method, positive
from crossknn.predictors.gaussian_process import GaussianProcess, Mean
from crossknn.predictors.kernels import Kernel, Linear, Matern, Rbf
from crossknn.retrievers.specs import default_vectors, need_query_vectors, open_retriever
from crossknn.search.plan import Plan, equal_rounds
from crossknn.spec import Spec

KernelName: TypeAlias = Literal["rbf", "matern", "linear"]


@dataclass(frozen=True, kw_only=True)
class GP(Method):
    """Score what promises most: predicted mean and `beta` deviations.

    `scale` is that of squared distances in the kernels `rbf` and `matern`; `noise` the variance
    that vectors cannot explain, as a share of what they can. `mean` and `query` are explained at
    `GaussianProcess`. `shortlist` restricts a query to that many items of the retriever.
    """

    name = "gp"
    retriever: Spec = HYBRID
    rounds: int = 10
    kernel: KernelName = "rbf"
    scale: float = 1.0
    noise: float = 0.05
    mean: Mean = "constant"
    beta: float = 1.0
    query: bool = False
    vectors: str = "auto"
    shortlist: int | None = None

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, rounds=self.rounds, shortlist=self.shortlist)
        if self.scale <= 0 or self.noise < 0 or self.beta < 0:
            raise SpecError(f"{self}: scale must be above 0, noise and beta 0 or more")
        vectors = default_vectors(index, self.vectors)
        retriever = open_retriever(index, self.retriever, seed)
        own = None
        if self.query:
            own = partial(index.query_vectors, name=need_query_vectors(index, vectors, str(self)))
        return Plan(
            retriever=retriever,
            predictor=GaussianProcess(
                index.vectors(vectors),
                self._kernel(),
                retriever,
                mean=self.mean,
                noise=self.noise,
                beta=self.beta,
                own=own,
            ),
            batches=equal_rounds(budget, self.rounds),
            shortlist=self.shortlist,
        )

    def _kernel(self) -> Kernel:
        if self.kernel == "linear":
            return Linear()
        return Rbf(self.scale) if self.kernel == "rbf" else Matern(self.scale)
