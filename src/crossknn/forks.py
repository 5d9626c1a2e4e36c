"""What a fork leaves behind.

The child of `os.fork` has the memory of its parent, but of its threads only the one that forked:
a lock that another thread held at that moment is never free in the child, which would wait for it
for ever. So calls that hold locks are counted, and a child that was forked during one refuses all
of them. A child that was forked while nothing ran searches as its parent does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from crossknn.errors import InputError

_calls = set[object]()  # under way in this process; adding and discarding are atomic
_lost = 0  # calls that were under way in the parent when this process was forked


def _forked() -> None:
    global _lost
    _lost += len(_calls)
    _calls.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


@contextmanager
def running() -> Iterator[None]:
    """Count a call that holds locks; `InputError` in a child forked during such a call."""
    if _lost:
        raise InputError(
            f"this process was forked while {_lost} searches or scorings ran in its parent, whose "
            "locks it would wait for for ever: fork before the first search, or start processes "
            "with multiprocessing's method 'spawn'"
        )
    call = object()
    _calls.add(call)
    try:
        yield
    finally:
        _calls.discard(call)
