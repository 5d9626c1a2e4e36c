"""The one way to collect exact scores: resumable, parallel, on threads or on Ray.

Every batch that a scorer yields is kept at once, so that whatever stops a collection, and whenever,
costs at most the requests in flight. Processes that collect into one file wait for each other, and
take over what the other one has scored.

Axes: q queries, n items, p pairs, b pairs of a block.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import Deadline, NothingScoredError
from crossknn.scores.run import Limits as Limits
from crossknn.scores.run import Run, Scored, run_jobs, score_block
from crossknn.scores.store import ScoreStore
from crossknn.types import FloatArray, Pairs, Progress

logger = logging.getLogger(__name__)
_BLOCK = 512
_POLL = 0.2


@dataclass(frozen=True, kw_only=True)
class CollectReport:
    """What a collection did with so many different `pairs` of texts.

    `reused` had a score before, `scored` got one, by `calls` of the scorer; `failed` were asked and
    got none. `stopped_by` is "max_calls", "deadline" or None.
    """

    pairs: int
    reused: int
    scored: int
    calls: int
    failed: int
    seconds: float
    stopped_by: str | None

    @property
    def complete(self) -> bool:
        """Whether every pair has a score."""
        return self.reused + self.scored == self.pairs


def collect(
    store: ScoreStore,
    scorer: Scorer,
    queries: Sequence[str],
    items: Sequence[str],
    pairs: Pairs | None = None,
    *,
    limits: Limits | None = None,
    source: str | Path | Callable[[], Scorer] | None = None,
    progress: Progress | None = None,
) -> CollectReport:
    """Score the pairs that the store does not have, and keep them there, batch by batch.

    Args:
        queries, items: texts (q,) and (n,); pairs of equal texts are scored once.
        pairs: positions (p,) in them, scored in order; by default every query with every item.
        source: on Ray, the name or folder of the scorer, or a function that opens it.
        progress: called with (different pairs that have a score, all of them).

    No batch is begun after the deadline; an interrupt waits for those under way. Pairs that the
    scorer leaves out are asked again by the next collection.

    Returns the report. Raises InputError for a scorer without a fingerprint if the store has a
    file, and for a full disk; ScorerError for a score that is not finite, or if nothing can be
    scored. Whatever was scored before stays.
    """
    limits, fingerprint = limits or Limits(), fingerprint_of(scorer, store)
    run = Run(store, fingerprint, queries, items, pairs, limits, progress)
    with _exclusive(store, run.deadline):
        run.begin()
        began = time.monotonic()
        try:
            if limits.ray is None:
                _on_threads(run, scorer)
            else:
                from crossknn.scores.ray import score_on_ray

                score_on_ray(run, source)
        finally:
            store.record_time(fingerprint, run.computed, time.monotonic() - began)
    if run.failure and not run.scored + run.reused:
        raise NothingScoredError(run.failure)
    if run.failed:
        logger.warning("%d pairs could not be scored; they stay unscored", run.failed)
    complete = run.scored + run.reused == run.total
    return CollectReport(
        pairs=run.total,
        reused=run.reused,
        scored=run.scored,
        calls=run.computed + run.failed,
        failed=run.failed,
        seconds=time.monotonic() - began,
        stopped_by=None if complete else "deadline" if run.deadline.over() else run.stopped_by,
    )


def dense_scores(
    store: ScoreStore,
    scorer: Scorer,
    queries: Sequence[str],
    items: Sequence[str],
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> FloatArray:
    """Exact scores (q, n) of every query with every item: collected, and read from the store.

    Raises what `collect` does, and ScorerError if a pair has no score.
    """
    collect(store, scorer, queries, items, limits=limits, progress=progress)
    scores = store.rows(fingerprint_of(scorer, store), queries, items)
    if len(missing := np.argwhere(np.isnan(scores))):
        query, item = missing[0]
        raise ScorerError(
            f"query {query} and item {item} could not be scored, so exact search is not known"
        )
    scores.flags.writeable = False
    return scores


def fingerprint_of(scorer: Scorer, store: ScoreStore) -> str:
    """The scorer's fingerprint; InputError if it has none, and its scores would outlive it."""
    if scorer.fingerprint is None and store.path is not None:
        raise InputError(
            f"the cross-encoder has no fingerprint, so that its scores in {store.path} could be "
            "mistaken for another model's: name it (--model NAME for a URL; name='...' for a "
            "function)"
        )
    return scorer.fingerprint or f"unnamed-{id(scorer)}"


def _on_threads(run: Run, scorer: Scorer) -> None:
    """Score blocks on threads that share the scorer; a single one scores where it is called."""

    def score(block: Pairs) -> Scored:
        keep = partial(run.keep, block)
        return score_block(scorer, block, run.queries, run.items, keep, run.deadline)

    def book(found: Scored, block: Pairs) -> None:
        run.book(block, found, stopped=run.deadline.over())

    workers = run.limits.workers
    if workers == 1:
        run_jobs(run, _BLOCK, 1, score, lambda jobs: jobs, book)
        return
    with ThreadPoolExecutor(workers, "crossknn-scoring") as pool:
        run_jobs(
            run,
            _BLOCK,
            workers,
            lambda block: pool.submit(score, block),
            lambda jobs: wait(jobs, return_when=FIRST_COMPLETED).done,
            lambda job, block: book(job.result(), block),
        )


@contextmanager
def _exclusive(store: ScoreStore, deadline: Deadline) -> Iterator[None]:
    """One process, and one thread, at a time collects into a file; others wait, to the deadline.

    On systems without locks everyone goes on.
    """
    if store.path is None or os.name == "nt":
        yield
        return
    import fcntl

    lock = store.path.with_name(store.path.name + ".lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        why = error.strerror or error
        raise InputError(f"scores cannot be kept in {store.path}: {why}") from error
    try:
        waiting = False
        while not deadline.over():
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not waiting:
                    logger.info("another process is collecting into %s: waiting", store.path)
                waiting = True
                time.sleep(_POLL)
            except OSError:  # some network file systems have no locks
                break
        yield
    finally:
        os.close(handle)
