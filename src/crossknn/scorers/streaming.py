"""What every scorer does: batches, deadlines, threads, and pairs that fail.

A failing batch is halved until the pair at fault stands alone; that pair is left out and logged.
Nothing a single item does can fail the others, and nothing that is not a score passes.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import ScorerError
from crossknn.types import FloatArray, IntArray, Pairs

logger = logging.getLogger(__name__)

GIVE_UP_AFTER = 32
"""So many pairs failing one by one, with no pair ever scored, stand for a broken model."""

_LOGGED_EACH = 10
_POLL = 0.02
"""Seconds between two looks at a deadline by a thread that waits."""

_FIRST_PAIRS = 4
"""Pairs of the first batch under a deadline, while nothing is known of the scorer's speed."""

_MARGIN = 1.5
"""A batch is expected to take so many times as long as the speed measured so far says."""


class NothingScoredError(ScorerError):
    """No pair of a call could be scored."""


class PlainError(Exception):
    """A batch that failed for a reason whose message says all."""


class BatchTooLargeError(PlainError):
    """Raised by a batch that would do if it were smaller: the next ones are cut, too.

    To `limit` pairs, if it is known what would do; else they are halved.
    """

    def __init__(self, message: str, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit


class Deadline:
    """The end of one call: after `time_left` seconds, once `cancel` is set, or once it is ended."""

    def __init__(
        self, time_left: float | None = None, cancel: threading.Event | None = None
    ) -> None:
        self._at = math.inf if time_left is None else time.monotonic() + time_left
        self._cancel = cancel
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self._interrupts: dict[object, tuple[float, Callable[[], object]]] = {}

    @property
    def limited(self) -> bool:
        """Whether it ends by itself."""
        return self._at < math.inf

    def left(self) -> float:
        """Seconds left: infinity without a limit, 0 or less when it is over."""
        if self._ended.is_set() or (self._cancel is not None and self._cancel.is_set()):
            return 0.0
        return self._at - time.monotonic()

    def over(self) -> bool:
        """Whether the call has to end now."""
        return self.left() <= 0

    def rest(self) -> dict[str, Any]:
        """What is left of it, as keywords for `Scorer.score`."""
        left = max(self.left(), 0.0) if self.limited else None
        return {"time_left": left, "cancel": self._cancel}

    def pause(self) -> float:
        """Seconds for which a thread may block before it looks again."""
        return max(0.0, min(_POLL, self.left()))

    def sleep(self, seconds: float) -> bool:
        """Wait so long; False as soon as the call has to end."""
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0 and not self.over():
            self._ended.wait(min(rest, self.pause()))
        return not self.over()

    @contextmanager
    def interrupting(self, call: Callable[[], object], seconds: float) -> Iterator[None]:
        """Has `call` called after so many seconds, or when the deadline ends, while inside.

        Whoever waits for the call's threads looks (`check`).
        """
        key = object()
        with self._lock:
            self._interrupts[key] = (time.monotonic() + seconds, call)
        if self.over():
            self.check()
        try:
            yield
        finally:
            with self._lock:
                self._interrupts.pop(key, None)

    def check(self) -> None:
        """Interrupt whatever has taken longer than it may."""
        now = math.inf if self.over() else time.monotonic()
        with self._lock:
            due = [key for key, (until, _) in self._interrupts.items() if until <= now]
            calls = [self._interrupts.pop(key)[1] for key in due]
        for call in calls:
            call()

    def end(self) -> None:
        """End the call, and interrupt all that works for it."""
        self._ended.set()
        self.check()


class Call:
    """One call of `score`: the pairs, their texts, and what is known of them meanwhile.

    `costs` (p,) says what each pair costs, in any unit; `prepared` is whatever the scorer has made
    of the pairs beforehand; `n_cut` counts those that were too long.
    """

    def __init__(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], deadline: Deadline
    ) -> None:
        self.pairs, self.queries, self.items, self.deadline = pairs, queries, items, deadline
        self.costs: FloatArray = np.ones(len(pairs), dtype=np.float32)
        self.prepared: Any = None
        self.n_cut = 0

    def texts(self, positions: IntArray) -> list[tuple[str, str]]:
        """(query text, item text) of each pair."""
        chosen = self.pairs.take(positions)
        both = zip(chosen.query.tolist(), chosen.item.tolist(), strict=True)
        return [(self.queries[query], self.items[item]) for query, item in both]

    def slices(self, size: int) -> Iterator[IntArray]:
        """All positions in order, `size` at a time."""
        for start in range(0, len(self.pairs), size):
            yield np.arange(start, min(start + size, len(self.pairs)), dtype=np.int64)

    def by_cost(self, size: int, window: int = 1024) -> Iterator[IntArray]:
        """Positions in batches of at most `size`, of similar cost within each window of pairs.

        Sorting by length saves padding; windows keep the order of the pairs roughly, so that a
        caller who stops early has the pairs asked for first.
        """
        for positions in self.slices(window):
            order = positions[np.argsort(self.costs[positions], kind="stable")]
            yield from (order[first : first + size] for first in range(0, len(order), size))


class BatchedScorer(ABC):
    """A scorer that says how pairs are batched and how a batch is scored; the rest is done here.

    `name` is what messages call it, `who` with its kind before; `workers` batches run at once on
    threads of their own (0: one at a time, on the caller's), which are left behind at the deadline:
    `_run` must end soon after it.
    """

    name: str
    who: str
    max_length: int | None = None
    workers = 0
    truncated = 0
    """How many inputs were longer than the model reads, so far."""

    def __init__(self, name: str, who: str = "the model {}") -> None:
        self.name, self.who = name, who.format(name)
        self._speed: Speed | None = Speed()
        self._lock = threading.Lock()

    @abstractmethod
    def _batches(self, call: Call) -> Iterable[IntArray]:
        """Positions in the call's pairs (b,), batch by batch."""

    @abstractmethod
    def _run(self, call: Call, positions: IntArray) -> object:
        """Positions (b,) -> something with b scores. What it raises fails this batch alone."""

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yields (positions in `pairs` (b,), raw logits (b,) float32); see `Scorer.score`.

        Pairs that had to be cut are counted in `truncated` and logged (info).
        """
        call = Call(pairs, queries, items, Deadline(time_left, cancel))
        return self._stream(call, self._batches(call))

    def _stream(
        self, call: Call, batches: Iterable[IntArray]
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        failures = _Failures(call, self.who)
        source = _Source(call, batches, self._speed)

        def attempt(positions: IntArray) -> _Answer:
            return positions, self._attempt(call, positions)

        broken: ScorerError | None = None
        try:
            for positions, answer in _answers(source, attempt, call.deadline, self.workers):
                if isinstance(answer, ScorerError):
                    broken = broken or answer
                    source.stopped = True
                elif not isinstance(answer, Exception):
                    failures.any_scored = True
                    yield positions, answer
                elif len(positions) == 1:
                    failures.add(int(positions[0]), answer)
                else:
                    source.split(positions, answer)
            if broken is not None:
                raise broken
            if not call.deadline.over():
                failures.finish()
        finally:
            call.deadline.end()
            if call.n_cut:
                with self._lock:
                    self.truncated += call.n_cut
                said = "%s cut %d of %d pairs to %d tokens"
                logger.info(said, self.name, call.n_cut, len(call.pairs), self.max_length)

    def _attempt(self, call: Call, positions: IntArray) -> FloatArray | Exception:
        """Scores of a batch (b,), or why there are none."""
        began = time.perf_counter()
        try:
            scores = as_scores(self._run(call, positions), len(positions), self.who)
            bad = np.flatnonzero(~np.isfinite(scores))
            if len(bad):
                positions, score = positions[bad[:1]], scores[bad[0]]
                what = describe_pair(call.pairs, call.queries, call.items, int(positions[0]))
                raise ScorerError(f"{self.who} gave {score} as the score of {what}")
        except Exception as error:
            if isinstance(error, ScorerError) and error.query is None:
                queries = np.unique(call.pairs.query[positions])
                error.query = int(queries[0]) if len(queries) == 1 else None
            return error
        cost = float(call.costs[positions].sum())
        if self._speed is not None and cost:  # texts may be empty
            self._speed.record(cost, time.perf_counter() - began)
        return scores


_Answer: TypeAlias = tuple[IntArray, FloatArray | Exception]


class Speed:
    """Seconds that a scorer needs for a unit of work, as measured so far."""

    def __init__(self) -> None:
        self._seconds: float | None = None

    def record(self, cost: float, seconds: float) -> None:
        """So much work took so long."""
        new = seconds / cost
        self._seconds = new if self._seconds is None else 0.7 * self._seconds + 0.3 * new

    def fit(self, costs: FloatArray, left: float) -> int:
        """How many of the first pairs, which cost `costs` (b,), fit into `left` seconds; at least
        one: a slow scorer is given a single pair rather than none."""
        if self._seconds is None:
            return _FIRST_PAIRS
        return max(1, int((np.cumsum(costs) * self._seconds * _MARGIN <= left).sum()))


class _Source:
    """Batches, cut to what may run at once (`limit`) and to what fits into the time left."""

    def __init__(self, call: Call, batches: Iterable[IntArray], speed: Speed | None) -> None:
        self._call, self._batches, self._speed = call, iter(batches), speed
        self._waiting: list[IntArray] = []
        self._limit: int | None = None
        self.stopped = False

    def take(self) -> IntArray | None:
        """The next batch; None if there is none, or no time is left."""
        deadline = self._call.deadline
        while not self.stopped and not deadline.over():
            batch = self._waiting.pop() if self._waiting else next(self._batches, None)
            if batch is None:
                return None
            most = self._limit or len(batch)
            if self._speed is not None and deadline.limited:
                most = min(most, self._speed.fit(self._call.costs[batch], deadline.left()))
            if most < len(batch):
                self._waiting.append(batch[most:])
            if len(batch):
                return batch[:most]
        return None

    def split(self, batch: IntArray, error: Exception) -> None:
        """Take the halves of a batch that failed next; less at once if it was too large."""
        half = len(batch) // 2
        logger.debug("a batch of %d pairs failed, halving: %s", len(batch), error)
        if _too_large(error):
            half = self._limit = min(half, getattr(error, "limit", None) or half)
        self._waiting += [batch[half:], batch[:half]]


def _answers(
    source: _Source, attempt: Callable[[IntArray], _Answer], deadline: Deadline, workers: int
) -> Iterator[_Answer]:
    """Answers to batches as they come: one at a time, or `workers` each on a daemon thread.

    At the deadline threads are left behind.
    """
    answers: SimpleQueue[_Answer] = SimpleQueue()
    running = 0
    while not workers and (batch := source.take()) is not None:
        yield attempt(batch)
    while True:
        while running < workers and (batch := source.take()) is not None:
            work = lambda batch=batch: answers.put(attempt(batch))  # noqa: E731
            threading.Thread(target=work, name="crossknn-scorer", daemon=True).start()
            running += 1
        if not running:
            return
        try:
            answer = answers.get(timeout=deadline.pause())
        except Empty:
            if deadline.over():
                return
            deadline.check()
            continue
        running -= 1
        yield answer


class _Failures:
    """The pairs of one call that could not be scored."""

    def __init__(self, call: Call, who: str) -> None:
        self._call, self._who = call, who
        self._count, self._last = 0, ""
        self.any_scored = False

    def add(self, position: int, error: Exception) -> None:
        self._count += 1
        kind = type(error).__name__
        self._last = f"{kind}: {error}" if str(error) else kind
        if isinstance(error, PlainError):
            self._last = str(error)
        if self._count <= _LOGGED_EACH:
            call = self._call
            what = describe_pair(call.pairs, call.queries, call.items, position)
            logger.warning("%s could not score %s: %s", self._who, what, self._last)
        if not self.any_scored and self._count >= GIVE_UP_AFTER:
            self._raise(f"could score none of the first {self._count} pairs")

    def finish(self) -> None:
        if self._count and not self.any_scored:
            which = "the pair" if self._count == 1 else f"any of the {self._count} pairs"
            self._raise(f"could not score {which}")
        if self._count > _LOGGED_EACH:
            logger.warning("%s could not score %d pairs in all", self._who, self._count)

    def _raise(self, what: str) -> None:
        raise NothingScoredError(f"{self._who} {what}; the last failure: {self._last}")


def as_scores(answer: object, count: int, who: str) -> FloatArray:
    """What a model answered for `count` pairs -> raw scores (count,) float32.

    Takes sequences, arrays and tensors, (count,) or (count, 1). Raises ScorerError for any other
    number of scores, ValueError or TypeError if they are not numbers.
    """
    if hasattr(answer, "detach"):  # a torch tensor, possibly in bfloat16, which NumPy lacks
        answer = answer.detach().float().cpu().numpy()
    with np.errstate(over="ignore"):  # too large for float32 is infinite, and reported as such
        scores = np.asarray(answer, dtype=np.float32)
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    if scores.ndim == 2 and len(scores) == count:
        raise ScorerError(
            f"{who} gave {scores.shape[1]} numbers for each pair; a cross-encoder gives one score"
        )
    if scores.shape != (count,):
        got = len(scores) if scores.ndim else "a single number"
        raise ScorerError(f"{who} was asked for the scores of {count} pairs and gave {got}")
    return scores


def excerpt(text: str, length: int = 60) -> str:
    """The beginning of a text, quoted, for messages."""
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= length else flat[: length - 1] + "…")


def describe_pair(pairs: Pairs, queries: Sequence[str], items: Sequence[str], position: int) -> str:
    """Names a pair by position and text, for messages."""
    query, item = int(pairs.query[position]), int(pairs.item[position])
    return (
        f"query {query} {excerpt(str(queries[query]))} with item {item} {excerpt(str(items[item]))}"
    )


def _too_large(error: Exception) -> bool:
    """Whether smaller batches are likely to help with all of the following ones, too."""
    text = str(error).lower()
    said = ("out of memory", "failed to allocate", "bad_alloc")
    return isinstance(error, MemoryError | BatchTooLargeError) or any(s in text for s in said)
