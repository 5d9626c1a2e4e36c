"""Scoring on Ray (extra `ray`): workers in processes, on one machine or on many.

Each worker opens the scorer once and returns the scores of small blocks, which the caller keeps. A
worker that is lost is started again, and scores again the one block it was at.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from crossknn.errors import CrossknnError, InputError, MissingExtraError, ScorerError, needs_extra
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, IntArray, Pairs

_RETRIES = 3


@contextmanager
def scorer_on_ray(
    source: Any,
    fingerprint: str,
    queries: Sequence[str],
    items: Sequence[str],
    workers: int,
    address: str,
) -> Iterator[Scorer]:
    """A scorer of these texts whose calls go to processes of one CPU each; Ray ends with it.

    Raises InputError if the cluster has too few CPUs or another cross-encoder, or there is no
    `source` to open it from; MissingExtraError. The scorer raises ScorerError if a block cost four
    workers.
    """
    if not (isinstance(source, str | Path) or callable(source)):
        raise InputError(
            "on Ray every worker opens the cross-encoder itself: give its name or folder, not an "
            "object"
        )
    from crossknn.scorers.opening import CrossEncoder

    opened = source if callable(source) else partial(CrossEncoder, source, cores=1)
    with _ray(workers, None if address == "local" else address) as ray:
        actor = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=_RETRIES)(_Worker)
        actors = [actor.remote(opened, fingerprint) for _ in range(workers)]
        try:
            yield _Remote(ray, actors, [ray.put((queries, items))], fingerprint)
        finally:
            for worker in actors:
                ray.kill(worker)


class _Remote:
    """The scorer as the collection sees it: a call waits for a free worker, and for its answer."""

    def __init__(self, ray: Any, workers: list[Any], texts: list[Any], fingerprint: str) -> None:
        self._ray, self._texts, self.fingerprint = ray, texts, fingerprint
        self._free: SimpleQueue[Any] = SimpleQueue()
        for worker in workers:
            self._free.put(worker)

    def score(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], **limits: Any
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """The batches of the worker's own scorer, all at once."""
        ray, worker = self._ray, self._free.get()
        try:
            yield from ray.get(worker.score.remote(pairs, self._texts))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, CrossknnError):
                raise error.cause from None
            raise ScorerError(f"a worker failed: {error.cause!r}") from error
        except ray.exceptions.RayError as error:
            raise ScorerError(
                f"a worker could not start, or one block of pairs ended {_RETRIES + 1} workers "
                f"(perhaps memory is short): {str(error).strip().splitlines()[-1]}"
            ) from error
        finally:
            self._free.put(worker)


class _Worker:
    """Scores blocks in a process of its own, for which it opens the cross-encoder once."""

    def __init__(self, opened: Callable[[], Scorer], fingerprint: str) -> None:
        self._open, self._fingerprint = opened, fingerprint
        self._scorer: Scorer | None = None

    def score(self, block: Pairs, texts: list[Any]) -> list[tuple[IntArray, FloatArray]]:
        """Batches of positions and scores; `texts` holds a reference to (queries, items)."""
        if self._scorer is None:
            try:
                scorer = self._open()
            except MissingExtraError as error:  # it could not be sent back
                raise InputError(str(error)) from None
            if scorer.fingerprint != self._fingerprint:
                raise InputError(
                    f"a worker opened the cross-encoder {scorer.fingerprint}, but the scores are "
                    f"of {self._fingerprint}; install the same one on every node"
                )
            self._scorer, self._texts = scorer, import_module("ray").get(texts[0])
        return list(self._scorer.score(block, *self._texts))


@contextmanager
def _ray(workers: int, address: str | None) -> Iterator[Any]:
    """Ray, as it runs in this process, or else started, or joined, and left at the end."""
    with needs_extra("collecting scores on Ray", "ray"):
        ray: Any = import_module("ray")
    ours = not ray.is_initialized()
    if ours:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        own = {} if address else {"num_cpus": workers, "include_dashboard": False}
        quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
        try:
            ray.init(address=address or "local", **quiet, **own)
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
