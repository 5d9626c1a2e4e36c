"""Work on several blocks of pairs at a time: on threads, or wherever jobs are submitted to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from itertools import islice
from typing import TypeVar

B = TypeVar("B")
J = TypeVar("J")
R = TypeVar("R")


def on_threads(
    work: Callable[[B], R], workers: int
) -> Callable[[Iterator[B]], Iterator[tuple[B, R]]]:
    """Does `work` for blocks, `workers` at a time; a single one works where it is called."""

    def alone(blocks: Iterator[B]) -> Iterator[tuple[B, R]]:
        for block in blocks:
            yield block, work(block)

    def together(blocks: Iterator[B]) -> Iterator[tuple[B, R]]:
        with ThreadPoolExecutor(workers, "crossknn-scoring") as pool:
            yield from in_flight(
                blocks,
                workers,
                lambda block: pool.submit(work, block),
                lambda jobs: wait(jobs, return_when=FIRST_COMPLETED).done,
                lambda job, block: job.result(),
            )

    return alone if workers == 1 else together


def in_flight(
    blocks: Iterator[B],
    room: int,
    submit: Callable[[B], J],
    wait: Callable[[list[J]], Iterable[J]],
    result: Callable[[J, B], R],
) -> Iterator[tuple[B, R]]:
    """Keep `room` jobs under way, each a block; yields them as they end.

    `blocks` that had no more are asked again whenever jobs have ended.

    After an error or an interrupt nothing is begun, but what is under way is waited for and
    yielded first: it is paid for. A second interrupt does not wait.
    """
    running: dict[J, B] = {}
    error: BaseException | None = None
    while running or not error:
        try:
            if not error:
                for block in islice(blocks, room - len(running)):
                    running[submit(block)] = block
            if not running:
                break
            ended = wait(list(running))
        except BaseException as stop:
            if error:
                raise
            error = stop
            continue
        for job in ended:
            block = running.pop(job)
            try:
                scored = result(job, block)
            except Exception as failure:
                error = error or failure
                continue
            yield block, scored
    if error:
        raise error
