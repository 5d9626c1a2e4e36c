"""ReFIT: relevance feedback from a reranker during inference (arXiv 2305.11744).

paper                       here
K reranked candidates       `sample` of the budget
number of updates           `steps`
second retrieval            the rest of the budget, in `rounds` rounds; reranked too
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from crossknn.errors import SpecError
from crossknn.index.base import Index
from crossknn.index.stages import default_vectors, need_query_vectors, open_retriever
from crossknn.methods.base import HYBRID, Method, fraction, part, positive
from crossknn.methods.needs import scale
from crossknn.predictors.refit import Distilled
from crossknn.predictors.scaled import Normalize
from crossknn.search.plan import Plan, equal_rounds
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class ReFIT(Method):
    """Rerank, distil the scores into the query's vector, retrieve again with it.

    `normalize` puts the exact scores on another scale before their softmax (`ScaledPredictor`).
    """

    name = "refit"
    retriever: Spec = HYBRID
    sample: float = 0.5
    rounds: int = 1
    steps: int = 100
    lr: float = 1.0
    vectors: str = "auto"
    normalize: Normalize = "auto"

    def reads(self, index: Index) -> Collection[str]:
        return scale(index, self.vectors, self.normalize)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, rounds=self.rounds, steps=self.steps)
        fraction(self.name, sample=self.sample)
        if self.lr <= 0:
            raise SpecError(f"{self}: lr must be above 0")
        vectors = need_query_vectors(index, default_vectors(index, self.vectors), str(self))
        sample = part(budget, self.sample)
        return Plan(
            retriever=open_retriever(index, self.retriever, seed),
            predictor=Distilled(
                index, vectors, steps=self.steps, lr=self.lr, normalize=self.normalize
            ),
            batches=(sample, *equal_rounds(budget - sample, self.rounds)),
        )
