"""AXN: adaptive cross-encoder nearest neighbours (Yadav et al. 2024, algorithm 1).

paper            here
V                index.vectors(`vectors`)
R, k_s           `rounds`, equal batches
INIT             `retriever`
lambda           `blend`: the weight of the PARAMETRIC query vector (eq. 7)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from crossknn.errors import SpecError
from crossknn.index.base import Index
from crossknn.index.stages import default_vectors, need_query_vectors, open_retriever
from crossknn.methods.base import HYBRID, Method, fraction, positive
from crossknn.methods.needs import scale
from crossknn.predictors.least_squares import BlendedLeastSquares
from crossknn.predictors.ridge import RidgeToEncoder
from crossknn.predictors.scaled import Normalize
from crossknn.predictors.vectors import QueryVectors
from crossknn.search.plan import Plan, equal_rounds
from crossknn.search.predictor import Predictor
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class AXN(Method):
    """ReFIT the query's vector to its exact scores each round, and score what it then likes best.

    `ridge` replaces minimum-norm least squares, `blend` and `normalize` by ridge regression towards
    the parametric vector, with offset and gain (`RidgeToEncoder`; not in the paper).
    `normalize` puts exact scores on the scale of the vectors (`ScaledPredictor`). With neither
    `blend` nor `ridge` it searches vectors that queries have none beside (CUR's). `shortlist`
    restricts a query to that many items of the retriever, for very large corpora.
    """

    name = "axn"
    retriever: Spec = HYBRID
    rounds: int = 10
    blend: float = 0.0
    ridge: float | None = None
    vectors: str = "auto"
    normalize: Normalize = "auto"
    rcond: float = 1e-6
    shortlist: int | None = None

    def reads(self, index: Index) -> Collection[str]:
        return scale(index, self.vectors, self.normalize) if self.ridge is None else ()

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, rounds=self.rounds, shortlist=self.shortlist)
        fraction(self.name, blend=self.blend, rcond=self.rcond)
        return Plan(
            retriever=open_retriever(index, self.retriever, seed),
            predictor=self._predictor(index, default_vectors(index, self.vectors)),
            batches=equal_rounds(budget, self.rounds),
            shortlist=self.shortlist,
        )

    def _predictor(self, index: Index, vectors: str) -> Predictor[QueryVectors]:
        if self.blend or self.ridge is not None:
            need_query_vectors(index, vectors, str(self))
        if self.ridge is None:
            return BlendedLeastSquares(
                index, vectors, blend=self.blend, rcond=self.rcond, normalize=self.normalize
            )
        if self.blend or self.ridge <= 0:
            raise SpecError(f"{self}: ridge must be above 0, and takes the place of blend")
        return RidgeToEncoder(index, vectors, ridge=self.ridge)
