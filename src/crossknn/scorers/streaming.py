"""What all scorers share: batches and their time, deadlines, threads, failing pairs.

A failing batch is halved until the failing pair is alone; that pair is left out and logged.
"""

from __future__ import annotations

import atexit
import copy
import logging
import math
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
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
_POLL = 0.02  # seconds between two checks of the deadline by a waiting thread
_FIRST_PAIRS = 4  # in the first batch under a deadline, while the scorer's speed is not known
_PATIENCE = 10.0  # seconds that the end of the interpreter waits for threads, at most
_started: WeakKeyDictionary[Thread, Callable[[], object]] = WeakKeyDictionary()
_MARGIN = 1.5  # a batch is expected to take this many times as long as measured so far

LONGER, ANYWAY = 0.4, 0.05
"""Rounds may make a search longer than one large batch by this share of its time, or by this many
seconds, whichever is more."""
FEWEST = 2
"""Minimum number of rounds: without a second one, nothing would be learned."""
KEPT, EVERY = 64, 6
"""The last batches from which the time is estimated, anew after every so many."""
TRIED, SLOW, APART = 3, 0.004, 3
"""The number of small batches that the estimate needs; the seconds from which batches are divided
for it; and how many times as large as a small batch a large one is."""


class NothingScoredError(ScorerError):
    """Raised if no pair of a call could be scored."""


class BatchError(CrossknnError):
    """Raised if a batch failed, perhaps because of one pair; `too_large` if batches of this size
    fail."""

    def __init__(self, message: str, *, too_large: bool = False) -> None:
        super().__init__(message)
        self.too_large = too_large


class Deadline:
    """When a call must end: after `time_left` seconds, or once `cancel` is set or `end` called.

    `rest` returns the arguments for `Scorer.score`; threads block for `pause` seconds at most.
    """

    def __init__(
        self, time_left: float | None = None, cancel: threading.Event | None = None
    ) -> None:
        self._at = math.inf if time_left is None else time.monotonic() + time_left
        self._cancel = cancel
        self._ended = threading.Event()

    @property
    def limited(self) -> bool:
        return self._at < math.inf

    def left(self) -> float:
        """Seconds left: infinity without a limit, 0 or less after the deadline."""
        if self._ended.is_set() or (self._cancel is not None and self._cancel.is_set()):
            return 0.0
        return self._at - time.monotonic()

    def over(self) -> bool:
        return self.left() <= 0

    def rest(self) -> dict[str, Any]:
        left = max(self.left(), 0.0) if self.limited else None
        return {"time_left": left, "cancel": self._cancel}

    def pause(self) -> float:
        return max(0.0, min(_POLL, self.left()))

    def sleep(self, seconds: float) -> bool:
        """Sleep for `seconds`; return False as soon as the call has to end."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.over():
            self._ended.wait(self.pause())
        return not self.over()

    def end(self) -> None:
        self._ended.set()


class Call:
    """One call of `score`: the pairs, their texts, and its progress.

    `costs` (p,) is what each pair costs, in any unit; `prepared` is what the scorer has computed
    for the pairs beforehand; `waiting` has the remainders of batches that were cut or failed.
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
        """Return the (query text, item text) of each pair."""
        chosen = self.pairs.take(positions)
        both = zip(chosen.query.tolist(), chosen.item.tolist(), strict=True)
        return [(self.queries[query], self.items[item]) for query, item in both]

    def described(self, position: int) -> str:
        query, item = int(self.pairs.query[position]), int(self.pairs.item[position])
        texts = excerpt(str(self.queries[query])), excerpt(str(self.items[item]))
        return f"the query {texts[0]} with the item {texts[1]} (position {item})"

    def slices(self, size: int) -> Iterator[IntArray]:
        for start in range(0, len(self.pairs), size):
            yield np.arange(start, min(start + size, len(self.pairs)), dtype=np.int64)


class Pace:
    """The time of a scorer's batches: a + c x seconds for x units of cost, from the last batches.

    A search scores few pairs at a time, so that all batches would be alike: if a search asks for
    `rounds` and batches take long, some are divided (`to_try`), which tells a fixed time, such as a
    round trip, from the time per pair.
    """

    def __init__(self) -> None:
        self._seen, self._count = deque[tuple[int, float, float]](maxlen=KEPT), -1
        self._asked = self._divides = False
        self.median = self.each = 0.0
        """Seconds of a batch, whatever its size, and seconds divided by the pairs of the batch."""
        self.curve: tuple[float, float] | None = None
        """Seconds for a batch and, besides, for each pair; None if unknown."""

    def add(self, pairs: int, cost: float, seconds: float) -> None:
        """Note a batch; the first one is ignored, because it may open a model."""
        self._count += 1
        if not self._count:
            return
        self._seen.append((pairs, cost, seconds))
        if self._count == 1 or self._count % EVERY == 0:
            seen = self._seen.copy()  # other threads may add
            self.median = float(np.median([each for *_, each in seen]))
            self.each = float(np.median([each / count for count, _, each in seen]))
            self.curve = _fitted(*np.array(seen).T)

    def to_try(self, pairs: int, cost: float) -> int:
        """Return how many of these pairs to score as the next batch: usually all."""
        known = not self._asked or self.curve is not None
        if known or pairs < APART or self.median < SLOW:
            return pairs
        small = sum(APART * other <= cost for _, other, _ in self._seen.copy())
        # The rest of a divided batch stays whole: large batches are needed, too.
        self._divides = small < TRIED and not self._divides
        return max(1, pairs // 4) if self._divides else pairs

    def rounds(
        self, most: int, budget: int, queries: int, *, largest: int, workers: int, apart: bool
    ) -> int:
        """Return in how many rounds, at most `most`, to score a budget of pairs per query for
        queries that are searched together. A batch has at most `largest` pairs (0: no limit), of
        one query only if `apart`; at most `workers` batches run at once."""
        known = (self.each, 0.0) if largest == 1 else self.curve
        self._asked |= known is None
        if known is None or not budget:
            return most
        (fixed, each), largest = known, largest or budget * queries

        def seconds(count: int) -> float:
            """Time of a round with so many pairs per query."""
            batches = math.ceil(count * queries / largest)
            batches = queries * math.ceil(count / largest) if apart else batches
            at_once = min(workers, batches)
            return math.ceil(batches / workers) * fixed + count * queries * each / at_once

        most, whole = min(most, budget), seconds(budget)
        allowed = whole + max(LONGER * whole, ANYWAY)
        fits = (r for r in range(most, FEWEST, -1) if r * seconds(math.ceil(budget / r)) <= allowed)
        return next(fits, min(most, FEWEST))


_Answer: TypeAlias = tuple[IntArray, FloatArray | Exception]


class BatchedScorer(ABC):
    """Runs the batches of a scorer; subclasses define how pairs are batched and how a batch is
    scored.

    `workers` batches run at once on their own threads (0: one at a time, on the caller's), which
    are abandoned at the deadline, so `_run` must end soon after it. If a batch is a request to an
    endpoint, its pairs belong to one query, and `per_request` is their maximum number; `largest` is
    that of other batches (0: no limit).
    """

    workers, largest = 0, 0
    per_request: int | None = None

    def __init__(self, name: str, who: str = "the model {}") -> None:
        self.name, self.who = name, who.format(name)
        self._seconds: float | None = None  # for a unit of cost, as measured so far
        self._most: int | None = None  # pairs at once, after a batch that was too large
        self.pace = Pace()

    def one_by_one(self) -> Self:
        """Return the same scorer running one batch at a time, on the caller's thread unless it is
        a request, which may hang."""
        other = copy.copy(self)
        other.workers = 0 if self.per_request is None else 1
        return other

    def rounds(self, most: int, budget: int, queries: int) -> int:
        """Return in how many rounds, at most `most`, to score a budget of pairs per query: fewer if
        batches have taken long whatever their size (`Pace`)."""
        workers, apart = max(1, self.workers), self.per_request is not None
        how: dict[str, Any] = {"largest": self.per_request or self.largest, "workers": workers}
        return self.pace.rounds(most, budget, queries, **how, apart=apart)

    def _batches(self, call: Call) -> Iterable[IntArray]:
        """Yield the positions (b,) of the call's pairs in each batch."""
        return call.slices(self.per_request or self.largest or max(1, len(call.pairs)))

    @abstractmethod
    def _run(self, call: Call, positions: IntArray) -> object:
        """Return the b scores of the pairs at these positions (b,). If it raises, only this batch
        has failed."""

    def score(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], **limits: Any
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yields (positions in `pairs` (b,), raw logits (b,) float32); see `Scorer.score`."""
        call = Call(pairs, queries, items, Deadline(**limits))
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
                    call.waiting += [positions[half:], positions[:half]]
                    if getattr(answer, "too_large", False) or out_of_memory(answer):
                        self._most = half
                else:
                    is_own = isinstance(answer, CrossknnError)
                    why = str(answer) if is_own else f"{type(answer).__name__}: {answer}"
                    failed.append(f"{call.described(positions[0])}: {why}")
                    if len(failed) >= min(GIVE_UP_AFTER, len(call.pairs)) and not any_scored:
                        raise NothingScoredError(
                            f"{self.who} could not score any of {len(failed)} pairs; "
                            f"the last failure: {why}"
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
        """Run a batch on its own thread; the interpreter does not wait for a request at exit."""
        if self.per_request is None:
            start_thread("crossknn-scorer", self._attempt, *work)
        else:
            Thread(target=self._attempt, args=work, name="crossknn-request", daemon=True).start()

    def _next(self, call: Call) -> IntArray | None:
        if call.deadline.over():
            return None
        batch = call.waiting.pop() if call.waiting else next(call.batches, None)
        if batch is None:
            return None
        size = len(batch)
        most = min(self._most or size, self.pace.to_try(size, float(call.costs[batch].sum())))
        if call.deadline.limited:
            fits = _FIRST_PAIRS
            if self._seconds is not None:
                seconds = np.cumsum(call.costs[batch]) * self._seconds * _MARGIN
                fits = int((seconds <= call.deadline.left()).sum())
            most = min(most, max(1, fits))  # a slow scorer is given a single pair rather than none
        if most < size:
            call.waiting.append(batch[most:])
        return batch[:most]

    def _attempt(self, call: Call, batch: IntArray, answers: SimpleQueue[_Answer]) -> None:
        """Score a batch (b,), and put the scores or the error into the queue."""
        began, faulty = time.perf_counter(), batch
        try:
            with running():  # a thread may still be at it when its search has ended
                scores = as_scores(self._run(call, batch), len(batch), self.who)
            if len(bad := np.flatnonzero(~usable(scores))):
                faulty = batch[bad[:1]]
                raise ScorerError(
                    f"{self.who} gave {scores[bad[0]]} as the score of {call.described(faulty[0])}"
                )
        except Exception as error:
            queries = np.unique(call.pairs.query[faulty])
            if isinstance(error, ScorerError) and len(queries) == 1:
                error.query = int(queries[0])
            answers.put((batch, error))
            return
        if cost := float(call.costs[batch].sum()):  # texts may be empty
            seconds, old = time.perf_counter() - began, self._seconds
            self.pace.add(len(batch), cost, seconds)
            self._seconds = seconds / cost if old is None else 0.7 * old + 0.3 * seconds / cost
        answers.put((batch, scores))


def start_thread(
    name: str, target: Callable[..., object], *args: Any, stop: Callable[[], object] | None = None
) -> Thread:
    """Start a thread that may be in native code when the program exits; `stop` is called at exit.

    A daemon thread that returns from native code (ONNX Runtime, tokenizers, faiss) to an
    interpreter that has shut down aborts the process; a non-daemon thread that hangs would keep the
    process alive. So the thread is a daemon, and the interpreter waits for it at exit.
    """
    thread = Thread(target=target, args=args, name=name, daemon=True)
    _started[thread] = stop or (lambda: None)
    thread.start()
    return thread


@atexit.register
def _wait() -> None:
    until = time.monotonic() + _PATIENCE
    with suppress(KeyboardInterrupt):
        alive = [(thread, stop) for thread, stop in _started.items() if thread.is_alive()]
        for _, stop in alive:
            stop()
        for thread, _ in alive:
            thread.join(max(0.0, until - time.monotonic()))


def out_of_memory(error: Exception) -> bool:
    """Whether an error from NumPy, torch or ONNX Runtime means that memory ran out."""
    phrases = ("out of memory", "failed to allocate", "can't allocate", "bad_alloc")
    return isinstance(error, MemoryError) or any(p in str(error).lower() for p in phrases)


def as_scores(answer: Any, count: int, who: str) -> FloatArray:
    """Convert a model's answer for `count` pairs, numbers (count,) or (count, 1), to float32
    (count,)."""
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
    """Return the beginning of a text, quoted, for messages."""
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= 60 else flat[:59] + "…")


def _fitted(pairs: FloatArray, cost: FloatArray, seconds: FloatArray) -> tuple[float, float] | None:
    """Fit seconds for a batch and for a pair to batches (b,); None if they are all of one size.

    The slope is that of Theil and Sen, with larger weights for batches of different costs.
    """
    if len(pairs) < 2 * TRIED or np.sort(cost)[-TRIED] < APART * np.sort(cost)[TRIED - 1]:
        return None
    first, second = np.nonzero(cost < cost[:, None])
    more = cost[first] - cost[second]
    slopes = (seconds[first] - seconds[second]) / more
    order = np.argsort(slopes)
    middle = np.searchsorted(np.cumsum(more[order]), more.sum() / 2)
    slope = max(0.0, float(slopes[order][middle]))
    # If times vary for other reasons, a fixed time is estimated too low rather than too high.
    fixed = max(0.0, float(np.quantile(seconds - slope * cost, 0.25)))
    return fixed, slope * float(cost.sum() / pairs.sum())
