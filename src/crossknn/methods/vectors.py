"""One vector per query: approximate score = query vector . item vector. Methods differ only in how
they fit the query's vector to its exact scores, by a function `Fit`.

Axes: m queries, n items, b scored items of a query, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.linalg import inner
from crossknn.methods.base import Method, Plan, Prediction, Predictor
from crossknn.retrievers.base import VectorStore
from crossknn.retrievers.specs import AUTO, default_vectors, need_query_vectors, open_retriever
from crossknn.spec import Spec
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Observed, Queries, Scale

Normalize: TypeAlias = Literal["auto", "anchors", "first", "none"]
"""How exact scores are normalized to the scale of the vectors. Fits have no intercept, so the
location of zero matters (AXN A.2). `anchors` matches mean and standard deviation of exact to
approximate scores over anchor or train queries. `first` matches the same two moments over the
query's first batch, or only the mean if queries have no vectors. `none` leaves the scores
unchanged; `auto` uses `anchors` if the index has them, and otherwise `first`."""


@dataclass(frozen=True, slots=True)
class Scored:
    """All exact scores of one query, and its vectors so far.

    `items` (b,) are positions, with `vectors` (b, d) from the index and `scores` (b,) float64 on
    the vectors' scale. `current` (d,) was fitted to the first `n_seen` scores; `parametric` (d,)
    is the encoder's query vector, or None.
    """

    items: IntArray
    vectors: FloatArray
    scores: FloatArray
    current: FloatArray
    parametric: FloatArray | None
    n_seen: int


Fit: TypeAlias = Callable[[Scored], tuple[FloatArray, float]]
"""Fits the query's new vector u (d,) and an offset: score ~ u . v + offset."""


@dataclass(frozen=True, slots=True)
class QueryVectors:
    """State of a vector predictor: the values of `Scored` for every query, with its scale and its
    offset."""

    current: FloatArray
    parametric: FloatArray | None
    scales: tuple[Scale, ...]
    offsets: tuple[float, ...]
    n_seen: IntArray


@dataclass(frozen=True, eq=False)
class VectorPredictor(Predictor[QueryVectors]):
    """Predicts scores by `current @ items.T + offset`, on the scale of the exact scores.

    `fit` fits a query's vector to its exact scores, normalized as its first batch determines;
    `parametric` gives query vectors (m, d) known before any exact score. Without an array of
    `items` (n, d), each round finds the best by their `top`.
    """

    items: VectorStore
    fit: Fit
    parametric: Callable[[Queries], FloatArray] | None = None
    normalize: Callable[[Scored], Scale] = lambda scored: Scale()

    def start(self, queries: Queries) -> QueryVectors:
        m = len(queries)
        given = None if self.parametric is None else self.parametric(queries)
        current = np.zeros((m, self.items.shape[1])) if given is None else given
        none = np.zeros(m, np.int64)
        return QueryVectors(current.astype(np.float32), given, (Scale(),) * m, (0.0,) * m, none)

    def update(self, state: QueryVectors, observed: Observed) -> QueryVectors:
        current, scales, offsets = state.current.copy(), [*state.scales], [*state.offsets]
        for q, items, scores in observed.rows():
            scored = Scored(
                items=items,
                vectors=self.items.vectors(items),
                scores=scores.astype(np.float64),
                current=state.current[q],
                parametric=None if state.parametric is None else state.parametric[q],
                n_seen=int(state.n_seen[q]),
            )
            if not scored.n_seen:
                scales[q] = self.normalize(scored)
            scaled = scales[q].beta * (scored.scores - scales[q].alpha)
            current[q], offsets[q] = self.fit(replace(scored, scores=scaled))
        return QueryVectors(
            current, state.parametric, tuple(scales), tuple(offsets), observed.counts
        )

    def predict(self, state: QueryVectors, items: IntArray | None = None) -> Prediction:
        if items is None:
            if self.items.values is None:
                raise InputError("scores of all items need an array of vectors, not a database")
            approx = inner(state.current, self.items.values)
        else:
            rows = zip(np.maximum(items, 0), state.current, strict=True)
            approx = np.stack([self.items.vectors(row) @ u for row, u in rows])
        return Prediction(_on_exact_scale(state, approx))

    def top(
        self,
        state: QueryVectors,
        count: int,
        exclude: IntArray,
        allowed: BoolArray | None = None,
        pool: IntArray | None = None,
    ) -> Candidates:
        if pool is not None or self.items.values is not None:
            return super().top(state, count, exclude, allowed, pool)
        best = self.items.top(state.current, count, exclude, allowed)
        return Candidates(best.items, _on_exact_scale(state, best.scores))


def _on_exact_scale(state: QueryVectors, products: FloatArray) -> FloatArray:
    """Convert inner products (m, c) to the scale of exact scores, in place."""
    for q, (scale, offset) in enumerate(zip(state.scales, state.offsets, strict=True)):
        if offset or scale != Scale():
            products[q] /= scale.beta
            products[q] += scale.alpha + offset / scale.beta
    return products


def encoder_predictor(
    index: Index, name: str, fit: Fit, normalize: Normalize = "none"
) -> VectorPredictor:
    """Make a predictor that starts from the encoder's query vectors, for the item vectors
    `name`."""
    encode = partial(index.query_vectors, name=name) if index.has_query_vectors(name) else None
    return VectorPredictor(index.store(name), fit, encode, normalizer(index, name, normalize))


def normalizer(index: Index, vectors: str, normalize: Normalize) -> Callable[[Scored], Scale]:
    """Return the normalization of exact scores that `normalize` selects."""
    if normalize == "first":
        return _first_batch
    scale = Scale() if normalize == "none" else index.scale(vectors)
    if scale is not None:
        return lambda scored: scale
    if normalize == "anchors":
        raise InputError(
            f"normalize=anchors needs a scale for the item vectors {vectors!r}, which the "
            "index lacks: add anchor queries, or use normalize=first"
        )
    return _first_batch


def _first_batch(scored: Scored) -> Scale:
    query = scored.parametric
    return Scale.match(scored.scores, np.zeros(1) if query is None else scored.vectors @ query)


@dataclass(frozen=True, kw_only=True)
class VectorMethod(Method):
    """Base class of methods that move the query's vector.

    Args:
        retriever: The retriever that picks the first batch.
        vectors: Name of the item vectors, for which the index must be able to encode queries.
        normalize: See `Normalize`.
    """

    retriever: Spec = AUTO
    vectors: str = "auto"
    normalize: Normalize = "auto"

    def required_artifacts(self, index: Index) -> Collection[str]:
        """The name of the vectors whose scale is used, if any."""
        if self.normalize in ("auto", "anchors"):
            return (default_vectors(index, self.vectors),)
        return ()

    def vector_plan(self, index: Index, seed: int, fit: Fit, batches: tuple[int, ...]) -> Plan:
        """Plan a search whose query vectors `fit` moves, starting from the encoder's."""
        vectors = need_query_vectors(index, default_vectors(index, self.vectors), self.name)
        return Plan(
            retriever=open_retriever(index, self.retriever, seed),
            predictor=encoder_predictor(index, vectors, fit, self.normalize),
            batches=batches,
        )
