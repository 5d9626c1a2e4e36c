"""Collecting on Ray (extra `ray`): workers in processes, on one machine or on many.

Each worker opens the scorer once and returns the scores of small blocks, which the driver keeps. A
worker that is lost is started again, and scores again the one block it was at.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import CrossknnError, InputError, MissingExtraError, ScorerError
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import Deadline
from crossknn.scores.run import Run, Scored, run_jobs, score_block
from crossknn.types import FloatArray, Pairs

_BLOCK = 64
_AHEAD = 2  # blocks a worker has been given: the one it scores, and the next
_RETRIES = 3
_LOST = r"^Task _Worker\.score failed|^A worker died"
"""What Ray prints on stdout when a worker is lost and its block given to another one."""


def score_on_ray(run: Run, source: str | Path | Callable[[], Scorer] | None) -> None:
    """Score the run's blocks by processes of one CPU each.

    Raises InputError if the cluster has too few CPUs or another cross-encoder, or there is no
    `source` to open it from; ScorerError if a block cost four workers; MissingExtraError.
    """
    if source is None:
        raise InputError(
            "on Ray every worker opens the cross-encoder itself: give its name or folder, not an "
            "object"
        )
    from crossknn.scorers.opening import open_with_cores

    workers, address = run.limits.workers, run.limits.ray
    opened = source if callable(source) else partial(open_with_cores, source, 1)
    with _ray(workers, None if address == "local" else address) as ray:
        actor = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=_RETRIES)(_Worker)
        actors = [actor.remote(opened, run.fingerprint) for _ in range(workers)]
        texts, free, busy = [ray.put((run.queries, run.items))], actors * _AHEAD, dict[Any, Any]()

        def submit(block: Pairs) -> Any:
            worker = free.pop(0)
            job = worker.score.remote(block, texts)
            busy[job] = worker
            return job

        def finish(job: Any, block: Pairs) -> None:
            free.append(busy.pop(job))
            scores, computed, why = _answer(ray, job)
            where = np.flatnonzero(~np.isnan(scores))
            run.keep(block, where, scores[where])
            run.book(block, Scored(len(where), computed, why), stopped=False)

        def ended(jobs: list[Any]) -> list[Any]:
            done: list[Any] = ray.wait(jobs)[0]
            return done

        try:
            run_jobs(run, _BLOCK, len(free), submit, ended, finish)
        finally:
            for worker in actors:
                ray.kill(worker)


class _Worker:
    """Scores blocks in a process of its own, for which it opens the cross-encoder once."""

    def __init__(self, opened: Callable[[], Scorer], fingerprint: str) -> None:
        self._open, self._fingerprint = opened, fingerprint
        self._ready: tuple[Scorer, list[str], list[str]] | None = None

    def score(self, block: Pairs, texts: list[Any]) -> tuple[FloatArray, int, str | None]:
        """Scores (b,), NaN where there is none, and the rest of `Scored`.

        `texts` holds a reference to the texts of (queries, items).
        """
        if self._ready is None:
            self._ready = self._opened(), *import_module("ray").get(texts[0])
        scorer, queries, items = self._ready
        found = np.full(len(block), np.nan, np.float32)
        scored = score_block(scorer, block, queries, items, found.put, Deadline())
        return found, scored.computed, scored.why

    def _opened(self) -> Scorer:
        try:
            scorer = self._open()
        except MissingExtraError as error:  # it could not be sent back
            raise InputError(str(error)) from None
        if scorer.fingerprint != self._fingerprint:
            raise InputError(
                f"a worker opened the cross-encoder {scorer.fingerprint}, but the scores are of "
                f"{self._fingerprint}; install the same one on every node"
            )
        return scorer


@contextmanager
def _ray(workers: int, address: str | None) -> Iterator[Any]:
    """Ray, as it runs in this process, or else started, or joined, and left at the end."""
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", _LOST)  # read when Ray is imported
    try:
        ray: Any = import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingExtraError("collecting scores on Ray", "ray") from error
    ours = not ray.is_initialized()
    if ours:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        own = {} if address else {"num_cpus": workers, "include_dashboard": False}
        try:
            ray.init(
                address=address or "local",
                log_to_driver=False,
                configure_logging=False,
                logging_level=logging.ERROR,
                **own,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            what = f"no Ray cluster answers at {address}" if address else "Ray does not start"
            raise InputError(f"{what}: {str(error).splitlines()[0]}") from error
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < workers:
            raise InputError(f"the Ray cluster has {cpus} CPUs, too few for {workers} workers")
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _answer(ray: Any, job: Any) -> tuple[FloatArray, int, str | None]:
    """What a worker answered, or the error it raised."""
    try:
        answer: tuple[FloatArray, int, str | None] = ray.get(job)
        return answer
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, CrossknnError):
            raise error.cause from None
        raise ScorerError(f"a worker failed: {error.cause!r}") from error
    except ray.exceptions.RayError as error:
        raise ScorerError(
            f"a worker could not start, or one block cost {_RETRIES + 1} of them their lives "
            f"(perhaps memory is short): {str(error).strip().splitlines()[-1]}"
        ) from error
