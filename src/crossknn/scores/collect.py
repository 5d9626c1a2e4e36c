"""Collect exact scores: resumable, on several threads.

Every batch of scores is stored at once, so an interruption costs at most the requests in flight.
Processes that collect into the same file wait for each other, and use each other's scores.

Axes: q queries, n items, p pairs, b pairs of a block.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.files import LockedError, exclusive_lock, translate_os_errors
from crossknn.scorers.base import Scorer
from crossknn.scorers.opening import as_scorer
from crossknn.scorers.streaming import Deadline, NothingScoredError
from crossknn.scores.store import ScoreStore
from crossknn.types import FloatArray, IntArray, Pairs, Progress, as_count, as_positive

logger = logging.getLogger(__name__)
_BLOCK = 512
_AT_ONCE = 65_536
_HOPELESS = 8  # blocks in a row without any scored pair: the model is broken
_POLL = 0.2


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Resources and limits of a collection of scores.

    Args:
        workers: Threads that share the scorer.
        max_calls: Number of pairs to score before stopping.
        deadline: Time limit in seconds.
    """

    workers: int = 1
    max_calls: int | None = None
    deadline: float | None = None

    def __post_init__(self) -> None:
        as_count(self.workers, "workers")
        if self.max_calls is not None:
            as_count(self.max_calls, "max_calls", 0)
        if self.deadline is not None:
            as_positive(self.deadline, "deadline")


@dataclass(kw_only=True)
class CollectReport:
    """The result of a collection, with the number of distinct `pairs` of texts.

    `reused` pairs already had a score, `scored` were scored now, by `calls` cross-encoder
    computations, and `failed` could not be scored. `stopped_by` is "max_calls", "deadline" or None.
    """

    pairs: int = 0
    reused: int = 0
    scored: int = 0
    calls: int = 0
    failed: int = 0
    seconds: float = 0.0
    stopped_by: str | None = None

    @property
    def complete(self) -> bool:
        """Whether every pair has a score."""
        return self.reused + self.scored == self.pairs


def collect(
    store: ScoreStore,
    scorer: Any,
    queries: Sequence[str],
    items: Sequence[str],
    pairs: Pairs | None = None,
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> CollectReport:
    """Score the pairs that the store does not have, and store them batch by batch.

    No batch is started after the deadline; an interrupt waits for batches in progress. Pairs that
    failed are tried again by the next collection. All finished scores are kept.

    Args:
        store: The store of scores, such as `index.scores`.
        scorer: The cross-encoder, in any form that `Searcher` accepts, with a fingerprint if the
            store is a file.
        queries, items: Texts (q) and (n); pairs of equal texts are scored once.
        pairs: Positions (p,) of queries and items, scored in order; by default every query with
            every item.
        limits: Resources and limits; by default one thread and no limit.
        progress: Called with (distinct pairs scored so far, distinct pairs in all).
    """
    limits, scorer = limits or Limits(), as_scorer(scorer)
    fingerprint, limit = fingerprint_of(scorer, store), store.table().limit
    for what, texts in (("queries", queries), ("items", items)):
        if isinstance(texts, str | Mapping) or hasattr(texts, "columns"):
            raise InputError(f"the {what} are a {type(texts).__name__}; give a list of texts")
    n_pairs = len(queries) * len(items) if pairs is None else len(pairs)
    if 4 * n_pairs > limit:
        raise InputError(
            f"{n_pairs:,} scores do not fit into a store of {limit // 2**20:,} MB, where new "
            "scores would replace the first ones: set CROSSKNN_STORE_LIMIT to more MB, or "
            "collect fewer scores"
        )
    run = _Collection(store, fingerprint, queries, items, limits, progress)
    with _exclusive(store.path, run.deadline):
        portions = run.portions(pairs)
        began = time.monotonic()
        run.score(scorer, portions)
    report = run.report
    report.seconds = time.monotonic() - began
    if run.failure and not report.scored + report.reused:
        raise NothingScoredError(run.failure)
    if report.failed:
        logger.warning("%d pairs could not be scored; they stay unscored", report.failed)
    if report.complete:
        report.stopped_by = None
    elif run.deadline.over():
        report.stopped_by = "deadline"
    return report


def exact_scores(
    store: ScoreStore,
    scorer: Scorer,
    queries: Sequence[str],
    items: Sequence[str],
    *,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> FloatArray:
    """Collect the exact scores (q, n) float32 of every query with every item, read-only; arguments
    as for `collect`. ScorerError if a pair has no score."""
    scorer = as_scorer(scorer)
    collect(store, scorer, queries, items, limits=limits, progress=progress)
    scores = store.rows(fingerprint_of(scorer, store), queries, items)
    if len(missing := np.argwhere(np.isnan(scores))):
        query, item = missing[0]
        raise ScorerError(
            f"query {query} and item {item} could not be scored, so the exact results are unknown"
        )
    scores.flags.writeable = False
    return scores


def fingerprint_of(scorer: Scorer, store: ScoreStore) -> str:
    """The scorer's fingerprint; InputError without one if its scores would be kept in a file."""
    if scorer.fingerprint is None and store.path is not None:
        raise InputError(
            f"the cross-encoder has no fingerprint, so its scores in {store.path} could be "
            "mistaken for another model's: name it (model='...' for an endpoint, "
            "--endpoint-model on the command line; name='...' for a function)"
        )
    if scorer.fingerprint is not None:
        return scorer.fingerprint
    # Keep the scorer alive: a later object could get the same id(), and with it these scores.
    store.unnamed[id(scorer)] = scorer
    return f"unnamed-{id(scorer)}"


@dataclass
class _Collection:
    store: ScoreStore
    fingerprint: str
    queries: Sequence[str]
    items: Sequence[str]
    limits: Limits
    progress: Progress | None

    def __post_init__(self) -> None:
        self.report, self.failure, self._hopeless = CollectReport(), "", 0
        self._lock, self._stop = threading.Lock(), threading.Event()
        self.deadline = Deadline(self.limits.deadline, self._stop)

    def portions(self, pairs: Pairs | None) -> Iterator[Pairs]:
        """Count the distinct pairs of texts, and return an iterator that yields each of them
        once, in order."""
        self._table = self.store.table()
        self._query_ids = self._table.ids("queries", self.queries, add=True, keep=True)
        self._item_ids = self._table.ids("items", self.items, add=True)
        if pairs is None:
            rows, columns = _first(self._query_ids), _first(self._item_ids)
            self.report.pairs = len(rows) * len(columns)
            return (Pairs(np.full(len(columns), row), columns) for row in rows.tolist())
        # Ids are below 2**31, so that a pair of them fits into one 64-bit integer.
        chosen = _first((self._query_ids[pairs.query] << 32) + self._item_ids[pairs.item])
        self.report.pairs = len(chosen)
        return (pairs.take(chosen[at : at + _AT_ONCE]) for at in range(0, len(chosen), _AT_ONCE))

    def score(self, scorer: Scorer, portions: Iterator[Pairs]) -> None:
        """Keep every worker busy with blocks of pairs. After an error or an interrupt no block is
        started, and those in progress are waited for."""
        blocks, running = self._blocks(portions), set[Future[None]]()
        workers = self.limits.workers
        self._count(0)
        with ThreadPoolExecutor(workers, "crossknn-scoring") as pool:
            try:
                while True:
                    room = 0 if self.deadline.over() else workers - len(running)
                    for block in islice(blocks, room):
                        running.add(pool.submit(self._score, scorer, block))
                    if not running:
                        break
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    for job in done:
                        job.result()
                for _ in blocks:  # counts the pairs that have scores
                    pass
            except BaseException:
                self._stop.set()
                raise

    def _blocks(self, portions: Iterator[Pairs]) -> Iterator[Pairs]:
        """Yield pairs (b,) without a score, in order, until `max_calls` is reached."""
        left = math.inf if self.limits.max_calls is None else self.limits.max_calls
        for pairs in portions:
            ids = self._query_ids[pairs.query], self._item_ids[pairs.item]
            scores = self._table.lookup(self.fingerprint, *ids)
            missing = pairs.take(np.flatnonzero(np.isnan(scores)))
            with self._lock:
                self.report.reused += len(pairs) - len(missing)
            if left < len(missing):
                self.report.stopped_by = "max_calls"
                missing = missing.take(slice(int(left)))
            left -= len(missing)
            for start in range(0, len(missing), _BLOCK):
                yield missing.take(slice(start, start + _BLOCK))

    def _score(self, scorer: Scorer, block: Pairs) -> None:
        scored, why = 0, ""
        stream = scorer.score(block, self.queries, self.items, **self.deadline.rest())
        try:
            for where, scores in stream:
                ids = self._query_ids[block.query[where]], self._item_ids[block.item[where]]
                self._table.insert(self.fingerprint, *ids, scores)
                self._count(len(where))
                scored += len(where)
        except NothingScoredError as error:
            why = str(error)
        with self._lock:
            failed = 0 if self.deadline.over() else len(block) - scored
            self.report.failed += failed
            self.report.calls += int(getattr(stream, "computed", scored)) + failed
            self.failure = why or self.failure
            self._hopeless = 0 if scored else self._hopeless + bool(why)
            if self._hopeless == _HOPELESS:
                raise NothingScoredError(
                    f"no pair of {_HOPELESS} blocks in a row could be scored: {why}"
                )

    def _count(self, scored: int) -> None:
        with self._lock:
            self.report.scored += scored
            if self.progress:
                self.progress(self.report.reused + self.report.scored, self.report.pairs)


def _first(values: IntArray) -> IntArray:
    """Return the positions of the first occurrence of each value, ascending."""
    return np.sort(np.unique(values, return_index=True)[1])


@contextmanager
def _exclusive(path: Path | None, deadline: Deadline) -> Iterator[None]:
    """Hold a lock so that one process and thread at a time collects into a file; others wait until
    the deadline."""
    with ExitStack() as held:
        while path is not None and not deadline.over():
            try:
                with translate_os_errors(path):
                    held.enter_context(exclusive_lock(path.parent, f"{path.name}.lock"))
                break
            except LockedError:
                time.sleep(_POLL)
        yield
