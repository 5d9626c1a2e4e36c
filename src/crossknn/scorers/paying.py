"""Pay a scorer for blocks of pairs, within a budget of calls or of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from crossknn.errors import ScorerError
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import NothingScoredError, describe_pair
from crossknn.types import FloatArray, IntArray, Pairs

GIVE_UP_AFTER = 8
"""So many blocks in a row of which no pair can be scored stand for a broken model."""


class Scored(NamedTuple):
    """Scores (b,) of a block, NaN where a pair could not be scored; why, if none could.

    `hits` of them were found in a cache, and cost nothing.
    """

    scores: FloatArray
    why: str | None
    hits: int


class _Block(Protocol):
    def __len__(self) -> int: ...

    def take(self, positions: slice) -> Self: ...


B = TypeVar("B", bound=_Block)


def score_block(
    scorer: Scorer,
    pairs: Pairs,
    queries: Sequence[str],
    items: Sequence[str],
    keep: Callable[[IntArray, FloatArray], object] | None = None,
) -> Scored:
    """Score the pairs (b,) of a block; `keep` has (positions, scores) of each batch as it comes.

    Raises ScorerError for a score that is not finite.
    """
    found, why = np.full(len(pairs), np.nan, dtype=np.float32), None
    stream = scorer.score(pairs, queries, items)
    try:
        for where, scores in stream:
            if len(bad := np.flatnonzero(~np.isfinite(scores))):
                what = describe_pair(pairs, queries, items, int(where[bad[0]]))
                raise ScorerError(f"the cross-encoder gave {scores[bad[0]]} as the score of {what}")
            found[where] = scores
            if keep:
                keep(where, scores)
    except NothingScoredError as error:
        why = str(error)
    count = int(np.count_nonzero(~np.isnan(found)))
    return Scored(found, why, count - int(getattr(stream, "computed", count)))


class Budget(Iterator[B], Generic[B]):
    """Hands out blocks, of `missing` pairs in all, as long as calls and time last.

    `until` is on the monotonic clock. What a cache has answered is no call: after `book` there may
    be more to hand out, although there was none before.

    `scored` pairs have a score now, `failed` ones have none, of which `failure` says why.
    """

    def __init__(
        self, blocks: Iterator[B], missing: int, max_calls: int | None, until: float | None
    ) -> None:
        self._blocks, self._missing = blocks, missing
        self._limit, self._until = missing if max_calls is None else max_calls, until
        self._rest: B | None = None
        self._asked = self._hits = self._hopeless = 0
        self.scored = self.failed = 0
        self.failure: str | None = None
        self.stopped_by: str | None = None

    @property
    def calls(self) -> int:
        """Pairs that were asked and not found in a cache."""
        return self._asked - self._hits

    @property
    def paid(self) -> int:
        """Pairs that the scorer has computed the score of."""
        return self.scored - self._hits

    def __next__(self) -> B:
        self.stopped_by = None
        if self._asked >= self._missing:
            raise StopIteration
        if (left := self._limit - self.calls) <= 0:
            self.stopped_by = "max_calls"
            raise StopIteration
        if self._until is not None and time.monotonic() >= self._until:
            self.stopped_by = "deadline"
            raise StopIteration
        block = self._rest or next(self._blocks)
        block, self._rest = block.take(slice(left)), block.take(slice(left, None))
        self._asked += len(block)
        return block

    def book(self, block: B, found: Scored, *, whole: bool) -> None:
        """Count what a block gave; it is `whole` if it is no rest of one that was scored.

        Raises NothingScoredError if nothing can be scored any more.
        """
        count = int(np.count_nonzero(~np.isnan(found.scores)))
        self.scored, self.failed = self.scored + count, self.failed + len(block) - count
        self._hits += found.hits
        self.failure = found.why or self.failure
        self._hopeless = 0 if count else self._hopeless + bool(found.why and whole)
        if self._hopeless == GIVE_UP_AFTER:
            raise NothingScoredError(f"no pair of {GIVE_UP_AFTER} blocks in a row: {self.failure}")
