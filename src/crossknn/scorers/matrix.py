"""Stored scores as the cross-encoder: for studies, tests and replays."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.deadline import Deadline
from crossknn.scorers.robust import excerpt, stream
from crossknn.types import FloatArray, IntArray, Pairs

_BATCH = 65_536
_SAMPLED = 1 << 20


class MatrixScorer:
    """Looks scores up in `scores` (m, n), where column i belongs to item i.

    The row is the query's position, or, if `queries` (m texts) is given, the row of its text,
    so that any subset of the queries can be searched in any order.
    """

    def __init__(self, scores: FloatArray, queries: Sequence[str] | None = None) -> None:
        """Raises InputError if `scores` is not a matrix of numbers, or `queries` do not fit it."""
        if getattr(scores, "ndim", None) != 2 or not np.issubdtype(scores.dtype, np.number):
            raise InputError(
                f"stored scores must be a matrix (queries, items) of numbers, got "
                f"{type(scores).__name__} of shape {getattr(scores, 'shape', None)}"
            )
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

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yields (positions (b,), scores (b,) float32), in the order of `pairs`.

        Raises InputError for a query or an item that is not in the matrix, ScorerError for a
        score that is NaN or infinite.
        """
        rows = self._row_of_each(pairs, queries)
        if len(pairs) and int(pairs.item.max()) >= self._scores.shape[1]:
            raise InputError(
                f"item {int(pairs.item.max())} is not in the stored scores of "
                f"{self._scores.shape[1]} items"
            )
        order = np.arange(len(pairs), dtype=np.int64)
        batches = (order[s : s + _BATCH] for s in range(0, len(pairs), _BATCH))
        return stream(
            pairs,
            queries,
            items,
            batches,
            lambda positions: self._scores[rows[positions], pairs.item[positions]],
            who="the stored matrix",
            deadline=Deadline(time_left, cancel),
        )

    def _row_of_each(self, pairs: Pairs, queries: Sequence[str]) -> IntArray:
        if self._rows is None:
            if len(pairs) and int(pairs.query.max()) >= len(self._scores):
                raise InputError(
                    f"query {int(pairs.query.max())} is not in the stored scores of "
                    f"{len(self._scores)} queries"
                )
            return pairs.query
        asked, inverse = np.unique(pairs.query, return_inverse=True)
        rows = np.empty(len(asked), dtype=np.int64)
        for r, query in enumerate(asked):
            row = self._rows.get(queries[query])
            if row is None:
                raise InputError(f"no stored scores for the query {excerpt(queries[query])}")
            rows[r] = row
        return rows[inverse]
