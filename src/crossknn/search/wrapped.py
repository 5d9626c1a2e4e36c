"""A predictor around another one: a subclass overrides only what it adds."""

from __future__ import annotations

from crossknn.search.predictor import Prediction, Predictor, State
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Observed, Queries


class Wrapped(Predictor[State]):
    """Says whatever `predictor` says."""

    def __init__(self, predictor: Predictor[State]) -> None:
        self.predictor = predictor

    @property
    def has_std(self) -> bool:  # type: ignore[override]
        return self.predictor.has_std

    def start(self, queries: Queries) -> State:
        return self.predictor.start(queries)

    def update(self, state: State, observed: Observed) -> State:
        return self.predictor.update(state, observed)

    def predict(self, state: State, items: IntArray | None = None) -> Prediction:
        return self.predictor.predict(state, items)

    def posterior(self, state: State, items: IntArray | None = None) -> Prediction:
        return self.predictor.posterior(state, items)

    def acquisition(self, prediction: Prediction) -> FloatArray:
        return self.predictor.acquisition(prediction)

    def shortlist(self, state: State, pool: IntArray, allowed: BoolArray | None = None) -> IntArray:
        return self.predictor.shortlist(state, pool, allowed)

    def top(
        self,
        state: State,
        count: int,
        exclude: IntArray,
        allowed: BoolArray | None = None,
        pool: IntArray | None = None,
    ) -> Candidates:
        return self.predictor.top(state, count, exclude, allowed, pool)
