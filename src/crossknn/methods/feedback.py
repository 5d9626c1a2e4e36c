"""Relevance feedback by Qdrant's formula: rerank a sample, search once more by what it taught."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from crossknn.errors import SpecError
from crossknn.index.base import Index
from crossknn.index.stages import default_vectors, need_query_vectors, open_retriever
from crossknn.methods.base import HYBRID, Method, fraction, part, positive
from crossknn.methods.needs import scale
from crossknn.predictors.feedback import FeedbackFormula
from crossknn.predictors.scaled import Normalize
from crossknn.search.plan import Plan, equal_rounds
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class Feedback(Method):
    """Spend `sample` of the budget on `retriever`, the rest on the top of the formula.

    `a`, `b` and `c` are the formula's (`FeedbackFormula`), 1 as Qdrant's training starts; they mean
    little untrained. `pairs` takes that many pairs of the widest gaps, not all. `rounds` is how
    often it is applied, each time to all scores so far.
    """

    name = "feedback"
    retriever: Spec = HYBRID
    sample: float = 0.5
    rounds: int = 1
    a: float = 1.0
    b: float = 1.0
    c: float = 1.0
    pairs: int | None = None
    vectors: str = "auto"
    normalize: Normalize = "auto"

    def reads(self, index: Index) -> Collection[str]:
        return scale(index, self.vectors, self.normalize)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, rounds=self.rounds, pairs=self.pairs)
        fraction(self.name, sample=self.sample)
        if self.b < 0:
            raise SpecError(f"{self}: b must be 0 or more")
        vectors = need_query_vectors(index, default_vectors(index, self.vectors), str(self))
        sample = part(budget, self.sample)
        return Plan(
            retriever=open_retriever(index, self.retriever, seed),
            predictor=FeedbackFormula(
                index,
                vectors,
                a=self.a,
                b=self.b,
                c=self.c,
                pairs=self.pairs,
                normalize=self.normalize,
            ),
            batches=(sample, *equal_rounds(budget - sample, self.rounds)),
        )
