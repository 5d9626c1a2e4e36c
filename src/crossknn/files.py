"""Read and write files of crossknn's folders safely, refusing links and special files.

A symbolic link in a stranger's folder could redirect a read or write to any file of the user. So
paths are opened without following links, and the opened file is checked, not its name. New files
are renamed when complete, so that a kill or a power cut damages no file.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import stat
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
"""`scratch` keeps arrays of at least this many bytes in a temporary file."""

MOST = 2**28
"""Maximum bytes of a file that is read into memory at once."""

SURPLUS, RATIO = 2**26, 32
"""Limits of decompressed data: this many bytes plus this multiple of the file's size. Scores and
vectors expand 1 to 3 times, texts 3 to 10 times."""

Mode: TypeAlias = Literal["rb", "r+b", "ab", "x+b"]
"""Modes: read, change in place, append (creating the file if needed), create."""

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
    stat.S_IFLNK: "symbolic link",
    stat.S_IFDIR: "folder",
    stat.S_IFIFO: "named pipe",
    stat.S_IFREG: "regular file",
}


def _refused(path: Path, mode: int, wanted: str = "regular file") -> InputError:
    kind = _KINDS.get(stat.S_IFMT(mode), "device")
    return InputError(f"{path} is a {kind}, but crossknn needs a {wanted}: it is not opened")


@contextmanager
def _parent(folder: Path, name: str) -> Iterator[tuple[int | None, str]]:
    """Open the folder that holds `name`, following no link below `folder`; return its descriptor
    and the file's name, or None and the path on Windows."""
    parts = PurePath(name).parts
    if not parts or PurePath(name).is_absolute() or ".." in parts:
        raise InputError(f"{name!r} is not a valid file name in {folder}")
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
    """Open the file `name` (such as `data-x/ids.npy`) in one of crossknn's folders; `InputError` if
    it is a link, device, pipe or folder, or if a file to be changed has hard links."""
    is_file(folder, name)  # InputError for another kind of file
    with _parent(folder, name) as (handle, last):
        opened = os.open(last, _FLAGS[mode] | _SAFE, 0o666, dir_fd=handle)
    file: Any = os.fdopen(opened, mode)
    try:  # the file may have been replaced since it was checked
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise _refused(folder / name, state.st_mode)
        if mode != "rb" and state.st_nlink > 1:
            raise InputError(
                f"{folder / name} has hard links, through which a change would affect other "
                "files: copy the folder, and use the copy"
            )
    except BaseException:
        file.close()
        raise
    return file


def is_file(folder: Path, name: str) -> bool:
    """Whether a folder has the file `name`; `InputError` if it is not a regular file."""
    try:
        with _parent(folder, name) as (handle, last):
            mode = os.stat(last, dir_fd=handle, follow_symlinks=False).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return False
    if not stat.S_ISREG(mode):
        raise _refused(folder / name, mode)
    return True


def make_folder(path: Path) -> Path:
    """Make a folder inside a folder of crossknn, or check that an existing one is no link."""
    with suppress(FileExistsError):
        path.mkdir()
    if not stat.S_ISDIR(mode := path.lstat().st_mode):
        raise _refused(path, mode, "folder")
    return path


def read_file(folder: Path, name: str) -> bytes:
    """Read a file in one of crossknn's folders; raises the errors of `open_file`."""
    with open_file(folder, name) as file:
        return _bounded(file, folder / name)


def read_given(path: Path) -> bytes:
    """Read a file that the user names, perhaps through a link; `InputError` if it cannot be read as
    a regular file."""
    try:
        with open_given(path) as file:
            return _bounded(file, path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def open_given(path: Path) -> BufferedIOBase:
    """Open a file that the user names, or a link to it; `InputError` for a device or a pipe."""
    handle = os.open(path, os.O_RDONLY | (_SAFE & ~getattr(os, "O_NOFOLLOW", 0)))
    if not stat.S_ISREG(mode := os.fstat(handle).st_mode):
        os.close(handle)
        raise _refused(path, mode)
    return os.fdopen(handle, "rb")


def _bounded(file: BufferedIOBase, path: Path) -> bytes:
    data = file.read(MOST + 1)
    if len(data) > MOST:
        raise InputError(f"{path} is longer than the limit of {MOST >> 20} MB for such a file")
    return data


@contextmanager
def new_file(folder: Path, name: str) -> Iterator[BufferedIOBase]:
    """Write a file that replaces `name` once it is complete (a link is replaced, not its target);
    after an error nothing changes."""
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
    except BaseException:  # after an error or an interrupt, remove the incomplete file
        with suppress(OSError), _parent(folder, part) as (handle, last):
            os.unlink(last, dir_fd=handle)
        raise


def write_file(folder: Path, name: str, data: bytes) -> None:
    """Write a file completely or not at all."""
    with new_file(folder, name) as file:
        file.write(data)


def remove_parts(folder: Path) -> None:
    """Remove the leftovers of killed writes from a folder that this process has locked."""
    for path in folder.glob("*.part"):
        path.unlink(missing_ok=True)


def read_npz(
    folder: Path, name: str, keys: Collection[str] | None = None
) -> dict[str, NDArray[Any]]:
    """Read the arrays `keys` of an `.npz` file, by default all; see `npz_arrays`."""
    with open_file(folder, name) as file:
        return npz_arrays(file, folder / name, keys)


def npz_arrays(
    file: BufferedIOBase,
    path: Path,
    keys: Collection[str] | None = None,
    prefixes: tuple[str, ...] = (),
) -> dict[str, NDArray[Any]]:
    """Read selected arrays of an open `.npz` file. A file of a few kilobytes may decompress to
    gigabytes, so they may take at most `SURPLUS` bytes plus `RATIO` times the file's size."""
    try:
        room = SURPLUS + RATIO * os.fstat(file.fileno()).st_size
        with zipfile.ZipFile(file) as archive:
            sizes = {m.filename.removesuffix(".npy"): m.file_size for m in archive.infolist()}
        names = [key for key in sizes if keys is None or key in keys or key.startswith(prefixes)]
        if sum(sizes[name] for name in names) > room:
            raise InputError(
                f"{path} would decompress to more than {RATIO} times its size: if you trust it, "
                "save its arrays again with numpy.savez, uncompressed"
            )
        file.seek(0)
        with np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in names}
        for values in arrays.values():
            if values.dtype.kind == "U":
                values.tolist()  # ValueError for numbers that are no characters
        return arrays
    except (InputError, OSError):
        raise
    except Exception:  # readers of damaged bytes may raise anything
        raise InputError(f"{path} is not a readable .npz file; see the docs, formats") from None


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; `ValueError` if it is invalid or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class LockedError(InputError):
    """Another process is writing to the folder."""


@contextmanager
def exclusive_lock(
    folder: Path, name: str | None = None, *, wait: bool = False, what: str = "scores"
) -> Iterator[None]:
    """Let one process at a time write into an existing folder, or only those that use the lock file
    `name`; `LockedError` if another process is writing `what` and `wait` is false."""
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
                f"another process is adding {what} to {folder}: wait for it, or end it"
            ) from None
        except OSError as error:
            raise InputError(
                f"{folder} is not written: its file system has no locks ({error.strerror}), so "
                "two writers could destroy its contents; write on a local disk, and copy the "
                "folder from there"
            ) from error
        yield
    finally:
        os.close(handle)


@contextmanager
def translate_os_errors(folder: Path | None, what: str = "scores") -> Iterator[None]:
    """Turn errors of a full, missing or read-only disk into an `InputError`."""
    try:
        yield
    except OSError as error:
        raise InputError(
            f"{what} cannot be kept in {folder}: {error.strerror or error}; files written so "
            "far stay"
        ) from error


def sync(path: Path) -> None:
    """Sync a file, or the names in a folder, to the disk, so that a power cut loses nothing."""
    if os.name == "nt":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def text_digest(text: str) -> bytes:
    """Compute a digest of 16 bytes from a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def digest(texts: Iterable[str]) -> str:
    """Compute a digest, 32 hexadecimal digits, of a sequence of texts."""
    total = hashlib.blake2b(digest_size=16)
    for text in texts:
        encoded = text.encode("utf-8", "replace")
        total.update(len(encoded).to_bytes(8, "little") + encoded)
    return total.hexdigest()


def scratch(shape: tuple[int, ...], dtype: Any = np.float32) -> NDArray[Any]:
    """Make a new array; a large one is mapped from an unnamed temporary file, whose memory pages
    the system may free."""
    size = np.dtype(dtype).itemsize * math.prod(shape)
    if size < SCRATCH:
        return np.empty(shape, dtype)
    try:
        with tempfile.TemporaryFile() as file:
            if hasattr(os, "posix_fallocate"):  # so that a full disk raises an error now
                os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, dtype, "w+", shape=shape)
    except OSError as error:
        raise InputError(
            f"a temporary file of {size / 2**30:.1f} GB cannot be made in "
            f"{tempfile.gettempdir()}: {error.strerror or error}; set TMPDIR to a folder with "
            "more room"
        ) from error


def as_path(value: object, what: str) -> Path:
    """Return a path given by the user for `what`; `InputError` if it is not a valid path."""
    try:
        path = Path(value)  # type: ignore[arg-type]
        with suppress(FileNotFoundError, NotADirectoryError):
            path.stat()
    except (TypeError, ValueError, OSError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(f"{what} is {value!r:.80}, which cannot be a path: {why}") from error
    return path
