"""Scoring on Ray (extra `ray`): workers in processes, on one machine or on a cluster.

Each worker opens the cross-encoder once and returns the scores of small blocks, which the caller
keeps. A worker that is lost is started again, and scores again the one block that it was at.
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

_LOSSES = 20  # of one worker: a block too large for its memory would cost it again and again
_PATIENCE = 5.0


@contextmanager
def scorer_on_ray(source: Any, fingerprint: str, workers: int, address: str) -> Iterator[Scorer]:
    """A scorer whose calls go to processes of one CPU each; Ray ends with it.

    Raises InputError if the cluster cannot be reached, has too few CPUs or another cross-encoder;
    MissingExtraError. The scorer raises ScorerError if one worker is lost again and again.

    Args:
        source: The name or folder of the cross-encoder, or one that can be pickled.
        fingerprint: The cross-encoder's, which that of every worker must be.
        workers: Number of processes.
        address: Of a cluster, or "local" to start Ray on this machine.
    """
    with _ray(workers, None if address == "local" else address) as ray:
        remote = _Remote(ray, source, fingerprint, workers)
        try:
            yield remote
        finally:
            for actor in remote.actors:
                ray.kill(actor)


class _Worker:
    """Holds the cross-encoder in a process of its own, opened at the first call."""

    def __init__(self, source: Any, fingerprint: str) -> None:
        self._source, self._fingerprint, self._opened = source, fingerprint, False

    def score(self, *given: Any) -> list[tuple[IntArray, FloatArray]]:
        """All batches of `Scorer.score`."""
        from crossknn.scorers.opening import CrossEncoder

        if not self._opened and isinstance(self._source, str | Path):
            try:
                self._source = CrossEncoder(self._source, cores=1)
            except MissingExtraError as error:  # it could not be sent back
                raise InputError(str(error)) from None
        self._opened = True
        if self._source.fingerprint != self._fingerprint:
            raise InputError(
                f"a worker opened the model {self._source.fingerprint}, but this is the work of "
                f"{self._fingerprint}; install the same one on every node"
            )
        return [*self._source.score(*given)]


class _Remote:
    """The scorer as the collection sees it: a call waits for a free worker, and for its answer."""

    def __init__(self, ray: Any, source: Any, fingerprint: str, workers: int) -> None:
        self._ray, self.fingerprint = ray, fingerprint
        # Restarts are what is limited: where a node is lost, a few tries fail before Ray knows it.
        worker = ray.remote(num_cpus=1, max_restarts=_LOSSES, max_task_retries=-1)(_Worker)
        try:
            self.actors = [worker.remote(source, fingerprint) for _ in range(workers)]
        except TypeError as error:  # it cannot be pickled
            raise InputError(
                "on Ray every worker opens the cross-encoder itself: give its name or folder, not "
                "an object"
            ) from error
        self._free = SimpleQueue[Any]()
        for actor in self.actors:
            self._free.put(actor)

    def score(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], **limits: Any
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """The batches of a worker's scorer, all at once; the worker gets the texts of these pairs
        alone, and no deadline."""
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
            raise ScorerError(
                "a worker could not start, or was lost (perhaps memory is short): "
                f"{str(error).strip().splitlines()[-1]}"
            ) from error
        finally:
            self._free.put(actor)


@contextmanager
def _ray(workers: int, address: str | None) -> Iterator[Any]:
    """Ray, as it runs in this process, or else started, or joined, and left at the end."""
    with needs_extra("scoring on Ray", "ray"):
        ray: Any = import_module("ray")
    ours = not ray.is_initialized()
    if ours:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        own = {} if address else {"num_cpus": workers, "include_dashboard": False}
        quiet = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
        try:
            if place := re.fullmatch(r"(?:ray://)?\[?(.+?)\]?:(\d+)", address or ""):
                # Ray itself would wait for minutes.
                socket.create_connection((place[1], int(place[2])), _PATIENCE).close()
            ray.init(address=address or "local", **quiet, **own)
        except (OSError, OverflowError, RuntimeError, ValueError) as error:
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
