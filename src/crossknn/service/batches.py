"""One scorer for many searches: it collects the pairs for which searches wait, fills batches, and
returns the scores to each search."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from crossknn.errors import ScorerError, scorer_failure
from crossknn.scorers.base import Scorer, Wrapper
from crossknn.scorers.streaming import (
    BatchedScorer,
    Call,
    Deadline,
    NothingScoredError,
    as_scores,
    start_thread,
)
from crossknn.search.run import FAILURES_IN_A_ROW
from crossknn.service.metrics import Metrics
from crossknn.types import FloatArray, IntArray, Pairs

logger = logging.getLogger(__name__)

BATCH = 64  # pairs
MIN_SHARE = 8  # pairs: with smaller shares of a batch, calls would wait for more batches
_PATIENCE = 10.0  # seconds: calls without a deadline are ordered as if this were theirs
_POLL = 0.1  # seconds between two checks of deadline and scores by a waiting search


class _PendingCall(Call):
    """The pairs that a search waits for. An answer is positions (b,) and their scores (b,), None if
    they could not be scored, or the error; it is read when `ready` is set."""

    def __init__(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], deadline: Deadline
    ) -> None:
        super().__init__(pairs, queries, items, deadline)
        self.pair_texts = self.texts(np.arange(len(pairs)))  # here, as a database may fail
        self.unassigned = deque(range(len(pairs)))  # positions that are in no batch yet
        self.running = 0  # batches
        self.answers = SimpleQueue[tuple[IntArray, FloatArray | ScorerError | None]]()
        self.ready = threading.Event()
        self.unanswered, self.any_scored = len(pairs), False
        self.failure: ScorerError | None = None
        left = deadline.left()
        self.until = time.monotonic() + (_PATIENCE if left == np.inf else left)

    def take(self) -> list[tuple[IntArray, FloatArray]]:
        """Return the scores that are new since the last call; an error is kept for `check`."""
        scored = []
        while not self.answers.empty():
            positions, outcome = self.answers.get()
            self.unanswered -= len(positions)
            if isinstance(outcome, ScorerError):
                # A batch without any score is an error only if no batch has a score.
                if self.failure is None or isinstance(self.failure, NothingScoredError):
                    self.failure = outcome
            elif outcome is not None:
                self.any_scored = True
                scored.append((positions, outcome))
        return scored

    def check(self) -> None:
        """Raise the error that ends the call, if there is one."""
        nothing = isinstance(self.failure, NothingScoredError)
        if self.failure and not (nothing and (self.any_scored or self.unanswered)):
            raise self.failure


class _Batch:
    """b pairs of several calls that are scored together."""

    def __init__(self, shares: Mapping[_PendingCall, Sequence[int] | IntArray]) -> None:
        self.calls = [*shares]
        self.call_of = np.repeat(np.arange(len(shares)), [*map(len, shares.values())])
        self.position = np.concatenate([np.array(own, np.int64) for own in shares.values()])
        self.unscored = np.ones(len(self.position), np.bool_)

    def score(self, scorer: Scorer, cancel: threading.Event) -> None:
        """Score the batch, and give the calls their scores as they come."""
        both = zip(self.call_of.tolist(), self.position.tolist(), strict=True)
        texts = [self.calls[number].pair_texts[position] for number, position in both]
        queries = {text: q for q, text in enumerate(dict.fromkeys(query for query, _ in texts))}
        query = np.array([queries[text] for text, _ in texts], np.int64)
        pairs, items = Pairs(query, np.arange(len(texts))), [item for _, item in texts]
        left = max(call.deadline.left() for call in self.calls)
        limit = None if left == np.inf else max(left, 0.0)
        for places, scores in scorer.score(
            pairs, [*queries], items, time_left=limit, cancel=cancel
        ):
            self._answer(places, as_scores(scores, len(places), "the scorer"))

    def _answer(self, places: IntArray, scores: FloatArray) -> None:
        self.unscored[places] = False
        for number, call in enumerate(self.calls):
            own = self.call_of[places] == number
            if own.any():
                call.answers.put((self.position[places[own]], scores[own]))
                if not self.unscored[self.call_of == number].any():
                    call.ready.set()

    def missing(self) -> dict[_PendingCall, IntArray]:
        """Return the positions without a score, by call."""
        rows = [self.unscored & (self.call_of == number) for number in range(len(self.calls))]
        both = zip(self.calls, rows, strict=True)
        return {call: self.position[own] for call, own in both if own.any()}


class SharedScorer(Wrapper):
    """A scorer that many threads share, combining their pairs in batches.

    For each worker of the scorer a thread scores batches; idle threads divide the waiting pairs.
    A batch holds an equal share of each waiting call, of `MIN_SHARE` pairs or more; the remaining
    places go to the calls with the earliest deadlines. If a batch is a request to an endpoint, it
    holds pairs of one query, of the call with the fewest running requests. When a batch of several
    calls fails, each call is scored again alone, so that only the call at fault gets the error.
    """

    def __init__(self, scorer: Scorer, metrics: Metrics) -> None:
        self.workers = max(1, getattr(scorer, "workers", 0))
        self.per_request: int | None = getattr(scorer, "per_request", None)
        if isinstance(scorer, BatchedScorer):
            scorer = scorer.one_by_one()
        self.scorer, self.metrics = scorer, metrics
        self.fingerprint = scorer.fingerprint
        self.failure: str | None = None  # the error since the last scored pair
        self._failures_in_a_row = 0
        self._calls: list[_PendingCall] = []
        self._changed, self._closed = threading.Condition(), threading.Event()
        self._idle = 0  # threads that wait for pairs
        for _ in range(self.workers):
            start_thread("crossknn-batches", self._work, stop=self.close)

    @property
    def waiting(self) -> int:
        """Number of pairs that wait for the scorer."""
        return sum(len(call.unassigned) for call in [*self._calls])

    def close(self) -> None:
        """End all calls."""
        with self._changed:
            self._closed.set()
            self._changed.notify_all()

    def score(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], **limits: Any
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """See `Scorer.score`."""
        return self._stream(_PendingCall(pairs, queries, items, Deadline(**limits)))

    def _stream(self, call: _PendingCall) -> Iterator[tuple[IntArray, FloatArray]]:
        over = False
        with self._changed:
            self._calls.append(call)
            self._changed.notify()
        try:
            while call.unanswered and not over:
                call.ready.wait(max(0, min(_POLL, call.deadline.left())))
                call.ready.clear()
                over = call.deadline.over() or self._closed.is_set()
                if scored := call.take():
                    positions, scores = map(np.concatenate, zip(*scored, strict=True))
                    yield positions, scores
                call.check()
        finally:
            call.deadline.end()
            with self._changed:
                self._calls.remove(call)

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._score(batch)
            with self._changed:
                for call in batch.calls:
                    call.running -= 1

    def _next_batch(self) -> _Batch | None:
        """Wait for pairs, and return the next batch; None when closed."""
        with self._changed:
            while True:
                if self._closed.is_set():
                    return None
                waiting = [c for c in self._calls if c.unassigned and not c.deadline.over()]
                if waiting:
                    break
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            waiting.sort(key=lambda call: call.until)
            shares = self._shares(waiting) if self.per_request is None else self._request(waiting)
            for call in shares:
                call.running += 1
            if any(call.unassigned for call in waiting):
                self._changed.notify()
        return _Batch(shares)

    def _request(self, waiting: list[_PendingCall]) -> dict[_PendingCall, list[int]]:
        call = min(waiting, key=lambda call: call.running)
        query, unassigned, most = call.pairs.query, call.unassigned, self.per_request or 1
        taken = [unassigned.popleft()]
        while unassigned and query[unassigned[0]] == query[taken[0]] and len(taken) < most:
            taken.append(unassigned.popleft())
        return {call: taken}

    def _shares(self, waiting: list[_PendingCall]) -> dict[_PendingCall, list[int]]:
        """Divide a batch among calls, with larger shares for the first calls."""
        pairs = sum(len(call.unassigned) for call in waiting)
        places = -(-pairs // (1 + self._idle))
        if not self._idle:  # other threads will soon end their batches
            places = max(2 * MIN_SHARE, -(-pairs // self.workers))
        places = min(BATCH, places)
        share = max(MIN_SHARE, places // len(waiting))
        taken: dict[_PendingCall, list[int]] = {call: [] for call in waiting}
        for most in (share, places):
            for call in waiting:
                count = min(most, places, len(call.unassigned))
                taken[call] += [call.unassigned.popleft() for _ in range(count)]
                places -= count
        return {call: positions for call, positions in taken.items() if positions}

    def _score(self, batch: _Batch) -> None:
        began = time.perf_counter()
        failure: ScorerError | None = None
        try:
            batch.score(self.scorer, self._closed)
        except Exception as error:  # a model or an endpoint may raise anything
            failure = error if isinstance(error, ScorerError) else scorer_failure(error)
        n_scored = int((~batch.unscored).sum())
        self.metrics.batch(n_scored, len(batch.calls), time.perf_counter() - began)
        if n_scored:
            self.failure, self._failures_in_a_row = None, 0
        missing = batch.missing()
        if failure is not None:
            self._failures_in_a_row += 1
            if len(missing) > 1 and self._failures_in_a_row < FAILURES_IN_A_ROW:
                for call, positions in missing.items():
                    self._score(_Batch({call: positions}))
                return
            if self.failure is None:
                logger.warning("the scorer fails: %s", failure)
            self.failure = str(failure)
        for call, positions in missing.items():
            call.answers.put((positions, failure and _for_one(failure, call, positions)))
            call.ready.set()


def _for_one(failure: ScorerError, call: _PendingCall, positions: IntArray) -> ScorerError:
    kind = NothingScoredError if isinstance(failure, NothingScoredError) else ScorerError
    error, queries = kind(str(failure)), np.unique(call.pairs.query[positions])
    error.query = int(queries[0]) if len(queries) == 1 else None
    return error
