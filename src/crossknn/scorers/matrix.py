"""Stored scores as the cross-encoder: for studies, tests and replays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.streaming import BatchedScorer, Call, excerpt
from crossknn.types import FloatArray, IntArray

_BATCH = 65_536
_SAMPLED = 1 << 20


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
        self._speed = None  # looking up takes no time
        self._scores = scores
        self._rows: dict[str, int] | None = None
        if queries is None:
            return
        if len(queries) != len(scores):
            raise InputError(f"{len(queries)} query texts were given for {len(scores)} rows")
        self._rows = {}
        for row, text in enumerate(queries):
            first = self._rows.setdefault(text, row)
            if first != row and not np.array_equal(scores[first], scores[row]):
                raise InputError(
                    f"rows {first} and {row} have the same query text {excerpt(text)} and "
                    f"different scores; leave `queries` out to look rows up by position"
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
        most, n_items = int(call.pairs.item.max(initial=0)), self._scores.shape[1]
        call.prepared = self._row_of_each(call)
        if len(call.pairs) and most >= n_items:
            raise InputError(f"item {most} is not in the stored scores of {n_items} items")
        return call.slices(_BATCH)

    def _row_of_each(self, call: Call) -> IntArray:
        """Pairs (p) -> their rows in the matrix (p,)."""
        if self._rows is None:
            most = int(call.pairs.query.max(initial=0))
            if len(call.pairs) and most >= len(self._scores):
                n_queries = len(self._scores)
                raise InputError(f"query {most} is not in the stored scores of {n_queries} queries")
            return call.pairs.query
        asked, inverse = np.unique(call.pairs.query, return_inverse=True)
        rows = [self._rows.get(call.queries[query], -1) for query in asked]
        if -1 in rows:
            text = call.queries[asked[rows.index(-1)]]
            raise InputError(f"no stored scores for the query {excerpt(text)}")
        return np.array(rows, dtype=np.int64)[inverse]

    def _run(self, call: Call, positions: IntArray) -> object:
        return self._scores[call.prepared[positions], call.pairs.item[positions]]
