"""Use a function or a matrix of stored scores as the cross-encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.base import Priced
from crossknn.scorers.streaming import BatchedScorer, Call
from crossknn.types import FloatArray, IntArray, as_count


class CallableScorer(Priced, BatchedScorer):
    """A `Scorer` that calls a function of yours.

    Args:
        fn: Takes a list of (query text, item text) and returns one number for each pair. A pair on
            which it raises is left out; a wrong number of scores raises a ScorerError.
        name: Name under which scores are stored; change it whenever the function changes. Without a
            name there is no fingerprint, and scores are not stored.
        batch: Maximum number of pairs per call.
        price: Money for a thousand pairs; `spent` then sums up.
    """

    def __init__(
        self,
        fn: Callable[[list[tuple[str, str]]], object],
        name: str | None = None,
        *,
        batch: int = 64,
        price: float | None = None,
    ) -> None:
        if not callable(fn) or not isinstance(name, str | None):
            raise InputError(f"a scorer needs a function and a name, got {fn!r:.60} and {name!r}")
        shown = name or str(getattr(fn, "__name__", type(fn).__name__))
        super().__init__(shown, "the scorer {!r}")
        self._set_price(price)
        self._fn, self.largest = fn, as_count(batch, "batch")
        self.fingerprint = None if name is None else f"callable:{name}"

    def _run(self, call: Call, positions: IntArray) -> object:
        scores = self._fn(call.texts(positions))
        self._scored.add(len(positions))
        return scores


class MatrixScorer(BatchedScorer):
    """Looks scores up in a matrix (m, n), by the positions of queries and items, for searches whose
    exact scores were collected before."""

    fingerprint = None
    reads_texts = False  # equal texts may have other scores

    def __init__(self, scores: FloatArray) -> None:
        if getattr(scores, "ndim", None) != 2 or not np.issubdtype(scores.dtype, np.number):
            raise InputError(
                f"stored scores must be a matrix (queries, items) of numbers, got "
                f"{type(scores).__name__} of shape {getattr(scores, 'shape', None)}"
            )
        super().__init__("the stored matrix", "{}")
        self._scores = scores

    def _batches(self, call: Call) -> Iterable[IntArray]:
        for what, size in zip(("query", "item"), self._scores.shape, strict=True):
            most = int(getattr(call.pairs, what).max(initial=-1))
            if most >= size:
                raise InputError(f"there are no stored scores for {what} {most}, only for {size}")
        return super()._batches(call)

    def _run(self, call: Call, positions: IntArray) -> object:
        return self._scores[call.pairs.query[positions], call.pairs.item[positions]]
