"""One scorer for many searches: it takes the pairs that all of them wait for, fills batches, and
tells each search its scores."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from crossknn.errors import ScorerError, first_line
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import (
    BatchedScorer,
    Call,
    Deadline,
    NothingScoredError,
    start_thread,
)
from crossknn.searcher.searcher import FAILURES_IN_A_ROW
from crossknn.service.metrics import Metrics
from crossknn.types import FloatArray, IntArray, Pairs

logger = logging.getLogger(__name__)

LEAST = 8  # pairs: smaller shares of a batch would only cost more rounds of answers
_TOLD = 0.05  # seconds after which a call is told a part of its scores of a batch
_PATIENCE = 10.0  # seconds: the order of calls without a deadline is that of calls with this one
_POLL = 0.1  # seconds between two looks of a waiting search at whether it was cancelled


class _Waiting(Call):
    """Pairs that a search waits for: positions not yet in a batch, batches that are `running`, and
    answers to be read once the `bell` rings.

    An answer is positions (b,) and what became of them: scores (b,), None where they could not be
    scored, or why not.
    """

    def __init__(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], deadline: Deadline
    ) -> None:
        super().__init__(pairs, queries, items, deadline)
        self.asked = self.texts(np.arange(len(pairs)))  # read here: it may fail in a database
        self.left, self.running = deque(range(len(pairs))), 0
        self.answers = SimpleQueue[tuple[IntArray, FloatArray | ScorerError | None]]()
        self.bell = threading.Event()
        left = deadline.left()
        self.until = time.monotonic() + (_PATIENCE if left == np.inf else left)


class SharedScorer:
    """A scorer that many threads share, and its batches too.

    As many threads as the scorer has workers score a batch each; those that are idle divide the
    waiting pairs. A batch holds an equal share of each waiting call, of `LEAST` pairs or more; what
    they leave, or all where that is too much, goes to the calls with the earliest deadlines. Where
    a batch is a request it holds pairs of one query, of the call that has the fewest requests
    running. A call that fails with others in its batch is tried again alone, so that only the one
    at fault hears of it.

    Args:
        batch: Pairs of a batch.
    """

    def __init__(self, scorer: Scorer, metrics: Metrics, *, batch: int = 64) -> None:
        self.workers = max(1, getattr(scorer, "workers", 0))
        self.per_request: int | None = getattr(scorer, "per_request", None)
        if isinstance(scorer, BatchedScorer):
            scorer = scorer.one_by_one()
        self.scorer, self.metrics, self.batch = scorer, metrics, batch
        self.fingerprint = scorer.fingerprint
        self.failure: str | None = None  # why nothing was scored lately, if so
        self._in_a_row = 0  # failures since a pair was scored
        self._calls: list[_Waiting] = []
        self._changed, self._closed = threading.Condition(), threading.Event()
        metrics.queue.set_function(lambda: sum(len(call.left) for call in list(self._calls)))
        self._idle = 0  # threads that wait for pairs
        for _ in range(self.workers):
            start_thread("crossknn-batches", self._work, stop=self.close)

    @property
    def truncated(self) -> int:
        """Pairs that the scorer cut so far."""
        return int(getattr(self.scorer, "truncated", 0))

    def close(self) -> None:
        """End all calls."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yields (positions (b,), scores (b,)) as they come; see `Scorer.score`."""
        call = _Waiting(pairs, queries, items, Deadline(time_left, cancel))
        return self._stream(call)

    def _stream(self, call: _Waiting) -> Iterator[tuple[IntArray, FloatArray]]:
        open, over, scored = len(call.pairs), False, False
        failure: ScorerError | None = None
        nothing: NothingScoredError | None = None
        with self._changed:
            self._calls.append(call)
            self._changed.notify()
        try:
            while open and not over:
                call.bell.wait(max(0, min(_POLL, call.deadline.left())))
                call.bell.clear()
                over, found = call.deadline.over() or self._closed.is_set(), []
                while not call.answers.empty():
                    positions, outcome = call.answers.get()
                    open -= len(positions)
                    if isinstance(outcome, NothingScoredError):
                        nothing = outcome
                    elif isinstance(outcome, ScorerError):
                        failure = failure or outcome
                    elif outcome is not None:
                        found.append((positions, outcome))
                if found:
                    scored = True
                    all_positions, scores = map(np.concatenate, zip(*found, strict=True))
                    yield all_positions, scores
                if failure is not None:
                    raise failure
            if nothing is not None and not scored and not open:
                raise nothing
        finally:
            call.deadline.end()
            with self._changed:
                self._calls.remove(call)

    def _work(self) -> None:
        while (parts := self._take()) is not None:
            self._score(parts)
            with self._changed:
                for call, _ in parts:
                    call.running -= 1

    def _take(self) -> list[tuple[_Waiting, IntArray]] | None:
        """The next batch: calls and positions of theirs; None when closed."""
        with self._changed:
            while True:
                if self._closed.is_set():
                    return None
                waiting = [c for c in self._calls if c.left and not c.deadline.over()]
                if waiting:
                    break
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            waiting.sort(key=lambda call: call.until)
            most = self.per_request
            taken = self._shares(waiting) if most is None else self._request(waiting, most)
            for call in taken:
                call.running += 1
            if any(call.left for call in waiting):
                self._changed.notify()
        return [(call, np.array(found, np.int64)) for call, found in taken.items()]

    def _request(self, waiting: list[_Waiting], most: int) -> dict[_Waiting, list[int]]:
        """At most so many pairs of one query."""
        call = min(waiting, key=lambda call: call.running)
        room, query = min(self.batch, most), call.pairs.query
        taken = [call.left.popleft()]
        while call.left and query[call.left[0]] == query[taken[0]] and len(taken) < room:
            taken.append(call.left.popleft())
        return {call: taken}

    def _shares(self, waiting: list[_Waiting]) -> dict[_Waiting, list[int]]:
        """A part of each call's pairs, of the first ones more."""
        pairs = sum(len(call.left) for call in waiting)
        room = -(-pairs // (1 + self._idle))
        if not self._idle:  # others will end soon
            room = max(2 * LEAST, -(-pairs // self.workers))
        room = min(self.batch, room)
        share = max(LEAST, room // len(waiting))
        taken: dict[_Waiting, list[int]] = {call: [] for call in waiting}
        for most in (share, room):
            for call in waiting:
                count = min(most, room, len(call.left))
                taken[call] += [call.left.popleft() for _ in range(count)]
                room -= count
        return {call: found for call, found in taken.items() if found}

    def _score(self, parts: list[tuple[_Waiting, IntArray]]) -> None:
        """Tell the calls the scores of a batch, or why there are none."""
        owner = np.repeat(np.arange(len(parts)), [len(positions) for _, positions in parts])
        place = np.concatenate([positions for _, positions in parts])
        open, began = np.ones(len(place), np.bool_), time.perf_counter()
        failure, last = None, began
        try:
            for places, values in self._run(parts):
                where, scores = _checked(places, values)
                open[where] = False
                self.failure, self._in_a_row = None, 0
                soon = (now := time.perf_counter()) < last + _TOLD
                last = last if soon else now
                for number, (call, _) in enumerate(parts):
                    own = owner[where] == number
                    if own.any():
                        call.answers.put((place[where[own]], scores[own]))
                    if not soon or (own.any() and not open[owner == number].any()):
                        call.bell.set()
        except Exception as error:  # whatever a model or an endpoint raises
            failure = error
            logger.debug("a batch of %d pairs failed", len(place), exc_info=error)
        self.metrics.batch(int((~open).sum()), len(parts), time.perf_counter() - began)
        rest = [(call, place[open & (owner == p)]) for p, (call, _) in enumerate(parts)]
        rest = [(call, positions) for call, positions in rest if len(positions)]
        if failure is not None:
            self._in_a_row = 1 if not open.all() else self._in_a_row + 1
            if len(rest) > 1 and self._in_a_row < FAILURES_IN_A_ROW:
                for part in rest:
                    self._score([part])
                return
            if self.failure is None:
                logger.warning("the scorer fails: %s", _said(failure))
            self.failure = _said(failure)
        for call, positions in rest:
            call.answers.put((positions, _told(failure, call.pairs.query[positions])))
            call.bell.set()

    def _run(self, parts: list[tuple[_Waiting, IntArray]]) -> Iterator[tuple[IntArray, FloatArray]]:
        texts = [call.asked[position] for call, found in parts for position in found.tolist()]
        queries = {text: q for q, text in enumerate(dict.fromkeys(query for query, _ in texts))}
        asked = np.array([queries[query] for query, _ in texts], np.int64)
        pairs, items = Pairs(asked, np.arange(len(texts))), [item for _, item in texts]
        left = max(call.deadline.left() for call, _ in parts)
        limit = None if left == np.inf else max(left, 0.0)
        return self.scorer.score(pairs, [*queries], items, time_left=limit, cancel=self._closed)


def _checked(positions: Any, scores: Any) -> tuple[IntArray, FloatArray]:
    """What a scorer of any kind has given; `ScorerError` unless each position has a score."""
    where, values = np.asarray(positions, np.int64), np.asarray(scores, np.float32)
    if values.shape != where.shape:
        raise ScorerError(f"the scorer gave {values.size} scores of {where.size} pairs")
    if not np.isfinite(values).all():
        raise ScorerError(f"the scorer gave a score of {values[~np.isfinite(values)][0]}")
    return where, values


def _said(error: Exception) -> str:
    if isinstance(error, ScorerError):
        return str(error)
    return f"the scorer failed: {type(error).__name__}: {first_line(error)}"


def _told(failure: Exception | None, queries: IntArray) -> ScorerError | None:
    """What a call hears of pairs of these queries that were not scored."""
    if failure is None:
        return None
    kind = NothingScoredError if isinstance(failure, NothingScoredError) else ScorerError
    told, different = kind(_said(failure)), np.unique(queries)
    told.query = int(different[0]) if len(different) == 1 else None
    return told
