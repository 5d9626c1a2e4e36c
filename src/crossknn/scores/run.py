"""One collection of exact scores: its limits, its blocks of pairs, and what it has got so far.

Axes: q queries, n items, p pairs, b pairs of a block.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import Deadline, NothingScoredError, describe_pair
from crossknn.scores.store import ScoreStore
from crossknn.types import FloatArray, IntArray, Pairs, Progress

logger = logging.getLogger(__name__)
_AT_ONCE = 65_536
_HOPELESS = 8  # so many blocks in a row of which no pair can be scored stand for a broken model

Job = TypeVar("Job")
Keep: TypeAlias = Callable[[IntArray, FloatArray], object]
"""Called with (positions in a block (b,), scores (b,)) of each batch."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Resource limits of a collection: workers, maximum calls, deadline in seconds.

    `workers` threads share the scorer; with `ray`, the address of a cluster or "local", as many
    processes each open it.
    """

    workers: int = 1
    ray: str | None = None
    max_calls: int | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"workers is {self.workers}; it must be 1 or more")
        if self.max_calls is not None and self.max_calls < 0:
            raise InputError(f"max_calls is {self.max_calls}; it cannot be negative")


class Scored(NamedTuple):
    """Of a block: pairs that got a score, those of them computed, and why none could be scored."""

    got: int
    computed: int
    why: str | None


def score_block(
    scorer: Scorer,
    pairs: Pairs,
    queries: Sequence[str],
    items: Sequence[str],
    keep: Keep,
    deadline: Deadline,
) -> Scored:
    """Score the pairs (b,) of a block and `keep` each batch as it comes.

    Raises ScorerError for a score that is not finite.
    """
    stream, count = scorer.score(pairs, queries, items, **deadline.rest()), 0
    try:
        for where, scores in stream:
            if len(bad := np.flatnonzero(~np.isfinite(scores))):
                what = describe_pair(pairs, queries, items, int(where[bad[0]]))
                raise ScorerError(f"the cross-encoder gave {scores[bad[0]]} as the score of {what}")
            keep(where, scores)
            count += len(where)
    except NothingScoredError as error:
        return Scored(0, 0, str(error))
    return Scored(count, int(getattr(stream, "computed", count)), None)


def run_jobs(
    run: Run,
    size: int,
    room: int,
    submit: Callable[[Pairs], Job],
    ended: Callable[[list[Job]], Iterable[Job]],
    finish: Callable[[Job, Pairs], object],
) -> None:
    """Keep `room` jobs under way, each of a block of `size` pairs, until pairs or time run out.

    After an error or an interrupt none is begun, and what is under way is waited for.
    """
    running, blocks = dict[Job, Pairs](), run.blocks(size)
    try:
        while True:
            for block in islice(blocks, 0 if run.deadline.over() else room - len(running)):
                running[submit(block)] = block
            if not running:
                return
            for job in ended(list(running)):
                finish(job, running.pop(job))
    except BaseException:
        run.stop.set()
        while running:
            for job in ended(list(running)):
                with suppress(Exception):
                    finish(job, running.pop(job))
        raise


class Run:
    """What one collection asks, and what it has got so far."""

    def __init__(
        self,
        store: ScoreStore,
        fingerprint: str,
        queries: Sequence[str],
        items: Sequence[str],
        pairs: Pairs | None,
        limits: Limits,
        progress: Progress | None,
    ) -> None:
        self.store, self.fingerprint, self.limits = store, fingerprint, limits
        self.stop = threading.Event()
        self.deadline = Deadline(limits.deadline, self.stop)
        self.queries, self.items = queries, items
        self._pairs, self._left, self._progress = pairs, limits.max_calls, progress
        self._lock = threading.Lock()
        self._hopeless = self.scored = self.computed = self.failed = 0
        self.failure: str | None = None
        self.stopped_by: str | None = None
        self.total = self.reused = 0

    def begin(self) -> None:
        """Count what there is; others may have added to it until now."""
        self._query = self.store.ids(self.queries, add=True, keep=True)
        self._item = self.store.ids(self.items, add=True)
        counts = [(len(part), len(missing)) for part, missing in self._missing()]
        self.total = sum(count for count, _ in counts)
        self.reused = self.total - sum(count for _, count in counts)
        self._count(0)

    def blocks(self, size: int) -> Iterator[Pairs]:
        """Pairs (b,) without a score, in order, as long as calls are left."""
        for _, missing in self._missing():
            start = 0
            while start < len(missing):
                block = missing.take(slice(start, start + size))
                if self._left is not None:
                    block = block.take(slice(self._left))
                    self._left -= len(block)
                if not len(block):
                    self.stopped_by = "max_calls"
                    return
                yield block
                start += len(block)

    def keep(self, block: Pairs, where: IntArray, scores: FloatArray) -> None:
        """Keep a batch of a block."""
        query, item = self._query[block.query[where]], self._item[block.item[where]]
        self.store.insert(self.fingerprint, query, item, scores)
        self._count(len(where))

    def book(self, block: Pairs, found: Scored, *, stopped: bool) -> None:
        """Count what a block gave; if it was `stopped`, the rest of it was not asked.

        Raises NothingScoredError if nothing can be scored any more.
        """
        self.computed += found.computed
        self.failed += 0 if stopped else len(block) - found.got
        self.failure = found.why or self.failure
        self._hopeless = 0 if found.got else self._hopeless + (found.why is not None)
        if self._hopeless == _HOPELESS:
            raise NothingScoredError(f"no pair of {_HOPELESS} blocks in a row: {self.failure}")

    def _missing(self) -> Iterator[tuple[Pairs, Pairs]]:
        """Different pairs of texts, part by part, and those of them without a score."""
        for part in self._different():
            query, item = self._query[part.query], self._item[part.item]
            known = self.store.lookup(self.fingerprint, query, item)
            yield part, part.take(np.flatnonzero(np.isnan(known)))

    def _different(self) -> Iterator[Pairs]:
        """Each pair of texts once, in order."""
        if self._pairs is None:
            items = _first(self._item)
            for query in _first(self._query).tolist():
                yield Pairs(np.full(len(items), query), items)
            return
        key = (self._query[self._pairs.query] << 32) + self._item[self._pairs.item]
        chosen = _first(key)
        for start in range(0, len(chosen), _AT_ONCE):
            yield self._pairs.take(chosen[start : start + _AT_ONCE])

    def _count(self, scored: int) -> None:
        with self._lock:
            self.scored += scored
            if self._progress:
                self._progress(self.reused + self.scored, self.total)


def _first(values: IntArray) -> IntArray:
    """Positions of the first of each of the values, ascending."""
    return np.sort(np.unique(values, return_index=True)[1])
