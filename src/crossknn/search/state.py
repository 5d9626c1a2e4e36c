"""What a search asked and was told, query by query; who chooses what to ask is `search`.

No array that leaves a `SearchState` is one that it goes on writing to: all are read-only copies.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.types import NO_ITEM, Candidates, FloatArray, IntArray, Observed, Pairs, Ranking

_A = TypeVar("_A", bound=np.ndarray[Any, Any])


class SearchState:
    """The pairs of m queries, at most `width` each, in the order in which they were asked.

    A pair is noted as asked, then told its exact score or given up; one that is given up leaves its
    place to others, and is still known as `seen`.
    """

    def __init__(self, m: int, width: int) -> None:
        self._asked = np.zeros(m, np.int64)
        self._items = np.full((m, width), NO_ITEM, np.int64)
        self._scores = np.full((m, width), np.nan, np.float32)  # NaN until told
        self._approx = np.full((m, width), np.nan, np.float32)
        self._std = np.full((m, width), np.nan, np.float32)
        self._rounds = np.zeros((m, width), np.int64)
        self._given_up: list[set[int]] = [set() for _ in range(m)]
        self._sorted: dict[int, tuple[IntArray, IntArray]] = {}  # a query's items, and their places

    @property
    def asked(self) -> IntArray:
        """(m,) pairs that were asked and not given up."""
        return frozen(self._asked)

    @property
    def n_scored(self) -> IntArray:
        """(m,) distinct pairs whose exact score is known."""
        return np.count_nonzero(~np.isnan(self._scores), axis=1)

    @property
    def given_up(self) -> IntArray:
        """(m,) pairs that were asked and never told."""
        return np.array([len(items) for items in self._given_up], np.int64)

    def note(
        self, query: int, items: IntArray, approx: FloatArray, std: FloatArray, round: int
    ) -> None:
        """A query's new items (c,) are asked in this round; `approx` and `std` (c,) foretell."""
        place = slice(self._asked[query], self._asked[query] + len(items))
        self._items[query, place], self._rounds[query, place] = items, round
        self._approx[query, place], self._std[query, place] = approx, std
        self._asked[query] += len(items)
        self._sorted.pop(query, None)

    def tell(self, pairs: Pairs, scores: FloatArray) -> None:
        """Exact scores (p,) of pairs that were asked; a part of them is fine.

        Raises ScorerError for scores that are too few, too many or not finite, InputError for a
        pair that was not asked.
        """
        scores = np.asarray(scores, np.float32)
        if scores.shape != (len(pairs),):
            raise ScorerError(f"{len(pairs)} pairs were told {scores.size} scores")
        if not np.isfinite(scores).all():
            p = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise ScorerError(
                f"the score of query {pairs.query[p]} and item {pairs.item[p]} is {scores[p]}"
            )
        for query in np.unique(pairs.query).tolist():
            mine = pairs.query == query
            self._scores[query, self._places(query, pairs.item[mine])] = scores[mine]

    def give_up_untold(self) -> None:
        """Give up what was asked and is not told yet."""
        untold = (self._items != NO_ITEM) & np.isnan(self._scores)
        for query in np.flatnonzero(untold.any(axis=1)).tolist():
            keep = ~untold[query] & (self._items[query] != NO_ITEM)
            self._given_up[query].update(self._items[query, untold[query]].tolist())
            count = int(keep.sum())
            for values, fill in (
                (self._items, NO_ITEM),
                (self._scores, np.nan),
                (self._approx, np.nan),
                (self._std, np.nan),
                (self._rounds, 0),
            ):
                kept = values[query, keep]
                values[query] = fill
                values[query, :count] = kept
            self._asked[query] = count
            self._sorted.pop(query, None)

    def known(self, query: int) -> FloatArray:
        """(b,) the exact scores of a query that was told all it asked."""
        return frozen(self._scores[query, : self._asked[query]])

    def seen(self) -> IntArray:
        """(m, e) all that was ever asked, told or given up, padded with `NO_ITEM`."""
        if not any(self._given_up):
            return frozen(self._items[:, : int(self._asked.max(initial=0))])
        rows = [
            np.array([*self._items[query, : self._asked[query]], *sorted(gone)], np.int64)
            for query, gone in enumerate(self._given_up)
        ]
        return Candidates.from_rows([(row, row.astype(np.float32)) for row in rows]).items

    def observed(self) -> Observed:
        """All exact scores so far, left-fitted."""
        return Observed(frozen(self._items), frozen(self._scores), frozen(self._asked))

    def best(self, k: int) -> Ranking:
        """The k best scored items of each query."""
        order = np.lexsort((self._items, -np.nan_to_num(self._scores, nan=-np.inf)))[:, :k]
        known = np.take_along_axis(~np.isnan(self._scores), order, axis=1)

        def pick(values: Any, fill: float) -> Any:
            return np.where(known, np.take_along_axis(values, order, axis=1), fill)

        return Ranking(
            pick(self._items, NO_ITEM),
            pick(self._scores, np.nan),
            pick(self._rounds, 0),
            pick(self._approx, np.nan),
            pick(self._std, np.nan),
        )

    def picks(self) -> Ranking:
        """Every scored item of each query in the order in which it was picked."""
        items = np.where(np.isnan(self._scores), NO_ITEM, self._items)
        return Ranking(
            items,
            frozen(self._scores),
            frozen(self._rounds),
            frozen(self._approx),
            frozen(self._std),
        )

    def _places(self, query: int, items: IntArray) -> IntArray:
        """Where in its row each of a query's asked items stands: (p,) -> (p,)."""
        if query not in self._sorted:
            order = np.argsort(self._items[query, : self._asked[query]])
            self._sorted[query] = (self._items[query, order], order)
        known, order = self._sorted[query]
        found = np.minimum(np.searchsorted(known, items), len(known) - 1)
        strange = np.flatnonzero(known[found] != items) if len(known) else np.arange(len(items))
        if len(strange):
            raise InputError(f"query {query} was not asked about item {items[strange[0]]}")
        return order[found]


def frozen(values: _A) -> _A:
    """A read-only copy: who holds it neither changes the search nor sees it change."""
    copy = values.copy()
    copy.flags.writeable = False
    return copy
