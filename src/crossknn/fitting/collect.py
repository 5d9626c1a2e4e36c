"""Pay for the pairs of G that are not paid yet, within a budget of calls or of time."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from crossknn.errors import InputError
from crossknn.fitting.bank import ScoreBank
from crossknn.fitting.workers import Workers, on_threads
from crossknn.scorers.base import Scorer
from crossknn.scorers.paying import Budget
from crossknn.scorers.streaming import NothingScoredError
from crossknn.types import Pairs, Progress

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CollectReport:
    """What a collection did: `calls` pairs were asked of the scorer and not found in a cache.

    `failed` pairs got no score, `reused` pairs of the plan were paid before. `stopped_by` is
    "max_calls", "deadline" or None.
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
    pairs: Pairs,
    *,
    workers: int = 1,
    max_calls: int | None = None,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> CollectReport:
    """Score the pairs (p,) of train queries and the bank's items that it does not have.

    They are paid in order, block by block; the bank keeps each block that ends, whatever comes
    after. A pair's block depends on the plan and on what was paid before it began, so the scores
    are the same bit for bit however often the collection is stopped, and with any `workers`
    (threads that share the scorer, which must bear it; an ONNX model should be opened with the
    cores that `threads_each` gives). Only where `max_calls`, which is
    exact, cuts a block in two may their last bits differ.

    After `deadline` seconds no block is begun. Pairs the scorer leaves out are unpaid, and asked
    again by the next collection. `progress` counts paid pairs of the plan, those before included.
    An interrupt waits for the blocks under way and keeps them; one that `progress` raises loses
    them, a block for each worker.

    Raises InputError for arguments out of range, a full disk, or another process at work in the
    folder; ScorerError for a score that is not a number, or if nothing can be scored.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}; it must be 1 or more")
    return fill(
        bank,
        queries,
        pairs,
        on_threads(scorer, queries, bank.items, workers),
        max_calls=max_calls,
        deadline=deadline,
        progress=progress,
    )


def fill(
    bank: ScoreBank,
    queries: Sequence[str],
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
    started = time.monotonic()
    with bank.exclusive():
        total, missing = bank.count(queries, pairs)
        reused = total - missing
        until = None if deadline is None else started + deadline
        budget = Budget(bank.blocks(queries, pairs), missing, max_calls, until)
        if progress:
            progress(reused, total)
        began = time.monotonic()
        try:
            for block, found in workers(budget):
                bank.put(block, found.scores)
                budget.book(block, found, whole=block.whole)
                if progress:
                    progress(reused + budget.scored, total)
        finally:
            if budget.paid:
                bank.spend(budget.paid, time.monotonic() - began)
    done = reused + budget.scored
    if budget.failure and not done:
        raise NothingScoredError(budget.failure)
    if budget.failed:
        logger.warning("%d pairs could not be scored; they stay unpaid", budget.failed)
    return CollectReport(
        calls=budget.calls,
        reused=reused,
        failed=budget.failed,
        seconds=time.monotonic() - started,
        complete=done == total,
        stopped_by=budget.stopped_by,
    )
