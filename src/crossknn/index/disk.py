"""Scores and states on the disk: who may add to a folder, and what a kill or a power cut must not
lose."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from crossknn.errors import InputError


@contextmanager
def locked(folder: Path, *, wait: bool, what: str = "scores") -> Iterator[None]:
    """One process at a time writes into `folder`; readers need no lock.

    Raises InputError if another one does, or has just removed the folder, unless it should `wait`.
    On systems without locks everyone goes on.
    """
    if os.name == "nt":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        busy = False
        with suppress(OSError):  # some network file systems have no locks
            try:
                fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not wait:
                    busy = not os.path.samestat(os.fstat(handle), folder.stat())
            except (BlockingIOError, FileNotFoundError):
                busy = True
        if busy:
            raise InputError(
                f"another process is adding {what} to {folder}; wait for it, or end it"
            )
        yield
    finally:
        os.close(handle)


@contextmanager
def alone(folder: Path | None, what: str = "scores") -> Iterator[None]:
    """One process at a time adds `what`: two would pay twice. Raises InputError if one does.

    The folder is made, and removed at the end if it is empty, unless it was there and empty before.
    """
    with ExitStack() as stack:
        theirs = folder is not None and _is_empty(folder)
        if folder is not None and _made(folder):
            with keeping(folder, what):
                stack.enter_context(locked(folder, wait=False, what=what))
            if not theirs:
                stack.callback(_remove_empty, folder)
        yield


def _is_empty(folder: Path) -> bool:
    try:
        return not any(folder.iterdir())
    except OSError:
        return False


def _made(folder: Path) -> bool:
    """Whether the folder is there now; if not, whoever writes there will say why it cannot be."""
    try:
        folder.mkdir(exist_ok=True)
    except OSError:
        return False
    return True


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


@contextmanager
def keeping(folder: Path | None, what: str = "scores") -> Iterator[None]:
    """Turns a full or missing disk into one sentence."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{what} cannot be kept in {folder}: {error.strerror or error}; what is there so far "
            "stays"
        ) from error


def put_file(path: Path, data: bytes) -> None:
    """A file that is there whole, or not at all."""
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(part, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk: a kill loses none, a power cut might."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
