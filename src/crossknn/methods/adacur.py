"""ADACUR: anchor items chosen adaptively over rounds (Yadav et al. 2023, algorithm 1).

paper            here
N_r, k_s         `rounds`, equal batches
S^ = C U R_anc   `needs.cur`, refitted every round
TopK / SoftMax   `sample`
No-Split         `split=none`: the whole budget goes to anchor items
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal

from crossknn.index.base import Index
from crossknn.index.stages import open_retriever
from crossknn.methods.base import HYBRID, Method, fraction, part, positive
from crossknn.methods.needs import Center, anchors, cur
from crossknn.predictors.sampled import Sampled
from crossknn.search.plan import Plan, equal_rounds
from crossknn.search.predictor import Predictor
from crossknn.spec import Spec


@dataclass(frozen=True, kw_only=True)
class ADACUR(Method):
    """Alternate between approximating all scores and scoring more anchor items.

    With `split` s, s of the budget buys anchor items and the rest reranks the best of the
    approximation. `center=none` is CUR as published; `auto` subtracts a constant from all scores
    first. `shortlist` restricts a query to that many items of the retriever.
    """

    name = "adacur"
    retriever: Spec = HYBRID
    rounds: int = 5
    sample: Literal["top", "softmax", "random"] = "top"
    split: float | None = None
    center: Center = "auto"
    rcond: float = 1e-6
    shortlist: int | None = None

    def reads(self, index: Index) -> Collection[str]:
        return ("anchors",)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        positive(self.name, rounds=self.rounds, shortlist=self.shortlist)
        fraction(self.name, split=self.split, rcond=self.rcond)
        k_i = budget if self.split is None else part(budget, self.split)
        predictor: Predictor[Any] = cur(anchors(index, self.name), self.center, self.rcond)
        batches = equal_rounds(k_i, self.rounds)
        if self.sample != "top":
            predictor = Sampled(predictor, self.sample, seed=seed, until=len(batches))
        return Plan(
            retriever=open_retriever(index, self.retriever, seed),
            predictor=predictor,
            batches=(*batches, budget - k_i),
            shortlist=self.shortlist,
        )
