"""Files of ours: what lies inside a folder of ours is a regular file of that folder, or is refused.

A folder may come from a stranger, and a link in it would lead a reading or a writing to any file of
the user. So every part of a name below the folder is opened without following links, and what was
opened is looked at, not its name. New files get random names, and are renamed when they are whole:
a kill or a power cut spoils none. One process at a time writes into a folder.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import stat
import sys
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedIOBase
from pathlib import Path, PurePath
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError

SCRATCH = 2**28
"""Bytes of an array from which on `scratch` keeps it in a file."""

MOST = 2**28
"""Bytes that `read_file` reads at most: no file of ours that is read whole is longer."""

SURPLUS, RATIO = 2**26, 32
"""What compressed data may unfold to: so many bytes, and so many times the size of the file. Scores
and vectors unfold to 1 to 3 times, texts to 3 to 10 times."""

Mode: TypeAlias = Literal["rb", "r+b", "ab", "x+b"]
"""To read; to change what is there; to add at the end, of a new file too; to make a new file."""

_HAS_DIR_FD = os.open in os.supports_dir_fd  # not on Windows
_FLAGS: dict[Mode, int] = {
    "rb": os.O_RDONLY,
    "r+b": os.O_RDWR,
    "ab": os.O_RDWR | os.O_APPEND | os.O_CREAT,
    "x+b": os.O_RDWR | os.O_CREAT | os.O_EXCL,
}
_SAFE = sum(  # a FIFO or a device neither blocks nor becomes the terminal of this process
    getattr(os, name, 0)
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY")
)
_KINDS = {
    stat.S_ISLNK: "a symbolic link",
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
}


def _refused(path: Path, mode: int, wanted: str = "regular file") -> InputError:
    what = next((kind for matches, kind in _KINDS.items() if matches(mode)), "a device")
    what = "a regular file" if stat.S_ISREG(mode) else what
    return InputError(f"{path} is {what}, where a {wanted} must be: it is not used")


@contextmanager
def _parent(folder: Path, name: str) -> Iterator[tuple[int | None, str]]:
    """A descriptor of the folder that holds the file `name` of `folder`, and the name there; where
    there are no such descriptors, None and the path. No part of `name` is followed as a link."""
    parts = PurePath(name).parts
    if not parts or PurePath(name).is_absolute() or ".." in parts:
        raise InputError(f"{name!r} is no name of a file in {folder}")
    if not _HAS_DIR_FD:
        for depth in range(1, len(parts)):
            above = folder.joinpath(*parts[:depth])
            if not stat.S_ISDIR(mode := os.lstat(above).st_mode):
                raise _refused(above, mode, "folder")
        yield None, str(folder / name)
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for depth, part in enumerate(parts[:-1], start=1):
            state = os.stat(part, dir_fd=handle, follow_symlinks=False)
            if not stat.S_ISDIR(state.st_mode):
                raise _refused(folder.joinpath(*parts[:depth]), state.st_mode, "folder")
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            outer, handle = handle, os.open(part, flags, dir_fd=handle)
            os.close(outer)
        yield handle, parts[-1]
    finally:
        os.close(handle)


def open_file(folder: Path, name: str, mode: Mode = "rb") -> BufferedIOBase:
    """Open the file `name` (perhaps `data-x/ids.npy`) of a folder of ours.

    The folder itself may be a link, as its user likes.

    Raises:
        OSError: As `open` does.
        InputError: For a link, a device, a pipe or a folder, below `folder`; and for changing a
            file that has another name elsewhere (a hard link).
    """
    with _parent(folder, name) as (handle, last):
        try:
            known = os.stat(last, dir_fd=handle, follow_symlinks=False)
        except FileNotFoundError:
            known = None
        if known is not None and not stat.S_ISREG(known.st_mode):
            raise _refused(folder / name, known.st_mode)
        file: Any = os.fdopen(os.open(last, _FLAGS[mode] | _SAFE, 0o666, dir_fd=handle), mode)
    try:  # what was opened may be something else than what was there before
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise _refused(folder / name, state.st_mode)
        if mode != "rb" and state.st_nlink > 1:
            raise InputError(
                f"{folder / name} has other names, which a change would change too (hard links): "
                "copy the folder, and use the copy"
            )
    except BaseException:
        file.close()
        raise
    found: BufferedIOBase = file
    return found


def is_file(folder: Path, name: str) -> bool:
    """Whether a folder of ours has the file `name`; `InputError` if that is no regular file."""
    try:
        with _parent(folder, name) as (handle, last):
            mode = os.stat(last, dir_fd=handle, follow_symlinks=False).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(mode):
        raise _refused(folder / name, mode)
    return True


def make_folder(path: Path) -> Path:
    """Make a folder inside one of ours, or see that what is there is one, and no link."""
    with suppress(FileExistsError):
        path.mkdir()
    if not stat.S_ISDIR(mode := path.lstat().st_mode):
        raise _refused(path, mode, "folder")
    return path


def read_file(folder: Path, name: str, most: int = MOST) -> bytes:
    """The content of a file of ours; errors as of `open_file`, `InputError` above `most` bytes."""
    with open_file(folder, name) as file:
        return _bounded(file, folder / name, most)


def read_given(path: Path, most: int = MOST) -> bytes:
    """The content of a file that the user names, perhaps by a link: `InputError` for a device, a
    pipe or a folder, above `most` bytes, and for what cannot be read."""
    try:
        with open_given(path) as file:
            return _bounded(file, path, most)
    except FileNotFoundError as error:
        raise InputError(f"there is no file {path}") from error
    except IsADirectoryError as error:
        raise InputError(f"{path} is a folder; give a file") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def open_given(path: Path) -> BufferedIOBase:
    """Open a file that the user names, perhaps by a link; `InputError` for a device or a pipe."""
    handle = os.open(path, os.O_RDONLY | (_SAFE & ~getattr(os, "O_NOFOLLOW", 0)))
    if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
        os.close(handle)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise _refused(path, mode)
    return os.fdopen(handle, "rb")


def _bounded(file: BufferedIOBase, path: Path, most: int) -> bytes:
    data = file.read(most + 1)
    if len(data) > most:
        raise InputError(f"{path} is longer than {most / 2**20:,.0f} MB: it is not read")
    return data


@contextmanager
def new_file(folder: Path, name: str) -> Iterator[BufferedIOBase]:
    """A file that takes the place of `name` when it is whole; after an error nothing changes.

    What had the name before, a link even, is left to itself.
    """
    part = str(PurePath(name).with_name(f"{secrets.token_hex(8)}.part"))
    try:
        with open_file(folder, part, "x+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        with _parent(folder, name) as (handle, last):
            made = PurePath(last).with_name(PurePath(part).name)
            os.replace(made, last, src_dir_fd=handle, dst_dir_fd=handle)
            if handle is not None:
                os.fsync(handle)
    except BaseException:  # an error or an interrupt leaves nothing of it
        with suppress(OSError), _parent(folder, part) as (handle, last):
            os.unlink(last, dir_fd=handle)
        raise


def write_file(folder: Path, name: str, data: bytes) -> None:
    """Write a file of ours that is there whole, or not at all."""
    with new_file(folder, name) as file:
        file.write(data)


@contextmanager
def filling(folder: Path) -> Iterator[Path]:
    """A new folder, for libraries that write files by themselves; at the end these take the places
    of those in `folder`, which is made if need be. No link that was there is followed."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        made = Path(scratch)
        yield made
        for path in sorted(made.rglob("*")):  # a folder before what it holds
            if path.is_dir():
                make_folder(folder / path.relative_to(made))
            else:
                sync(path)
                os.replace(path, folder / path.relative_to(made))
        sync(folder)


def remove_parts(folder: Path) -> None:
    """Remove what killed writings have left in a folder that this process has locked."""
    for path in folder.glob("*.part"):
        path.unlink(missing_ok=True)


def read_npz(
    folder: Path, name: str, keys: Collection[str] | None = None, prefixes: tuple[str, ...] = ()
) -> dict[str, NDArray[Any]]:
    """Arrays of an `.npz` file of ours: of the `keys`, of those that begin with one of the
    `prefixes`, or all; see `npz_arrays`."""
    with open_file(folder, name) as file:
        return npz_arrays(file, folder / name, keys, prefixes)


def npz_arrays(
    file: BufferedIOBase,
    path: Path,
    keys: Collection[str] | None = None,
    prefixes: tuple[str, ...] = (),
) -> dict[str, NDArray[Any]]:
    """Arrays of an open `.npz` file, the others unread; `InputError` unless all fits.

    A few kilobytes may claim to hold gigabytes, or unfold to them: together the arrays have
    `SURPLUS` bytes and `RATIO` times the file's at most, and each as many as its header says.
    """
    found = dict[str, NDArray[Any]]()
    try:
        room = SURPLUS + RATIO * os.fstat(file.fileno()).st_size
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():
                key = member.filename.removesuffix(".npy")
                if keys is None or key in keys or key.startswith(prefixes):
                    room -= member.file_size
                    if room < 0:
                        raise InputError(
                            f"{path} would unfold to more than {RATIO} times its size: if you "
                            "trust it, save its arrays again with numpy.savez, uncompressed"
                        )
                    with archive.open(member) as data:
                        found[key] = _npy_array(data, member.file_size)
    except (InputError, OSError):
        raise
    except MemoryError:
        raise InputError(f"{path} has arrays that do not fit into memory") from None
    except Exception:  # of damaged bytes, what reads them raises whatever it meets
        raise InputError(f"{path} is not a readable .npz file; see the docs, formats") from None
    return found


def _npy_array(data: Any, size: int) -> NDArray[Any]:
    """The array of a `.npy` file of so many bytes, not one of Python objects; else ValueError."""
    version = np.lib.format.read_magic(data)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    shape, by_columns, dtype = read[version](data)
    count = math.prod(shape)
    if dtype.hasobject or dtype.itemsize * count > size:
        raise ValueError("no array of so many bytes")
    values = np.empty(count, dtype)
    rest = values.view(np.uint8).data if values.nbytes else memoryview(b"")
    while rest:
        block = data.read(min(len(rest), 2**20))
        if not block:
            raise ValueError("it is cut")
        rest[: len(block)] = block
        rest = rest[len(block) :]
    if dtype.kind == "U" and (values.view(f"{dtype.byteorder}u4") > sys.maxunicode).any():
        raise ValueError("no characters")
    return values.reshape(shape, order="F" if by_columns else "C")


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text; `ValueError` for what is none, or is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def has_locks(folder: Path) -> bool:
    """Whether the file system of a folder has locks: some network file systems have none."""
    if os.name == "nt":
        return True
    import fcntl

    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


class LockedError(InputError):
    """Another process writes there."""


@contextmanager
def exclusive_lock(
    folder: Path, name: str | None = None, *, wait: bool = False, what: str = "scores"
) -> Iterator[None]:
    """One process at a time writes into the existing `folder`; readers need no lock.

    With a `name`, processes share the folder, and exclude each other by this file of it.

    Raises:
        LockedError: Another process writes `what` there; unless this one is to `wait`.
        InputError: The file system has no locks. Two writers would destroy what is there.
    """
    if os.name == "nt":
        yield
        return
    import fcntl

    if name is None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    else:
        with open_file(folder, name, "ab") as file:
            handle = os.dup(file.fileno())
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(
                f"another process is adding {what} to {folder}; wait for it, or end it"
            ) from None
        except OSError as error:
            raise InputError(
                f"{folder} is not written: its file system has no locks ({error.strerror}), so "
                "that two writers would destroy what is there; write on a local disk, and copy "
                "the folder from there"
            ) from error
        yield
    finally:
        os.close(handle)


@contextmanager
def translate_os_errors(folder: Path | None, what: str = "scores") -> Iterator[None]:
    """A full, missing or read-only disk is an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{what} cannot be kept in {folder}: {error.strerror or error}; what is there so far "
            "stays"
        ) from error


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk: a kill loses none, a power cut might."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def text_digest(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def digest(texts: Iterable[str]) -> str:
    """Names a sequence of texts: 32 hexadecimal digits."""
    total = hashlib.blake2b(digest_size=16)
    for text in texts:
        encoded = text.encode("utf-8", "replace")
        total.update(len(encoded).to_bytes(8, "little") + encoded)
    return total.hexdigest()


def scratch(shape: tuple[int, ...]) -> NDArray[np.float32]:
    """A new float32 array; a large one is mapped from a temporary file without a name, so that the
    system may drop its pages from memory. `InputError` if the disk has no room for it."""
    size = 4 * math.prod(shape)
    if size < SCRATCH:
        return np.empty(shape, np.float32)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):  # so that a full disk says so now
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, np.float32, "w+", shape=shape)
    except OSError as error:
        raise InputError(
            f"a temporary file of {size / 2**30:.1f} GB cannot be made in {tempfile.gettempdir()}: "
            f"{error.strerror or error}; name a folder with more room in TMPDIR"
        ) from error


def as_path(value: object, what: str) -> Path:
    """The path that `what` is given as; `InputError` for what no file system can have."""
    try:
        path = Path(value)  # type: ignore[arg-type]
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except (TypeError, ValueError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{what} is {value!r:.80}, which cannot be a path: {why}") from error
    return path
