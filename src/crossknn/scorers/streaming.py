"""What every scorer does: batches, deadlines, threads, and pairs that fail.

A failing batch is halved until the pair at fault is alone; that pair is left out and logged.
"""

from __future__ import annotations

import atexit
import copy
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Self, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np

from crossknn.errors import CrossknnError, ScorerError, counted
from crossknn.linalg import running, usable
from crossknn.types import FloatArray, IntArray, Pairs

logger = logging.getLogger(__name__)

GIVE_UP_AFTER = 32  # pairs that failed one by one, with none ever scored: the model is broken
_POLL = 0.02  # seconds between two looks at a deadline by a thread that waits
_FIRST_PAIRS = 4  # of the first batch under a deadline, while the scorer's speed is not known
_PATIENCE = 10.0  # seconds that the end of the interpreter waits for threads, at most
_started: WeakKeyDictionary[Thread, Callable[[], object]] = WeakKeyDictionary()
_MARGIN = 1.5  # a batch may take so many times as long as the speed measured so far says


class NothingScoredError(ScorerError):
    """No pair of a call could be scored."""


class BatchError(CrossknnError):
    """A batch failed, perhaps because of one pair; if it was `too_large`, others would be, too."""

    def __init__(self, message: str, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.too_large = too_large


class Deadline:
    """The end of one call: after `time_left` seconds, once `cancel` is set, or once it is ended."""

    def __init__(
        self, time_left: float | None = None, cancel: threading.Event | None = None
    ) -> None:
        self._at = math.inf if time_left is None else time.monotonic() + time_left
        self._cancel = cancel
        self._ended = threading.Event()

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
        while time.monotonic() < until and not self.over():
            self._ended.wait(self.pause())
        return not self.over()

    def end(self) -> None:
        """End the call."""
        self._ended.set()


class Call:
    """One call of `score`: the pairs, their texts, and what is known of them meanwhile.

    `costs` (p,) says what each pair costs, in any unit; `prepared` is whatever the scorer has made
    of the pairs beforehand; `batches` are the batches to come, and `waiting` what is left of those
    that were cut or failed.
    """

    batches: Iterator[IntArray]

    def __init__(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], deadline: Deadline
    ) -> None:
        self.pairs, self.queries, self.items, self.deadline = pairs, queries, items, deadline
        self.costs: FloatArray = np.ones(len(pairs), dtype=np.float32)
        self.prepared: Any = None
        self.waiting: list[IntArray] = []

    def texts(self, positions: IntArray) -> list[tuple[str, str]]:
        """(query text, item text) of each pair."""
        chosen = self.pairs.take(positions)
        both = zip(chosen.query.tolist(), chosen.item.tolist(), strict=True)
        return [(self.queries[query], self.items[item]) for query, item in both]

    def described(self, position: int) -> str:
        """Names a pair by text and position, for messages."""
        query, item = int(self.pairs.query[position]), int(self.pairs.item[position])
        texts = excerpt(str(self.queries[query])), excerpt(str(self.items[item]))
        return f"the query {texts[0]} with the item {texts[1]} (position {item})"

    def slices(self, size: int) -> Iterator[IntArray]:
        """All positions in order, `size` at a time."""
        for start in range(0, len(self.pairs), size):
            yield np.arange(start, min(start + size, len(self.pairs)), dtype=np.int64)


_Answer: TypeAlias = tuple[IntArray, FloatArray | Exception]


class BatchedScorer(ABC):
    """A scorer that says how pairs are batched and how a batch is scored; the rest is done here.

    Messages call it `name`, or `who`, which has its kind in front. `workers` batches run at once on
    threads of their own (0: one at a time, on the caller's). At the deadline these threads are left
    behind: `_run` must end soon after it.
    """

    workers = 0
    per_request: int | None = None
    """Pairs of one query, at most, that a batch holds where it is a request to an endpoint."""

    def __init__(self, name: str, who: str = "the model {}") -> None:
        self.name, self.who = name, who.format(name)
        self._seconds: float | None = None  # for a unit of cost, as measured so far
        self._most: int | None = None  # pairs at once, after a batch that was too large

    def one_by_one(self) -> Self:
        """The same scorer with one batch at a time; several threads may call it. A request, which
        may hang, stays on a thread of its own."""
        other = copy.copy(self)
        other.workers = 0 if self.per_request is None else 1
        return other

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
        """Yields (positions in `pairs` (b,), raw logits (b,) float32); see `Scorer.score`."""
        call = Call(pairs, queries, items, Deadline(time_left, cancel))
        with running():
            call.batches = iter(self._batches(call))
        return self._stream(call)

    def _stream(self, call: Call) -> Iterator[tuple[IntArray, FloatArray]]:
        answers: SimpleQueue[_Answer] = SimpleQueue()
        running, failed = 0, list[str]()
        any_scored, broken = False, None
        try:
            while True:
                while running < max(1, self.workers) and broken is None:
                    if (batch := self._next(call)) is None:
                        break
                    running += 1
                    if self.workers:
                        self._start(call, batch, answers)
                    else:
                        self._attempt(call, batch, answers)
                if not running:
                    break
                try:
                    positions, answer = answers.get(timeout=call.deadline.pause())
                except Empty:
                    if call.deadline.over():
                        break
                    continue
                running -= 1
                if not isinstance(answer, Exception):
                    any_scored = True
                    yield positions, answer
                elif isinstance(answer, ScorerError):
                    broken = broken or answer
                elif (half := len(positions) // 2) > 0:
                    logger.debug("a batch of %d pairs is halved: %s", len(positions), answer)
                    call.waiting += [positions[half:], positions[:half]]
                    if getattr(answer, "too_large", False) or out_of_memory(answer):
                        self._most = half
                else:
                    said = str(answer)  # an error of ours says all by itself
                    if not isinstance(answer, CrossknnError):
                        said = f"{type(answer).__name__}: {answer}"
                    failed.append(f"{call.described(positions[0])}: {said}")
                    logger.debug("%s could not score %s", self.who, failed[-1])
                    if len(failed) >= min(GIVE_UP_AFTER, len(call.pairs)) and not any_scored:
                        raise NothingScoredError(
                            f"{self.who} could not score any of {len(failed)} pairs; "
                            f"the last failure: {said}"
                        )
            if broken is not None:
                raise broken
        finally:
            call.deadline.end()
            if failed and any_scored:  # else the error says it
                first = f"the first {failed[0]}" if len(failed) > 1 else failed[0]
                count = counted(len(failed), "pair")
                logger.warning("%s could not score %s, %s", self.who, count, first)

    def _start(self, *work: Any) -> None:
        """Attempt a batch on a thread of its own; the interpreter does not wait for a request."""
        if self.per_request is None:
            start_thread("crossknn-scorer", self._attempt, *work)
        else:
            Thread(target=self._attempt, args=work, name="crossknn-request", daemon=True).start()

    def _next(self, call: Call) -> IntArray | None:
        """The next batch, cut to what may run at once and to what fits into the time left."""
        if call.deadline.over():
            return None
        batch = call.waiting.pop() if call.waiting else next(call.batches, None)
        if batch is None:
            return None
        most = self._most or len(batch)
        if call.deadline.limited:
            fits = _FIRST_PAIRS
            if self._seconds is not None:
                seconds = np.cumsum(call.costs[batch]) * self._seconds * _MARGIN
                fits = int((seconds <= call.deadline.left()).sum())
            most = min(most, max(1, fits))  # a slow scorer is given a single pair rather than none
        if most < len(batch):
            call.waiting.append(batch[most:])
        return batch[:most]

    def _attempt(self, call: Call, batch: IntArray, answers: SimpleQueue[_Answer]) -> None:
        """Put the scores of a batch (b,), or why there are none, into the queue."""
        began, faulty = time.perf_counter(), batch
        try:
            with running():  # a thread may still be at it when its search has ended
                scores = as_scores(self._run(call, batch), len(batch), self.who)
            if len(bad := np.flatnonzero(~usable(scores))):
                faulty = batch[bad[:1]]
                said = f"{self.who} gave {scores[bad[0]]} as the score of"
                raise ScorerError(f"{said} {call.described(faulty[0])}")
        except Exception as error:
            queries = np.unique(call.pairs.query[faulty])
            if isinstance(error, ScorerError) and len(queries) == 1:
                error.query = int(queries[0])
            answers.put((batch, error))
            return
        if cost := float(call.costs[batch].sum()):  # texts may be empty
            new, old = (time.perf_counter() - began) / cost, self._seconds
            self._seconds = new if old is None else 0.7 * old + 0.3 * new
        answers.put((batch, scores))


def start_thread(
    name: str, target: Callable[..., object], *args: Any, stop: Callable[[], object] | None = None
) -> Thread:
    """Start a thread that may be in native code when the program ends.

    A daemon thread that comes back from native code (ONNX Runtime, tokenizers, faiss) to an
    interpreter that has ended aborts the process; one that is no daemon keeps it from ending if it
    hangs. So it is a daemon, and the end waits for it.

    Args:
        name: Of the thread.
        target, args: What it runs.
        stop: Called at the end of the interpreter, so that a thread that waits for work ends, too.

    Returns:
        The thread, which runs.
    """
    thread = Thread(target=target, args=args, name=name, daemon=True)
    _started[thread] = stop or (lambda: None)
    thread.start()
    return thread


@atexit.register
def _wait() -> None:
    """Wait for the threads; a second Ctrl-C ends that."""
    until = time.monotonic() + _PATIENCE
    with suppress(KeyboardInterrupt):
        alive = [(thread, stop) for thread, stop in _started.items() if thread.is_alive()]
        for _, stop in alive:
            stop()
        for thread, _ in alive:
            thread.join(max(0.0, until - time.monotonic()))


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, as NumPy, torch or ONNX Runtime says it."""
    said = ("out of memory", "failed to allocate", "can't allocate", "bad_alloc")
    return isinstance(error, MemoryError) or any(words in str(error).lower() for words in said)


def as_scores(answer: Any, count: int, who: str) -> FloatArray:
    """What a model answered for `count` pairs -> raw scores (count,) float32.

    Takes sequences, arrays and tensors, (count,) or (count, 1). Raises ScorerError for any other
    number of scores, ValueError or TypeError if they are not numbers.
    """
    if hasattr(answer, "detach"):  # a torch tensor, possibly in bfloat16, which NumPy lacks
        answer = answer.detach().float().cpu().numpy()
    with np.errstate(over="ignore"):  # too large for float32 is infinite, and reported as such
        scores = np.asarray(answer, dtype=np.float32)
    if scores.shape not in ((count,), (count, 1)):
        raise ScorerError(
            f"{who} was asked for the scores of {count} pairs and gave numbers of shape "
            f"{scores.shape}"
        )
    return scores.reshape(count)


def excerpt(text: str) -> str:
    """The beginning of a text, quoted, for messages."""
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 60 else flat[:59] + "…")
