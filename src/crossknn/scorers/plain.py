"""Functions and stored scores as the cross-encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.streaming import BatchedScorer, Call, excerpt
from crossknn.types import FloatArray, IntArray, as_count

_BATCH = 65_536
_SAMPLED = 1 << 20


class CallableScorer(BatchedScorer):
    """Scores with `fn`: a list of (query text, item text) -> one number per pair.

    A pair on which `fn` raises is left out; a wrong number of scores is a ScorerError.

    Args:
        name: your promise that the function's scores belong to this name; without one there is
            no fingerprint, so that nothing is cached under a function that may change.
        batch: pairs of one call of `fn`, at most.

    Raises:
        InputError: `fn` is not callable, or an option is out of range.
    """

    def __init__(
        self,
        fn: Callable[[list[tuple[str, str]]], object],
        name: str | None = None,
        *,
        batch: int = 64,
    ) -> None:
        if not callable(fn) or not isinstance(name, str | None):
            raise InputError(f"a scorer needs a function and a name, got {fn!r:.60} and {name!r}")
        shown = name or str(getattr(fn, "__name__", type(fn).__name__))
        super().__init__(shown, "the scorer {!r}")
        self._fn, self._batch = fn, as_count(batch, "batch")
        self.fingerprint = None if name is None else f"callable:{name}"

    def _batches(self, call: Call) -> Iterator[IntArray]:
        return call.slices(self._batch)

    def _run(self, call: Call, positions: IntArray) -> object:
        return self._fn(call.texts(positions))


class MatrixScorer(BatchedScorer):
    """Looks scores up in `scores` (m, n), where column i belongs to item i.

    The row is the query's position, or, if `queries` (m texts) is given, the row of its text,
    so that any subset of the queries can be searched in any order.

    Raises:
        InputError: `scores` is not a matrix of numbers, or `queries` do not fit it; from `score`:
            a query or an item is not in the matrix.
    """

    def __init__(self, scores: FloatArray, queries: Sequence[str] | None = None) -> None:
        if getattr(scores, "ndim", None) != 2 or not np.issubdtype(scores.dtype, np.number):
            raise InputError(
                f"stored scores must be a matrix (queries, items) of numbers, got "
                f"{type(scores).__name__} of shape {getattr(scores, 'shape', None)}"
            )
        super().__init__("the stored matrix", "{}")
        self._scores = scores
        self._rows = None if queries is None else {text: row for row, text in enumerate(queries)}
        if self._rows is not None and len(self._rows) != len(scores):
            raise InputError(
                f"{len(self._rows)} different query texts were given for {len(scores)} rows; "
                f"leave `queries` out to look rows up by position"
            )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the shape and of up to a million evenly spaced scores."""
        flat = self._scores.reshape(-1)
        sample = np.ascontiguousarray(flat[:: max(1, flat.size // _SAMPLED)])
        digest = hashlib.blake2b(repr((self._scores.shape, str(sample.dtype))).encode())
        digest.update(sample.tobytes())
        return f"matrix:{digest.hexdigest()[:32]}"

    def _batches(self, call: Call) -> Iterator[IntArray]:
        asked, inverse = np.unique(call.pairs.query, return_inverse=True)
        rows = asked
        if self._rows is not None:
            rows = np.array([self._rows.get(call.queries[query], -1) for query in asked], np.int64)
        wrong = np.flatnonzero((rows < 0) | (rows >= len(self._scores)))
        if len(wrong):
            query = int(asked[wrong[0]])
            text = excerpt(str(call.queries[query]))
            raise InputError(f"there are no stored scores for query {query} {text}")
        most, n_items = int(call.pairs.item.max(initial=-1)), self._scores.shape[1]
        if most >= n_items:
            raise InputError(f"item {most} is not in the stored scores of {n_items} items")
        call.prepared = rows[inverse]
        return call.slices(_BATCH)

    def _run(self, call: Call, positions: IntArray) -> object:
        return self._scores[call.prepared[positions], call.pairs.item[positions]]
