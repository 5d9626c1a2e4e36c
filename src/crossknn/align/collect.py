"""Pay for the pairs of G that are not paid yet, within a budget of calls or of time."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from crossknn.align.bank import ScoreBank
from crossknn.align.blocks import Block
from crossknn.align.workers import Workers, on_threads
from crossknn.errors import InputError
from crossknn.scorers.base import Scorer
from crossknn.scorers.robust import NothingScoredError
from crossknn.types import Pairs, Progress

logger = logging.getLogger(__name__)

_GIVE_UP_AFTER = 8
"""So many blocks in a row of which no pair can be scored stand for a broken model."""


@dataclass(frozen=True, kw_only=True)
class CollectReport:
    """What a collection did: it asked `calls` pairs of the scorer, `failed` of which got no score.

    `reused` pairs of the plan were paid before. `stopped_by` is "max_calls", "deadline" or None.
    """

    calls: int
    reused: int
    failed: int
    seconds: float
    complete: bool
    stopped_by: str | None


def collect(
    bank: ScoreBank,
    scorer: Scorer,
    queries: Sequence[str],
    items: Sequence[str],
    pairs: Pairs,
    *,
    workers: int = 1,
    max_calls: int | None = None,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> CollectReport:
    """Score the pairs (p,) of train queries and items that the bank does not have.

    They are paid in order, block by block; the bank keeps each block that ends, whatever comes
    after. A pair's block depends on the plan and on what was paid before it began, so the scores
    are the same bit for bit however often the collection is stopped, and with any `workers`
    (threads that share the scorer, which must bear it; an ONNX model should be opened with the
    cores that `threads_each` gives). Only where `max_calls`, which is
    exact, cuts a block in two may their last bits differ.

    After `deadline` seconds no block is begun. Pairs the scorer leaves out are unpaid, and asked
    again by the next collection. `progress` counts paid pairs of the plan, those before included.

    Raises InputError for arguments out of range, a full disk, or another process at work in the
    folder; ScorerError for a score that is not a number, or if nothing can be scored.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}; it must be 1 or more")
    return fill(
        bank,
        queries,
        items,
        pairs,
        on_threads(scorer, queries, items, workers),
        max_calls=max_calls,
        deadline=deadline,
        progress=progress,
    )


def fill(
    bank: ScoreBank,
    queries: Sequence[str],
    items: Sequence[str],
    pairs: Pairs,
    workers: Workers,
    *,
    max_calls: int | None,
    deadline: float | None,
    progress: Progress | None,
) -> CollectReport:
    """`collect` by any workers."""
    if max_calls is not None and max_calls < 0:
        raise InputError(f"max_calls is {max_calls}; it cannot be negative")
    if len(items) != bank.n:
        raise InputError(f"{len(items)} items were given, but the scores are of {bank.n}")
    started = time.monotonic()
    with bank.exclusive():
        total, missing = bank.count(queries, pairs)
        reused = done = total - missing
        budget = _Budget(missing, max_calls, None if deadline is None else started + deadline)
        failed = hopeless = 0
        failure: str | None = None
        if progress:
            progress(done, total)
        for block, (scores, why) in workers(budget.of(bank.blocks(queries, items, pairs))):
            bank.put(block, scores)
            scored = int(np.count_nonzero(~np.isnan(scores)))
            done, failed, failure = done + scored, failed + len(block) - scored, why or failure
            hopeless = 0 if scored else hopeless + bool(why and block.whole)
            if hopeless == _GIVE_UP_AFTER:
                raise NothingScoredError(f"no pair of {hopeless} blocks in a row: {failure}")
            if progress:
                progress(done, total)
    if failure and not done:
        raise NothingScoredError(failure)
    if failed:
        logger.warning("%d of %d pairs could not be scored; they stay unpaid", failed, budget.calls)
    return CollectReport(
        calls=budget.calls,
        reused=reused,
        failed=failed,
        seconds=time.monotonic() - started,
        complete=done == total,
        stopped_by=budget.stopped_by,
    )


class _Budget:
    """Hands out blocks as long as calls and time last; `until` is on the monotonic clock."""

    def __init__(self, missing: int, max_calls: int | None, until: float | None) -> None:
        self._missing, self._until = missing, until
        self._limit = missing if max_calls is None else max_calls
        self.calls = 0
        self.stopped_by: str | None = None

    def of(self, blocks: Iterator[Block]) -> Iterator[Block]:
        while self.calls < self._missing:
            if self.calls >= self._limit:
                self.stopped_by = "max_calls"
                return
            if self._until is not None and time.monotonic() >= self._until:
                self.stopped_by = "deadline"
                return
            block = next(blocks).cut(self._limit - self.calls)
            self.calls += len(block)
            yield block
