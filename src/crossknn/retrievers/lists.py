"""Your own candidates, from anywhere: a ranked list per query, or stored scores of all items."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from crossknn.data.queries import QuerySet, read_run
from crossknn.errors import InputError
from crossknn.retrievers.base import AllScores, scores_of
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Queries

logger = logging.getLogger(__name__)

RankedIds: TypeAlias = Sequence[str | tuple[str, float]]
"""Item ids, best first, or (id, score)."""


class CandidateLists:
    """Ranked lists by query text.

    A list without scores is scored 1 / rank. Items that are not listed score 0, or as the worst
    listed item if that is below 0. A query without a list has an empty row.

    Args:
        lists: A query's text -> item ids or (id, score).
        ids: The ids (n,) of the items.
        names: A query's text -> its id, by which an error names the list.

    Raises:
        InputError: For an unknown id, an id listed twice, or a score that is no number.
    """

    def __init__(
        self,
        lists: Mapping[str, RankedIds],
        ids: Sequence[str],
        names: Mapping[str, str] | None = None,
    ) -> None:
        position, names = {item_id: p for p, item_id in enumerate(ids)}, names or {}
        self._n = len(position)
        self._rows = {
            text: _row(names.get(text, text), ranked, position) for text, ranked in lists.items()
        }

    @staticmethod
    def from_run(path: str | Path, queries: QuerySet, ids: Sequence[str]) -> CandidateLists:
        """Lists from a TREC run whose query ids are those of `queries`."""
        texts = dict(zip(queries.ids, queries.texts, strict=True))
        run = {query: ranked for query, ranked in read_run(path).items() if query in texts}
        if not run:
            raise InputError(f"{path} ranks none of the queries by their ids")
        lists = {texts[query]: ranked for query, ranked in run.items()}
        return CandidateLists(lists, ids, {texts[query]: query for query in run})

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The first `count` allowed items of each list; rows may be short."""
        rows = []
        for text in queries.texts:
            items, listed = self._row_of(text)
            if allowed is not None:
                items, listed = items[allowed[items]], listed[allowed[items]]
            rows.append((items[:count], listed[:count]))
        return Candidates.from_rows(rows)

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Scores (m, c) of given items, or of all: (m, n)."""
        if items is None:
            items = np.broadcast_to(np.arange(self._n), (len(queries), self._n))
        found = self.top(queries, self._n)
        worst = np.where(np.isfinite(found.scores), found.scores, 0).min(axis=1, initial=0)
        return scores_of(found, items, worst)

    def _row_of(self, text: str) -> tuple[IntArray, FloatArray]:
        row = self._rows.get(text)
        if row is None:
            logger.warning("there is no candidate list for the query %.80r", text)
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        return row


class StoredRetriever(AllScores):
    """Stored cheap scores (q, n).

    The query with a text has the row `rows[text]`; without `rows`, row r belongs to the r-th query.
    """

    def __init__(self, stored: FloatArray, rows: Mapping[str, int] | None = None) -> None:
        self.stored, self.rows = stored, rows

    def of_all(self, queries: Queries) -> FloatArray:
        """The stored scores, as float32: (m, n)."""
        if self.rows is None:
            return self.stored.astype(np.float32)
        found: FloatArray = self.stored[[self.rows[text] for text in queries.texts]]
        return found.astype(np.float32)


def _row(name: str, ranked: RankedIds, position: Mapping[str, int]) -> tuple[IntArray, FloatArray]:
    """(items, scores), best first, ties by position."""
    scores: dict[int, float] = {}
    for rank, entry in enumerate(ranked, start=1):
        item_id, score = (entry, 1 / rank) if isinstance(entry, str) else entry
        if item_id not in position:
            raise InputError(f"the list of {name!r} names the unknown item {item_id!r}")
        if position[item_id] in scores:
            raise InputError(f"the list of {name!r} names the item {item_id!r} twice")
        if not np.isfinite(score):
            raise InputError(f"the list of {name!r} scores the item {item_id!r} {score}")
        scores[position[item_id]] = float(score)
    items = np.fromiter(scores, dtype=np.int64, count=len(scores))
    values = np.fromiter(scores.values(), dtype=np.float32, count=len(scores))
    order = np.lexsort((items, -values))
    return items[order], values[order]
