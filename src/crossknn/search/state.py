"""What a search requested and observed, query by query; `loop` decides what to request.

No array that leaves a `SearchState` is one that it goes on writing to: all are read-only copies.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.types import NO_ITEM, Candidates, FloatArray, IntArray, Observed, Pairs, Ranking

_A = TypeVar("_A", bound=np.ndarray[Any, Any])

_EMPTY = (NO_ITEM, np.nan, 0, np.nan, np.nan)
"""What fills the arrays of a `Ranking` where there is no item."""


class SearchState:
    """The pairs of m queries, at most `width` each, in the order in which they were requested.

    A requested pair is observed (its exact score is known) or failed; a failed one leaves its place
    to others, and still counts as `seen`.
    """

    def __init__(self, m: int, width: int) -> None:
        kinds = (np.int64, np.float32, np.int64, np.float32, np.float32)
        fills = zip(_EMPTY, kinds, strict=True)
        self._rows = Ranking(*(np.full((m, width), fill, kind) for fill, kind in fills))
        self._requested = np.zeros(m, np.int64)
        self._failed: list[set[int]] = [set() for _ in range(m)]
        self._position: list[dict[int, int]] = [{} for _ in range(m)]

    @property
    def requested(self) -> IntArray:
        """(m,) pairs that were requested and have not failed."""
        return frozen(self._requested)

    @property
    def n_scored(self) -> IntArray:
        """(m,) distinct pairs whose exact score is known."""
        return np.count_nonzero(~np.isnan(self._rows.scores), axis=1)

    @property
    def n_failed(self) -> IntArray:
        """(m,) pairs that were requested and never observed."""
        return np.array([len(items) for items in self._failed], np.int64)

    def request(
        self, query: int, items: IntArray, approx: FloatArray, std: FloatArray, round: int
    ) -> None:
        """Record the items (c,) requested for `query` in `round`, with their predicted means and
        standard deviations (c,)."""
        start = int(self._requested[query])
        stop = start + len(items)
        rows = self._rows
        rows.items[query, start:stop], rows.rounds[query, start:stop] = items, round
        rows.approx[query, start:stop], rows.std[query, start:stop] = approx, std
        self._position[query].update(zip(items.tolist(), range(start, stop), strict=True))
        self._requested[query] = stop

    def observe(self, pairs: Pairs, scores: FloatArray) -> None:
        """Record exact scores (p,) of pairs that were requested; a part of them is fine.

        Raises:
            ScorerError: Scores are too few, too many or not finite.
            InputError: A pair was not requested.
        """
        scores = np.asarray(scores, np.float32)
        if scores.shape != (len(pairs),):
            raise ScorerError(f"{len(pairs)} pairs were told {scores.size} scores")
        if not np.isfinite(scores).all():
            p = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise ScorerError(
                f"the score of query {pairs.query[p]} and item {pairs.item[p]} is {scores[p]}"
            )
        where = np.empty(len(pairs), np.int64)
        for p, (query, item) in enumerate(
            zip(pairs.query.tolist(), pairs.item.tolist(), strict=True)
        ):
            if item not in self._position[query]:
                raise InputError(f"query {query} was not asked about item {item}")
            where[p] = self._position[query][item]
        self._rows.scores[pairs.query, where] = scores

    def fail_unobserved(self) -> None:
        """Record as failed what was requested and is not observed yet."""
        rows = self._rows
        missing = (rows.items != NO_ITEM) & np.isnan(rows.scores)
        for query in np.flatnonzero(missing.any(axis=1)).tolist():
            self._failed[query].update(rows.items[query, missing[query]].tolist())
            kept = np.flatnonzero(~missing[query, : self._requested[query]])
            for values, fill in zip(self._arrays(), _EMPTY, strict=True):
                values[query, : len(kept)] = values[query, kept]
                values[query, len(kept) :] = fill
            self._requested[query] = len(kept)
            items = rows.items[query, : len(kept)].tolist()
            self._position[query] = {item: p for p, item in enumerate(items)}

    def known(self, query: int) -> FloatArray:
        """(b,) the exact scores of a query of which all requested pairs were observed."""
        return frozen(self._rows.scores[query, : self._requested[query]])

    def seen(self) -> IntArray:
        """(m, e) all that was ever requested, failed or not, padded with `NO_ITEM`."""
        if not any(self._failed):
            return frozen(self._rows.items[:, : int(self._requested.max(initial=0))])
        rows = [
            np.array([*self._position[query], *sorted(failed)], np.int64)
            for query, failed in enumerate(self._failed)
        ]
        return Candidates.from_rows([(row, row.astype(np.float32)) for row in rows]).items

    def observed(self) -> Observed:
        """All exact scores so far, left-aligned."""
        return Observed(
            frozen(self._rows.items), frozen(self._rows.scores), frozen(self._requested)
        )

    def best(self, k: int) -> Ranking:
        """The k best scored items of each query, by exact score, ties by position."""
        rows = self._rows
        scores = np.nan_to_num(rows.scores, nan=-np.inf)
        order = np.lexsort((rows.items, -scores))[:, :k]
        known = np.take_along_axis(~np.isnan(rows.scores), order, axis=1)
        best = [
            np.where(known, np.take_along_axis(values, order, axis=1), fill)
            for values, fill in zip(self._arrays(), _EMPTY, strict=True)
        ]
        return Ranking(*best)

    def picks(self) -> Ranking:
        """Every scored item of each query, in the order in which it was requested."""
        picks = Ranking(*map(frozen, self._arrays()))
        return replace(picks, items=np.where(np.isnan(picks.scores), NO_ITEM, picks.items))

    def _arrays(self) -> tuple[Any, ...]:
        rows = self._rows
        return rows.items, rows.scores, rows.rounds, rows.approx, rows.std


def frozen(values: _A) -> _A:
    """A read-only copy: who holds it neither changes the search nor sees it change."""
    copy = values.copy()
    copy.flags.writeable = False
    return copy
