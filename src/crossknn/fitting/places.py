"""Where the pairs are: one integer names a pair by the lines of its texts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.types import IntArray, Pairs

_ITEM_BITS = 32


def keys_of(queries: IntArray, items: IntArray, pairs: Pairs) -> IntArray:
    """Keys (p,) of pairs of queries and items that have these lines (q,), (n,).

    Raises InputError for a pair of others.
    """
    for what, positions, count in (
        ("query", pairs.query, len(queries)),
        ("item", pairs.item, len(items)),
    ):
        wrong = positions[(positions < 0) | (positions >= count)]
        if len(wrong):
            raise InputError(f"a pair names {what} {wrong[0]}, but there are {count}")
    return queries[pairs.query] << _ITEM_BITS | items[pairs.item]


def split(key: IntArray) -> tuple[IntArray, IntArray]:
    """The lines of the queries (p,) and of the items (p,) of pairs."""
    return key >> _ITEM_BITS, key & (1 << _ITEM_BITS) - 1


class Places:
    """Keys, each once, and the place of each if all shards follow each other: 12 bytes a pair."""

    def __init__(self) -> None:
        self._key: IntArray = np.empty(0, np.int64)
        self._place: NDArray[np.int32] = np.empty(0, np.int32)
        self._new: list[IntArray] = []

    def add(self, key: IntArray) -> None:
        """The keys (s,) of the next shard."""
        self._new.append(key)

    def find(self, key: IntArray) -> IntArray:
        """The places of keys (p,); -1 for what no shard has."""
        self._sort()
        if not len(self._key):
            return np.full(len(key), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self._key, key), len(self._key) - 1)
        return np.where(self._key[at] == key, self._place[at], -1).astype(np.int64)

    def of_queries(self, lines: IntArray) -> tuple[IntArray, IntArray]:
        """All pairs of the queries in these lines (q,): which of them, and the item's line."""
        self._sort()
        ends = np.searchsorted(self._key, np.stack([lines, lines + 1]) << _ITEM_BITS)
        which, at = members(*ends)
        return which, split(self._key[at])[1]

    def _sort(self) -> None:
        if not self._new:
            return
        key = np.concatenate([self._key, *self._new])
        self._new = []
        order = np.argsort(key)
        place = np.arange(len(key), dtype=np.int32)
        place[: len(self._place)] = self._place
        self._key, self._place = key[order], place[order]


def members(starts: IntArray, ends: IntArray) -> tuple[IntArray, IntArray]:
    """The numbers of all ranges (r,), one range after the other: which range, which number."""
    counts = ends - starts
    which = np.repeat(np.arange(len(counts)), counts)
    offset = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    return which, starts[which] + offset
