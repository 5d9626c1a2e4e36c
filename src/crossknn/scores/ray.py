"""Work on Ray (extra `ray`): workers in processes, on one machine or on many.

Each worker opens its model once and returns what it makes of small blocks, which the caller keeps.
A worker that is lost is started again, and does again the one block it was at.
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
    from crossknn.scorers.opening import CrossEncoder

    opened = _opener(source, "cross-encoder", CrossEncoder, cores=1)
    with _ray(workers, None if address == "local" else address) as ray:
        given = opened, fingerprint, [ray.put((queries, items))]
        with Workers(ray, partial(_Scoring, *given), workers) as each:
            yield _Remote(each, fingerprint)


class Workers:
    """Processes of Ray, each of which holds what `opened` returns; a call waits for a free one."""

    def __init__(self, ray: Any, opened: Callable[[], Any], count: int = 1, **options: Any) -> None:
        """`options` are Ray's, of an actor."""
        how = {"num_cpus": 1, "max_restarts": -1, "max_task_retries": _RETRIES} | options
        self._ray, self._tries = ray, how["max_task_retries"] + 1
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
        """What a method of what a worker holds returns; ScorerError if that cost all workers."""
        errors, actor = self._ray.exceptions, self._free.get()
        try:
            return self._ray.get(actor.ask.remote(method, *given))
        except errors.RayTaskError as error:
            if isinstance(error.cause, CrossknnError):
                raise error.cause from None
            raise ScorerError(f"a worker failed: {error.cause!r}") from error
        except errors.RayError as error:
            raise ScorerError(
                f"a worker could not start, or was lost (attempts: {self._tries}; perhaps memory "
                f"is short): {str(error).strip().splitlines()[-1]}"
            ) from error
        finally:
            self._free.put(actor)


class _Worker:
    """Holds a model or a store in a process of its own, opened once."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._open, self._held = opened, None

    def ask(self, method: str, *given: Any) -> Any:
        """What a method of it returns."""
        if self._held is None:
            try:
                self._held = self._open()
            except MissingExtraError as error:  # it could not be sent back
                raise InputError(str(error)) from None
        return getattr(self._held, method)(*given)


class _Remote:
    """The scorer as the collection sees it: a call waits for a free worker, and for its answer."""

    def __init__(self, workers: Workers, fingerprint: str) -> None:
        self._workers, self.fingerprint = workers, fingerprint

    def score(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], **limits: Any
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """The batches of the worker's own scorer, all at once."""
        yield from self._workers.ask("score", pairs)


class _Scoring:
    """A scorer on a worker; `texts` holds a reference to (queries, items)."""

    def __init__(self, opened: Callable[[], Scorer], fingerprint: str, texts: list[Any]) -> None:
        self._scorer = _checked(opened, fingerprint)
        self._texts = import_module("ray").get(texts[0])

    def score(self, block: Pairs) -> list[tuple[IntArray, FloatArray]]:
        """Batches of positions and scores."""
        return list(self._scorer.score(block, *self._texts))


def _opener(source: Any, what: str, opens: Callable[..., Any], **options: Any) -> Any:
    """What opens a model on a worker; `InputError` if only this process has it."""
    if not (isinstance(source, str | Path) or callable(source)):
        raise InputError(
            f"on Ray every worker opens the {what} itself: give its name or folder, not an object"
        )
    return source if callable(source) else partial(opens, source, **options)


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
