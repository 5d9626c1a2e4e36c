"""Work on Ray (extra `ray`): workers in processes, on one machine or on many.

Each worker opens its model once and returns what it makes of small blocks, which the caller keeps.
A worker that is lost is started again, and does again the one block it was at.
"""

from __future__ import annotations

import logging
import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from crossknn.errors import CrossknnError, InputError, MissingExtraError, ScorerError, needs_extra
from crossknn.scorers.base import Scorer
from crossknn.types import FloatArray, IntArray, Pairs, Progress

_LOSSES = 20  # of one worker: a block too large for its memory would cost it again and again
_BLOCK = 256  # texts that a worker encodes at once
_PATIENCE = 5.0


@contextmanager
def scorer_on_ray(source: Any, fingerprint: str, workers: int, address: str) -> Iterator[Scorer]:
    """A scorer whose calls go to processes of one CPU each; Ray ends with it.

    Raises InputError if the cluster cannot be reached, has too few CPUs or another cross-encoder,
    or there is no `source` to open it from; MissingExtraError. The scorer raises ScorerError if one
    worker is lost again and again.
    """
    from crossknn.scorers.opening import CrossEncoder

    opened = _opener(source, "cross-encoder", CrossEncoder)
    with _models(opened, fingerprint, workers, address) as each:
        yield _Remote(each, fingerprint)


def encode_on_ray(
    source: Any,
    fingerprint: str | None,
    texts: Sequence[str],
    workers: int,
    address: str,
    progress: Progress | None = None,
) -> FloatArray:
    """Vectors (n, d) of items by a dual encoder, made by processes of one CPU each.

    Raises as `scorer_on_ray` and its scorer do.
    """
    from crossknn.scorers.opening import DualEncoder

    opened, found, n = _opener(source, "dual encoder", DualEncoder), [], len(texts)
    with (
        _models(opened, fingerprint, workers, address) as each,
        ThreadPoolExecutor(workers, "crossknn-encoding") as pool,
    ):

        def encode(start: int) -> FloatArray:
            return each.ask("encode_items", [*texts[start : start + _BLOCK]])

        for vectors in pool.map(encode, range(0, n, _BLOCK)):
            found.append(vectors)
            if progress:
                progress(min(len(found) * _BLOCK, n), n)
    return np.concatenate(found)


class Workers:
    """Processes of Ray, each of which holds what `opened` returns; a call waits for a free one."""

    def __init__(self, ray: Any, opened: Callable[[], Any], count: int = 1, **options: Any) -> None:
        """`options` are Ray's, of an actor."""
        # What counts are restarts: when a node is lost, a few tries are over before Ray knows it.
        how = {"num_cpus": 1, "max_restarts": _LOSSES, "max_task_retries": -1} | options
        self._ray = ray
        self.actors = [ray.remote(**how)(_Worker).remote(opened) for _ in range(count)]
        self._free = SimpleQueue[Any]()
        for actor in self.actors:
            self._free.put(actor)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *error: object) -> None:
        for actor in self.actors:
            self._ray.kill(actor)

    def ask(self, method: str, *given: Any) -> Any:
        """What a method of what a worker holds returns; ScorerError if the worker is lost."""
        errors, actor = self._ray.exceptions, self._free.get()
        try:
            return self._ray.get(actor.ask.remote(method, *given))
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


class _Worker:
    """Holds a model or a store in a process of its own, opened once."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._open, self._held = opened, None

    def ask(self, method: str, *given: Any) -> Any:
        """What a method of it returns, or all that it yields."""
        if self._held is None:
            try:
                self._held = self._open()
            except MissingExtraError as error:  # it could not be sent back
                raise InputError(str(error)) from None
        answer = getattr(self._held, method)(*given)
        return [*answer] if isinstance(answer, Iterator) else answer


class _Remote:
    """The scorer as the collection sees it: a call waits for a free worker, and for its answer."""

    def __init__(self, workers: Workers, fingerprint: str) -> None:
        self._workers, self.fingerprint = workers, fingerprint

    def score(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], **limits: Any
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """The batches of the worker's own scorer, all at once; it gets the texts of these pairs."""
        query, query_of = np.unique(pairs.query, return_inverse=True)
        item, item_of = np.unique(pairs.item, return_inverse=True)
        texts = [queries[q] for q in query.tolist()], [items[i] for i in item.tolist()]
        yield from self._workers.ask("score", Pairs(query_of, item_of), *texts)


@contextmanager
def _models(
    opened: Callable[[], Any], fingerprint: str | None, workers: int, address: str
) -> Iterator[Workers]:
    """Workers that each hold the model of this fingerprint."""
    with (
        _ray(workers, None if address == "local" else address) as ray,
        Workers(ray, partial(_checked, opened, fingerprint), workers) as each,
    ):
        yield each


def _opener(source: Any, what: str, opens: Callable[..., Any]) -> Any:
    """What opens a model on a worker; `InputError` if only this process has it."""
    if not (isinstance(source, str | Path) or callable(source)):
        raise InputError(
            f"on Ray every worker opens the {what} itself: give its name or folder, not an object"
        )
    return source if callable(source) else partial(opens, source, cores=1)


def _checked(opened: Callable[[], Any], fingerprint: str | None) -> Any:
    """The model; `InputError` if it is another than the caller's."""
    model = opened()
    if model.fingerprint != fingerprint:
        raise InputError(
            f"a worker opened the model {model.fingerprint}, but this is the work of "
            f"{fingerprint}; install the same one on every node"
        )
    return model


@contextmanager
def _ray(workers: int, address: str | None) -> Iterator[Any]:
    """Ray, as it runs in this process, or else started, or joined, and left at the end."""
    with needs_extra("work on Ray", "ray"):
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
