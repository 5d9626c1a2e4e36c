"""Choosing by chance instead of greedily: `top` on perturbed predictions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import numpy as np

from crossknn.search.predictor import Prediction, Predictor
from crossknn.types import IntArray, Observed, Queries

Inner = TypeVar("Inner")


@dataclass(frozen=True, slots=True)
class SampledState(Generic[Inner]):
    """The wrapped predictor's state, the queries' generators, and how many batches were told."""

    inner: Inner
    generators: tuple[np.random.Generator, ...]
    batches: int = 0


class Sampled(Predictor[SampledState[Inner]]):
    """Samples items without replacement, by softmax of the prediction or uniformly (ADACUR 2.2).

    Adding Gumbel noise and taking the top samples from the softmax without replacement; already
    scored items are masked before anything is compared, so an underflow cannot tie with them.
    After `until` batches the wrapped predictor chooses greedily.
    """

    def __init__(
        self,
        predictor: Predictor[Inner],
        how: Literal["softmax", "random"],
        *,
        seed: int,
        until: int,
    ) -> None:
        self.predictor, self.how, self.seed, self.until = predictor, how, seed, until

    def start(self, queries: Queries) -> SampledState[Inner]:
        generators = tuple(queries.generator(q, self.seed) for q in range(len(queries)))
        return SampledState(self.predictor.start(queries), generators)

    def update(self, state: SampledState[Inner], observed: Observed) -> SampledState[Inner]:
        inner = self.predictor.update(state.inner, observed)
        return SampledState(inner, state.generators, state.batches + 1)

    def predict(self, state: SampledState[Inner], items: IntArray | None = None) -> Prediction:
        mean, std = self.predictor.predict(state.inner, items)
        if state.batches >= self.until:
            return Prediction(mean, std)
        noise = np.stack([g.gumbel(size=mean.shape[1]) for g in state.generators])
        mean = noise if self.how == "random" else mean + noise
        return Prediction(mean.astype(np.float32), std)
