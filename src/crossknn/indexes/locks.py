"""Folders on the disk: locks (on systems without them everyone goes on), and what a power cut
must not lose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crossknn.errors import InputError


@contextmanager
def locked(folder: Path, *, wait: bool) -> Iterator[None]:
    """One process at a time writes into `folder`; readers need no lock.

    Raises InputError if another one does, unless it should `wait`.
    """
    if os.name == "nt":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have no locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError(
                    f"another process is adding scores to {folder}; wait for it, or end it"
                ) from None
        yield
    finally:
        os.close(handle)


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """One process at a time adds scores: two would pay twice. Raises InputError if one does.

    The folder is made, and removed again if nothing has come into it.
    """
    if folder is None:
        yield
        return
    with suppress(OSError):  # whoever writes there will say why it cannot be
        folder.mkdir(exist_ok=True)
    if not folder.is_dir():
        yield
        return
    try:
        with locked(folder, wait=False):
            yield
    finally:
        with suppress(OSError):
            folder.rmdir()


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk: a kill loses none, a power cut might."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
