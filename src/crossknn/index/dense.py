"""Exact scores of some texts against every item: anchor queries, or items put in their place.

This is the expensive part of an index (rows times n calls), so it can be stopped anywhere, even
killed, and goes on where it was: see `ScoreTable`. Items of equal texts are paid once.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from crossknn.index.table import ScoreTable
from crossknn.scorers._store import text_hash
from crossknn.scorers.base import Scorer
from crossknn.scorers.paying import Budget, Scored, score_block
from crossknn.scorers.streaming import NothingScoredError
from crossknn.scorers.threads import on_threads
from crossknn.types import FloatArray, IntArray, Pairs, Progress

_BLOCK = 512
_SECONDS_BETWEEN_SYNCS = 1.0


@dataclass(frozen=True, kw_only=True)
class DenseReport:
    """What a run of dense scoring did: `calls` pairs were asked, and not found in a cache.

    `failed` pairs got no score, `reused` pairs had one before. `stopped_by` is "max_calls",
    "deadline" or None.
    """

    rows: int
    rows_done: int
    calls: int
    reused: int
    failed: int
    seconds: float
    stopped_by: str | None

    @property
    def complete(self) -> bool:
        """Whether every row has all its scores."""
        return self.rows_done == self.rows


def score_rows(
    table: ScoreTable,
    scorer: Scorer,
    items: Sequence[str],
    *,
    stored: int = 0,
    max_calls: int | None = None,
    deadline: float | None = None,
    workers: int = 1,
    spend: Callable[[int, float], object] | None = None,
    progress: Progress | None = None,
) -> DenseReport:
    """Fill the wanted rows of the table, at most `max_calls` pairs; none is paid again.

    After `deadline` seconds no block of pairs is begun. `workers` threads share the scorer, which
    must bear it; the scores are the same bit for bit, however many they are. Pairs the scorer
    leaves out stay unpaid, and their row incomplete, for the next run. The table keeps everything
    that was scored whatever error the scorer raises. `stored` more rows are wanted and have all
    their scores elsewhere. `spend` is told, also after an error, how many pairs the scorer has
    computed, and in how many seconds.

    Raises NothingScoredError if nothing can be scored, ScorerError for a score that is no number.
    """
    began = time.monotonic()
    filling = _Filling(table, scorer, items, stored, progress)
    reused, total = filling.done, filling.total
    until = None if deadline is None else began + deadline
    budget = Budget(filling.unpaid(), total - reused, max_calls, until)
    try:
        for block, found in on_threads(filling.score, workers)(budget):
            budget.book(block, found, whole=len(block) == filling.whole)
    finally:
        filling.end()
        if spend and budget.paid:
            spend(budget.paid, time.monotonic() - began)
    if budget.failure and not reused + budget.scored:
        raise NothingScoredError(budget.failure)
    return DenseReport(
        rows=table.wanted + stored,
        rows_done=int(np.count_nonzero(table.done() < table.wanted)) + stored,
        calls=budget.calls,
        reused=reused,
        failed=budget.failed,
        seconds=time.monotonic() - began,
        stopped_by=budget.stopped_by,
    )


class _Filling:
    """Puts the scores of blocks into a table as they come, from any number of threads."""

    def __init__(
        self,
        table: ScoreTable,
        scorer: Scorer,
        items: Sequence[str],
        stored: int,
        progress: Progress | None,
    ) -> None:
        self._table, self._scorer, self._items = table, scorer, items
        self._first = _first_of_equal(items)
        self._different = np.flatnonzero(self._first == np.arange(len(items)))
        self._lock, self._synced = threading.Lock(), time.monotonic()
        self.whole = min(_BLOCK, len(self._different))
        self.total = len(self._different) * (table.wanted + stored)
        self._copy()
        self.done = self.total - sum(len(unpaid) for _, unpaid in self._rows())
        self._progress = progress
        self._tell(0)

    def unpaid(self) -> Iterator[Pairs]:
        """The unpaid pairs (b,) of a row after the other, in blocks."""
        for row, unpaid in self._rows():
            for start in range(0, len(unpaid), _BLOCK):
                chosen = unpaid[start : start + _BLOCK]
                yield Pairs(np.full(len(chosen), row), chosen)

    def score(self, block: Pairs) -> Scored:
        """Score a block."""
        table = self._table

        def keep(where: IntArray, scores: FloatArray) -> None:
            table.scores[block.query[where], block.item[where]] = scores
            self._tell(len(where))

        return score_block(self._scorer, block, table.texts, self._items, keep)

    def end(self) -> None:
        """Bring everything to the disk."""
        self._copy()
        self._table.sync()

    def _rows(self) -> Iterator[tuple[int, IntArray]]:
        """Every wanted row, and which of its different items are unpaid."""
        for row, scores in enumerate(self._table.scores[: self._table.wanted]):
            yield row, self._different[np.isnan(scores[self._different])]

    def _copy(self) -> None:
        """Give items the scores of those with the same text."""
        equal = np.flatnonzero(self._first != np.arange(len(self._first)))
        for row in self._table.scores if len(equal) else ():
            unpaid = equal[np.isnan(row[equal])]
            row[unpaid] = row[self._first[unpaid]]

    def _tell(self, scored: int) -> None:
        with self._lock:
            self.done += scored
            if self._progress:
                self._progress(self.done, self.total)
            if time.monotonic() - self._synced > _SECONDS_BETWEEN_SYNCS:
                self._table.sync()
                self._synced = time.monotonic()


def _first_of_equal(texts: Sequence[str]) -> IntArray:
    """For each text (n,) the first position of one like it."""
    first: dict[bytes, int] = {}
    found = [first.setdefault(text_hash(text), position) for position, text in enumerate(texts)]
    return np.array(found, dtype=np.int64)
