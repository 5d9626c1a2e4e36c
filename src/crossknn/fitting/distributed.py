"""The collection of G on Ray (extra `ray`): workers in processes, on one machine or on many.

Each worker opens the cross-encoder once and writes the blocks it scores into the folder of the
bank, which every node must see; the driver merges them into their shards. A worker that is lost
is started again, and scores again the one block it was at.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import CrossknnError, InputError, MissingExtraError, ScorerError
from crossknn.fitting.bank import ScoreBank
from crossknn.fitting.blocks import Block
from crossknn.fitting.collect import CollectReport, fill
from crossknn.fitting.workers import open_with_cores
from crossknn.scorers.base import Scorer
from crossknn.scorers.paying import Scored, score_block
from crossknn.scorers.threads import in_flight
from crossknn.types import Pairs, Progress

_AHEAD = 2
"""Blocks a worker has been given: the one it scores, and the next."""

_RETRIES = 3

_LOST = r"^Task _Worker\.score failed|^A worker died"
"""What Ray prints on stdout when a worker is lost and its block given to another one."""


def collect_on_ray(
    bank: ScoreBank,
    scorer: str | Path | Callable[[], Scorer],
    queries: Sequence[str],
    pairs: Pairs,
    *,
    workers: int,
    address: str | None = None,
    max_calls: int | None = None,
    deadline: float | None = None,
    progress: Progress | None = None,
) -> CollectReport:
    """`collect` by `workers` processes of one CPU each; its scores are the same bit for bit.

    `scorer` is a name or folder, or a function that opens one: each worker calls it, and checks
    that it has the bank's fingerprint. Ray is started on this machine, unless it runs in this
    process already, or `address` is that of a cluster, where crossknn and the cross-encoder must
    be installed. A worker is given a block ahead, which it still scores after the `deadline`.

    Raises what `collect` does; InputError if the bank has no folder, or the cluster too few CPUs
    or another cross-encoder; ScorerError if a block cost four workers; MissingExtraError.
    """
    if workers < 1:
        raise InputError(f"workers is {workers}; it must be 1 or more")
    if bank.folder is None:
        raise InputError("scores collected on Ray need a folder, which every node must see")
    opened = scorer if callable(scorer) else partial(open_with_cores, scorer, 1)
    folder = bank.folder.resolve()
    with _ray(workers, address) as ray:
        actor = ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=_RETRIES)(_Worker)
        actors = [
            actor.remote(opened, bank.fingerprint, folder, bank.token) for _ in range(workers)
        ]
        texts = [ray.put((queries, bank.items))]

        def run(blocks: Iterator[Block]) -> Iterator[tuple[Block, Scored]]:
            free, busy = actors * _AHEAD, dict[Any, Any]()

            def submit(block: Block) -> Any:
                worker = free.pop(0)
                job = worker.score.remote(block, texts)
                busy[job] = worker
                return job

            def result(job: Any, block: Block) -> Scored:
                free.append(busy.pop(job))
                why, hits = _answer(ray, job)
                found = np.fromfile(block.file(folder, bank.token), "<f4")
                return Scored(found[block.places - block.start], why, hits)

            return in_flight(blocks, len(free), submit, lambda jobs: ray.wait(jobs)[0], result)

        try:
            return fill(
                bank,
                queries,
                pairs,
                run,
                max_calls=max_calls,
                deadline=deadline,
                progress=progress,
            )
        finally:
            for worker in actors:
                ray.kill(worker)


class _Worker:
    """Scores blocks in a process of its own, for which it opens the cross-encoder once."""

    def __init__(
        self, opened: Callable[[], Scorer], fingerprint: str | None, folder: Path, token: str
    ) -> None:
        self._open, self._fingerprint = opened, fingerprint
        self._folder, self._token = folder, token
        self._ready: tuple[Scorer, Sequence[str], Sequence[str]] | None = None

    def score(self, block: Block, texts: list[Any]) -> tuple[str | None, int]:
        """Writes the scores of a block; returns the rest of `Scored`.

        `texts` holds a reference to the texts of (queries, items).
        """
        if self._ready is None:
            self._ready = self._opened(), *import_module("ray").get(texts[0])
        scorer, queries, items = self._ready
        scores, why, hits = score_block(scorer, block.pairs, queries, items)
        found = np.full(block.room, np.nan, dtype="<f4")
        found[block.places - block.start] = scores
        path = block.file(self._folder, self._token)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        part.write_bytes(found.tobytes())
        os.replace(part, path)
        return why, hits

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


def _answer(ray: Any, job: Any) -> tuple[str | None, int]:
    """What a worker answered, or the error it raised."""
    try:
        answer: tuple[str | None, int] = ray.get(job)
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
