"""Threads that the interpreter waits for before it ends."""

from __future__ import annotations

import atexit
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any
from weakref import WeakKeyDictionary

PATIENCE = 10.0
"""Seconds that the end of the interpreter waits for all of them, at most."""
_started: WeakKeyDictionary[Thread, Callable[[], object]] = WeakKeyDictionary()


def start(
    name: str, target: Callable[..., object], *args: Any, stop: Callable[[], object] | None = None
) -> Thread:
    """Start a thread that may be in native code when the program ends.

    A daemon thread that comes back from native code (ONNX Runtime, tokenizers, faiss) to an
    interpreter that has ended aborts the process; one that is no daemon keeps it from ending if it
    hangs. So it is a daemon, and the end waits for it.

    Args:
        name: Of the thread.
        target, args: What it runs.
        stop: Called at the end of the interpreter, so that a thread that waits for work ends, too.

    Returns:
        The thread, which runs.
    """
    thread = Thread(target=target, args=args, name=name, daemon=True)
    _started[thread] = stop or (lambda: None)
    thread.start()
    return thread


@atexit.register
def _wait() -> None:
    """Wait for the threads; a second Ctrl-C ends that."""
    until = time.monotonic() + PATIENCE
    with suppress(KeyboardInterrupt):
        alive = [(thread, stop) for thread, stop in _started.items() if thread.is_alive()]
        for _, stop in alive:
            stop()
        for thread, _ in alive:
            thread.join(max(0.0, until - time.monotonic()))
