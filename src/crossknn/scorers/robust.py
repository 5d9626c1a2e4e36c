"""One place for what every scorer does when a batch fails.

A failing batch is halved until the pair at fault stands alone; that pair is left out and logged.
Nothing a single item does can fail the others, and nothing that is not a score passes.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue
from typing import TypeAlias

import numpy as np

from crossknn.errors import ScorerError
from crossknn.scorers.deadline import Deadline, Speed
from crossknn.types import FloatArray, IntArray, Pairs

logger = logging.getLogger(__name__)

RunBatch: TypeAlias = Callable[[IntArray], object]
"""Positions in the pairs (b,) -> something with b scores."""

GIVE_UP_AFTER = 32
"""So many pairs failing one by one, with no pair ever scored, stand for a broken model."""

_LOGGED_EACH = 10


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


def excerpt(text: str, length: int = 60) -> str:
    """The beginning of a text, quoted, for messages."""
    flat = " ".join(text.split())
    return repr(flat if len(flat) <= length else flat[: length - 1] + "…")


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


def stream(
    pairs: Pairs,
    queries: Sequence[str],
    items: Sequence[str],
    batches: Iterable[IntArray],
    run: RunBatch,
    *,
    who: str,
    deadline: Deadline | None = None,
    speed: Speed | None = None,
    units: Callable[[int], float] = lambda position: 1.0,
    workers: int = 0,
    give_up_after: int = GIVE_UP_AFTER,
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Score `batches`, each a set of positions in `pairs` (b,); yields (positions, scores) (b,).

    A batch whose `run` raises is halved. A pair that fails alone is left out and logged as a
    warning. After a batch that was too large (`BatchTooLargeError`, `MemoryError`, a device out
    of memory), the rest of the call runs in batches of the size that worked.

    The stream ends early when `deadline` is over. With `speed`, batches shrink to what fits into
    the time left; a pair costs `units(position)`. With `workers`, so many batches run at once, on
    threads that are left behind at the deadline: `run` must end soon after it.

    Raises ScorerError if `run` does, if the number of scores is wrong, or a score is NaN or
    infinite, once the batches under way have ended; its `query` is the query at fault, where that
    is known. Raises NothingScoredError if every pair failed.
    """
    failures = _Failures(pairs, queries, items, who, give_up_after)
    deadline = deadline or Deadline()
    source = _Source(batches, deadline, speed, units)

    def attempt(positions: IntArray) -> FloatArray | Exception:
        try:
            scores = as_scores(run(positions), len(positions), who)
            _check_finite(pairs, queries, items, positions, scores, who)
        except Exception as error:
            if isinstance(error, ScorerError) and error.query is None:
                error.query = _only(pairs.query[positions])
            return error
        return scores

    broken: ScorerError | None = None
    answers = _threaded(source, attempt, deadline, workers) if workers else _here(source, attempt)
    try:
        for positions, answer in answers:
            if isinstance(answer, ScorerError):
                broken = broken or answer
                source.stop()
            elif isinstance(answer, Exception):
                half = len(positions) // 2
                if half == 0:
                    failures.add(int(positions[0]), answer)
                    continue
                logger.debug("%s failed on %d pairs, halving: %s", who, len(positions), answer)
                if _too_large(answer):
                    half = min(half, getattr(answer, "limit", None) or half)
                    source.limit = half
                source.put(positions[:half], positions[half:])
            else:
                failures.any_scored = True
                yield positions, answer
        if broken is not None:
            raise broken
        if not deadline.over():
            failures.finish()
    finally:
        deadline.end()


class _Source:
    """Batches, cut to what may run at once and to what fits into the time that is left."""

    def __init__(
        self,
        batches: Iterable[IntArray],
        deadline: Deadline,
        speed: Speed | None,
        units: Callable[[int], float],
    ) -> None:
        self._batches, self._waiting = iter(batches), list[IntArray]()
        self._deadline, self._speed, self._units = deadline, speed, units
        self._stopped = False
        self.limit: int | None = None
        """Most pairs of a batch; None for no limit."""

    def put(self, *batches: IntArray) -> None:
        """Take these next."""
        self._waiting += [batch for batch in reversed(batches) if len(batch)]

    def stop(self) -> None:
        """Hand out no more."""
        self._stopped = True

    def take(self) -> IntArray | None:
        """The next batch; None if there is none, or no time is left."""
        while not self._stopped and not self._deadline.over():
            if not self._waiting:
                batch = next(self._batches, None)
                if batch is None:
                    return None
                self.put(batch)
                continue
            batch = self._waiting.pop()
            most = len(batch) if self.limit is None else self.limit
            if self._speed is not None and self._deadline.limited:
                costs = [self._units(position) for position in batch.tolist()]
                most = min(most, self._speed.fit(costs, self._deadline.left()))
            self.put(batch[:most], batch[most:])
            return self._waiting.pop()
        return None

    def timed(self, batch: IntArray, seconds: float) -> None:
        """Note how long a batch took that was scored."""
        if self._speed is not None:
            self._speed.note(sum(map(self._units, batch.tolist())), seconds)


_Answers: TypeAlias = Iterator[tuple[IntArray, FloatArray | Exception]]
_Attempt: TypeAlias = Callable[[IntArray], FloatArray | Exception]


def _here(source: _Source, attempt: _Attempt) -> _Answers:
    """One batch at a time, on the caller's thread."""
    while (batch := source.take()) is not None:
        yield batch, _timed(source, attempt, batch)


def _threaded(source: _Source, attempt: _Attempt, deadline: Deadline, workers: int) -> _Answers:
    """`workers` batches at a time, each on a daemon thread; what is late is left behind."""
    answers: SimpleQueue[tuple[IntArray, FloatArray | Exception]] = SimpleQueue()
    running = 0
    while True:
        while running < workers and (batch := source.take()) is not None:

            def work(batch: IntArray = batch) -> None:
                answers.put((batch, _timed(source, attempt, batch)))

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


def _timed(source: _Source, attempt: _Attempt, batch: IntArray) -> FloatArray | Exception:
    began = time.perf_counter()
    answer = attempt(batch)
    if not isinstance(answer, Exception):
        source.timed(batch, time.perf_counter() - began)
    return answer


def _only(queries: IntArray) -> int | None:
    """The one query that all these positions are of, if it is one."""
    return int(queries[0]) if (queries == queries[0]).all() else None


class _Failures:
    """The pairs of one call that could not be scored."""

    def __init__(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        who: str,
        give_up_after: int,
    ) -> None:
        self.any_scored = False
        self._pairs, self._queries, self._items = pairs, queries, items
        self._who, self._give_up_after = who, give_up_after
        self._count = 0
        self._last = ""

    def add(self, position: int, error: Exception) -> None:
        self._count += 1
        self._last = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, PlainError):
            self._last = str(error)
        if self._count <= _LOGGED_EACH:
            what = describe_pair(self._pairs, self._queries, self._items, position)
            logger.warning("%s could not score %s: %s", self._who, what, self._last)
        if not self.any_scored and self._count >= self._give_up_after:
            self._raise(f"none of the first {self._count} pairs")

    def finish(self) -> None:
        if self._count and not self.any_scored:
            self._raise("the pair" if self._count == 1 else f"any of the {self._count} pairs")
        if self._count > _LOGGED_EACH:
            logger.warning("%s could not score %d pairs in all", self._who, self._count)

    def _raise(self, which: str) -> None:
        verb = "could score" if which.startswith("none") else "could not score"
        raise NothingScoredError(f"{self._who} {verb} {which}; the last failure: {self._last}")


def describe_pair(pairs: Pairs, queries: Sequence[str], items: Sequence[str], position: int) -> str:
    """Names a pair by position and text, for messages."""
    query, item = int(pairs.query[position]), int(pairs.item[position])
    return (
        f"query {query} {excerpt(str(queries[query]))} with item {item} {excerpt(str(items[item]))}"
    )


def _check_finite(
    pairs: Pairs,
    queries: Sequence[str],
    items: Sequence[str],
    positions: IntArray,
    scores: FloatArray,
    who: str,
) -> None:
    bad = np.flatnonzero(~np.isfinite(scores))
    if len(bad):
        first = int(bad[0])
        what = describe_pair(pairs, queries, items, int(positions[first]))
        error = ScorerError(f"{who} gave {scores[first]} as the score of {what}")
        error.query = int(pairs.query[positions[first]])
        raise error


def _too_large(error: Exception) -> bool:
    """Whether smaller batches are likely to help with all of the following ones, too."""
    if isinstance(error, (MemoryError, BatchTooLargeError)):
        return True
    text = str(error).lower()
    return "out of memory" in text or "failed to allocate" in text or "bad_alloc" in text


def windowed_batches(
    pairs: Pairs, lengths: Sequence[int] | IntArray, size: int, window: int = 1024
) -> Iterator[IntArray]:
    """Positions (b,) in batches of at most `size`, of similar length within each window of pairs.

    Sorting by length saves padding; windows keep the order of `pairs` roughly, so that a caller
    who stops early has the pairs it asked for first. `lengths` (p,).
    """
    lengths = np.asarray(lengths)
    for start in range(0, len(pairs), window):
        order = start + np.argsort(lengths[start : start + window], kind="stable")
        for first in range(0, len(order), size):
            yield order[first : first + size]
