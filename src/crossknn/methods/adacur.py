"""ADACUR: anchor items chosen adaptively over rounds (Yadav et al. 2023, algorithm 1).

paper            here
N_r, k_s         `rounds`, equal batches
S^ = C U R_anc   `cur_predictor`, refitted every round
TopK / SoftMax   `sample`: greedily, or by `Sampled`
No-Split         `anchor_share=none`: the whole budget goes to anchor items
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from crossknn.index.base import Index
from crossknn.methods.base import Method, Plan, Prediction, Predictor, equal_rounds, part
from crossknn.methods.cur import Center, anchors_of, cur_predictor
from crossknn.retrievers.specs import AUTO, open_retriever
from crossknn.spec import Spec, option
from crossknn.types import IntArray, Observed, Queries


@dataclass(frozen=True, kw_only=True)
class ADACUR(Method):
    """Alternate between approximating all scores and scoring more anchor items.

    Args:
        retriever: The retriever that picks the first anchor items.
        rounds: Number of batches of anchor items.
        sample: Next anchor items: the `top` approximate scores, or drawn by their `softmax`.
        anchor_share: Share of the budget for anchor items (None: all); the remainder scores the
            items with the best approximate scores.
        center: `none` is CUR as published; `auto` subtracts a constant from all scores first.
        rcond: Relative cutoff of singular values; 0.03, or the published one with `center=none`.
    """

    name = "adacur"
    reads = ("anchors",)
    retriever: Spec = AUTO
    rounds: int = option(10, least=1)
    sample: Literal["top", "softmax"] = "top"
    anchor_share: float | None = option(None, least=0, most=1)
    center: Center = "auto"
    rcond: float | None = option(None, least=0, most=1)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        k_i = budget if self.anchor_share is None else part(budget, self.anchor_share)
        batches = equal_rounds(k_i, self.rounds)
        predictor: Predictor[Any] = cur_predictor(
            anchors_of(index, self.name), self.center, self.rcond
        )
        if self.sample != "top":
            predictor = Sampled(predictor, seed, until=len(batches))
        return Plan(
            retriever=open_retriever(index, self.retriever, seed),
            predictor=predictor,
            batches=(*batches, budget - k_i),
        )


@dataclass(frozen=True, slots=True)
class SampledState:
    """The wrapped predictor's state, the queries' generators, and the number of batches scored."""

    inner: Any
    generators: tuple[np.random.Generator, ...]
    batches: int = 0


class Sampled(Predictor[SampledState]):
    """Samples items without replacement by softmax of the prediction (ADACUR 2.2): the top k of
    scores plus Gumbel noise. Scored items are masked before the comparison, so that no underflow
    can tie with them. After `until` batches the wrapped predictor chooses greedily."""

    def __init__(self, predictor: Predictor[Any], seed: int, *, until: int) -> None:
        self.predictor, self.seed, self.until = predictor, seed, until

    def start(self, queries: Queries) -> SampledState:
        generators = tuple(queries.generator(q, self.seed) for q in range(len(queries)))
        return SampledState(self.predictor.start(queries), generators)

    def update(self, state: SampledState, observed: Observed) -> SampledState:
        inner = self.predictor.update(state.inner, observed)
        return replace(state, inner=inner, batches=state.batches + 1)

    def predict(self, state: SampledState, items: IntArray | None = None) -> Prediction:
        mean, std = self.predictor.predict(state.inner, items)
        if state.batches >= self.until:
            return Prediction(mean, std)
        noise = np.stack([g.gumbel(size=mean.shape[1]) for g in state.generators])
        return Prediction((mean + noise).astype(np.float32), std)
