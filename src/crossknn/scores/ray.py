"""Score on Ray (extra `ray`): worker processes on one machine or on a cluster.

Each worker opens the cross-encoder once and returns the scores of small blocks, which the caller
stores. A lost worker is restarted, and repeats only the block that it was scoring.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from crossknn.errors import CrossknnError, InputError, MissingExtraError, ScorerError, needs_extra
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, IntArray, Pairs

_LOSSES = 20  # restarts of a worker: a block that exceeds its memory would end it each time
_PATIENCE = 5.0


@contextmanager
def scorer_on_ray(source: Any, fingerprint: str, workers: int, address: str) -> Iterator[Scorer]:
    """Make a scorer that distributes calls over `workers` processes of one CPU each. `source` is
    the cross-encoder's name or folder, or a cross-encoder object that can be pickled; `address` is
    the address of a cluster, or "local"."""
    with needs_extra("scoring on Ray", "ray"):
        ray: Any = import_module("ray")
    started_here = not ray.is_initialized()
    if started_here:
        _start(ray, workers, address)
    try:
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if cpus < workers:
            raise InputError(f"the Ray cluster has {cpus} CPUs, too few for {workers} workers")
        remote = _Remote(ray, source, fingerprint, workers)
        try:
            yield remote
        finally:
            for actor in remote.actors:
                ray.kill(actor)
    finally:
        if started_here:
            ray.shutdown()


def _start(ray: Any, workers: int, address: str) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    logging.getLogger("ray").setLevel(logging.ERROR)
    own = {"num_cpus": workers, "include_dashboard": False} if address == "local" else {}
    quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    try:
        if place := re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address):
            # Without this check, Ray would wait for minutes.
            socket.create_connection((place[1], int(place[2])), _PATIENCE).close()
        ray.init(address=address, **quiet, **own)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"no Ray cluster answers at {address}: {why}") from error


class _Worker:
    def __init__(self, source: Any, fingerprint: str) -> None:
        self._source, self._fingerprint = source, fingerprint

    def score(self, *given: Any) -> list[tuple[IntArray, FloatArray]]:
        """Score pairs, and return all batches; see `Scorer.score`."""
        from crossknn.scorers.opening import CrossEncoder

        if isinstance(self._source, str | Path):
            try:
                self._source = CrossEncoder(self._source, cores=1)
            except MissingExtraError as error:  # it could not be sent back
                raise InputError(str(error)) from None
        if self._source.fingerprint != self._fingerprint:
            raise InputError(
                f"a worker opened the model {self._source.fingerprint}, but "
                f"{self._fingerprint} is needed; install the same model on every node"
            )
        return [*self._source.score(*given)]


class _Remote:
    """The scorer in the collecting process: `score` waits for a free worker and its answer."""

    def __init__(self, ray: Any, source: Any, fingerprint: str, workers: int) -> None:
        self._ray, self.fingerprint = ray, fingerprint
        # Limit restarts, not retries: if a node is lost, a few tries fail before Ray notices.
        worker = ray.remote(num_cpus=1, max_restarts=_LOSSES, max_task_retries=-1)(_Worker)
        try:
            self.actors = [worker.remote(source, fingerprint) for _ in range(workers)]
        except TypeError as error:  # it cannot be pickled
            raise InputError(
                "on Ray every worker opens the cross-encoder itself: give its name or folder "
                "instead of an object"
            ) from error
        self._free = SimpleQueue[Any]()
        for actor in self.actors:
            self._free.put(actor)

    def score(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], **limits: Any
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Score pairs on a free worker, and return all batches together. The worker gets only the
        texts of these pairs, and no deadline."""
        query, query_of = np.unique(pairs.query, return_inverse=True)
        item, item_of = np.unique(pairs.item, return_inverse=True)
        texts = [queries[q] for q in query.tolist()], [items[i] for i in item.tolist()]
        errors, actor = self._ray.exceptions, self._free.get()
        try:
            yield from self._ray.get(actor.score.remote(Pairs(query_of, item_of), *texts))
        except errors.RayTaskError as error:
            if isinstance(error.cause, CrossknnError):
                raise error.cause from None
            raise ScorerError(f"a worker failed: {error.cause!r}") from error
        except errors.RayError as error:
            why = str(error).strip().splitlines()[-1]
            raise ScorerError(f"a worker was lost (perhaps it ran out of memory): {why}") from error
        finally:
            self._free.put(actor)
