"""Several jobs at a time, wherever they are submitted to."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from types import FrameType
from typing import TypeVar

B = TypeVar("B")
J = TypeVar("J")
R = TypeVar("R")


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
    with interrupts_held() as came:
        while running or not (error or came):
            try:
                if not (error or came):
                    for block in islice(blocks, room - len(running)):
                        running[submit(block)] = block
                if not running:
                    break
                ended = wait(list(running))
            except BaseException as stop:
                if error or came:
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


@contextmanager
def interrupts_held() -> Iterator[list[int]]:
    """Holds an interrupt (Ctrl-C) back until the end, so that it tears nothing apart.

    The list tells whether one came. A second one is raised at once. On other threads, and where
    interrupts are handled in another way than Python's own, nothing is held back.
    """
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if came:
            signal.default_int_handler(number, frame)
        came.append(number)

    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield came
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield came
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if came:
        raise KeyboardInterrupt
