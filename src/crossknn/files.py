"""Files that a kill or a power cut cannot spoil, and that tell when they were damaged.

Files are written in one step, by one process at a time, with a checksum of every chunk of 64 KB
that is checked when the chunk is first read.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import IndexFormatError, InputError

CHUNK = 64 * 1024
"""Bytes that share a checksum."""

SCRATCH = 2**28
"""Bytes of an array from which on `scratch` keeps it in a file."""


@contextmanager
def exclusive_lock(folder: Path, *, wait: bool = False, what: str = "scores") -> Iterator[None]:
    """One process at a time writes into the existing `folder`; readers need no lock.

    Where there are no locks everyone goes on. Raises `InputError`, or else waits, if another
    process writes `what` there.
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
                    f"another process is adding {what} to {folder}; wait for it, or end it"
                ) from None
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


def write_file(path: Path, data: bytes) -> None:
    """Write a file that is there whole, or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_bytes(data)
        sync(part)
        os.replace(part, path)
    finally:  # an error or an interrupt leaves nothing of it
        part.unlink(missing_ok=True)
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


def checksums(data: Any) -> NDArray[np.uint32]:
    """A checksum of every chunk of some bytes.

    It is the CRC-32 of the 64 column sums of the chunk's 64-bit words: a tenth of the time.
    """
    flat = np.frombuffer(data, np.uint8) if len(data) else np.zeros(0, np.uint8)
    whole = len(flat) // CHUNK
    words = flat[: whole * CHUNK].view("<u8").reshape(whole, CHUNK // 512, 64)
    sums = [zlib.crc32(row) for row in np.einsum("cwk->ck", words)]
    if rest := len(flat) % CHUNK:
        sums.append(zlib.crc32(flat[-rest:].tobytes()))
    return np.array(sums, "<u4")


def file_entry(path: Path) -> dict[str, Any]:
    """Brings a new file to the disk; returns its path, size and the checksums of its chunks."""
    sync(path)
    size = path.stat().st_size
    sums = checksums(np.memmap(path, np.uint8, "r") if size else b"")
    name = f"{path.parent.name}/{path.name}"
    return {"path": name, "bytes": size, "checksums": base64.b64encode(sums.tobytes()).decode()}


def write_array(path: Path, values: NDArray[Any]) -> dict[str, Any]:
    """Write a new `.npy` file; returns its `file_entry`."""
    values = np.asarray(values, order="C")
    with path.open("wb") as file:
        header = np.lib.format.header_data_from_array_1_0(values)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(values.reshape(-1).view(np.uint8).data)
    return file_entry(path)


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


def write_texts(path: Path, texts: Iterable[str]) -> list[dict[str, Any]]:
    """Write texts into one new UTF-8 file, and their offsets (n + 1,): the `file_entry` of both.

    Raises `UnicodeEncodeError` for half a surrogate pair, which is no text.
    """
    ends = [0]
    with path.open("wb") as file:
        for text in texts:
            ends.append(ends[-1] + file.write(text.encode()))
    offsets = write_array(path.with_suffix(".offsets.npy"), np.array(ends, np.uint64))
    return [file_entry(path), offsets]


def append_file(path: Path, entry: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """Write bytes after those that `entry` names, over what a killed writing has left there;
    returns the `file_entry` of the longer file. Who has mapped the shorter one sees no change.

    Raises `IndexFormatError` if the last chunk, which gets a new checksum, is damaged.
    """
    size, sums = entry["bytes"], base64.b64decode(entry["checksums"])
    whole = size // CHUNK
    with path.open("r+b") as file:
        file.seek(whole * CHUNK)
        last = file.read(size - whole * CHUNK)
        if checksums(last).tobytes() != sums[4 * whole :]:
            raise IndexFormatError(f"the contents of {path} have changed; build or copy it again")
        file.write(data)
        file.truncate()
    sync(path)
    sums = sums[: 4 * whole] + checksums(last + bytes(data)).tobytes()
    size += memoryview(data).nbytes
    return {**entry, "bytes": size, "checksums": base64.b64encode(sums).decode()}


def append_array(path: Path, entry: Mapping[str, Any], rows: NDArray[Any]) -> dict[str, Any]:
    """Add rows to a `.npy` file; its header still has the first number of rows."""
    return append_file(path, entry, np.asarray(rows, order="C").reshape(-1).view(np.uint8).data)


def append_texts(
    folder: Path, entries: Sequence[Mapping[str, Any]], texts: Iterable[str]
) -> list[dict[str, Any]]:
    """Add texts to those of `write_texts`, by their two entries; returns the new ones."""
    blob, offsets = entries
    encoded = [text.encode() for text in texts]
    ends = blob["bytes"] + np.cumsum([len(data) for data in encoded], dtype=np.uint64)
    first = append_file(folder / blob["path"], blob, b"".join(encoded))
    return [first, append_array(folder / offsets["path"], offsets, ends.astype(np.uint64))]


class CheckedFile:
    """A file mapped read-only, whose chunks are checked when they are first touched.

    What stands behind the bytes of its entry is another writing's, and is not looked at.
    """

    def __init__(self, path: Path, entry: Mapping[str, Any], what: str) -> None:
        """Map the file of `what` ("the index DIR"); `IndexFormatError` for another size."""
        self.name, self._what = path.name, what
        try:
            size = min(path.stat().st_size, int(entry["bytes"]))
            data = np.memmap(path, np.uint8, "r", shape=size) if size else np.zeros(0, np.uint8)
        except OSError as error:
            raise self.damaged(f"{self.name} cannot be read ({error.strerror})") from error
        self.data: NDArray[np.uint8] = np.asarray(data)
        self._sums = np.frombuffer(base64.b64decode(entry["checksums"]), "<u4")
        if size != entry["bytes"] or len(self._sums) != -(-size // CHUNK):
            raise self.damaged(f"{self.name} has {size} bytes instead of {entry['bytes']}")
        self._unchecked = np.ones(len(self._sums), np.bool_)
        self.checked = not size

    def touch(self, start: int = 0, stop: int | None = None) -> None:
        """Check the chunks of the bytes `start` to `stop`, or raise `IndexFormatError`."""
        if not self.checked:
            stop = len(self.data) if stop is None else stop
            self._check(slice(start // CHUNK, -(-stop // CHUNK)))

    def touch_rows(self, rows: NDArray[Any], offset: int, width: int) -> None:
        """Check the chunks of rows of `width` bytes each, the first of which begins at `offset`."""
        first = (offset + rows * width) // CHUNK
        last = (offset + (rows + 1) * width - 1) // CHUNK
        for step in range(int((last - first).max(initial=-1)) + 1):
            chunks = np.unique(np.minimum(first + step, last))
            for chunk in chunks[self._unchecked[chunks]].tolist():
                self._check(slice(chunk, chunk + 1))

    def digest(self, size: int) -> str:
        """Names the whole chunks of the first `size` bytes: 32 hexadecimal digits."""
        return hashlib.blake2b(self._sums[: size // CHUNK].tobytes(), digest_size=16).hexdigest()

    def damaged(self, how: str) -> IndexFormatError:
        """The error for a damage."""
        return IndexFormatError(f"{self._what} is damaged: {how}; build or copy it again")

    def _check(self, chunks: slice) -> None:
        if self._unchecked[chunks].any():
            found = checksums(self.data[chunks.start * CHUNK : chunks.stop * CHUNK])
            if not np.array_equal(found, self._sums[chunks]):
                raise self.damaged(f"the contents of {self.name} have changed")
            self._unchecked[chunks] = False
            self.checked = not self._unchecked.any()


class StoredArray:
    """An array in a `.npy` file: rows are checked as they are read, `np.asarray` checks all."""

    def __init__(self, file: CheckedFile) -> None:
        self.files = (file,)
        self._file = file

    @cached_property
    def _values(self) -> NDArray[Any]:
        """All of it, unchecked but for the header; `IndexFormatError` if it is no array."""
        file = self._file
        file.touch(0, min(CHUNK, len(file.data)))
        head = io.BytesIO(file.data[:CHUNK].tobytes())
        try:
            np.lib.format.read_magic(head)
            shape, _, dtype = np.lib.format.read_array_header_1_0(head)
            values = file.data[head.tell() :].view(dtype)
            if values.size != math.prod(shape):  # rows have been added (`append_array`)
                shape = -1, *shape[1:]
            return values.reshape(shape)
        except (ValueError, TypeError) as error:
            raise file.damaged(f"{file.name} is no array ({error})") from error

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._values.dtype

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """Rows by a position, a slice, or an array of positions or truth values."""
        values, file = self._values, self._file
        if not file.checked:
            offset, width = len(file.data) - values.nbytes, values.nbytes // max(1, len(values))
            if isinstance(rows, slice):
                start, stop, _ = rows.indices(len(values))
                file.touch(offset + start * width, offset + stop * width)
            else:
                where = np.asarray(rows)
                where = np.flatnonzero(where) if where.dtype == np.bool_ else where.ravel()
                file.touch_rows(where % max(1, len(values)), offset, width)
        found: NDArray[Any] = values[rows]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        self._file.touch()
        return np.array(self._values, dtype=dtype, copy=copy)


class StoredTexts(Sequence[str]):
    """Texts in one UTF-8 file: text i is the bytes `offsets[i]` to `offsets[i + 1]`."""

    def __init__(self, file: CheckedFile, offsets: CheckedFile) -> None:
        self.files = (file, offsets)
        self._file, self._offsets = file, StoredArray(offsets)

    @cached_property
    def _ends(self) -> NDArray[np.uint64]:
        return np.asarray(self._offsets)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[p] for p in range(*position.indices(len(self)))]
        p = range(len(self))[position]
        start, end = int(self._ends[p]), int(self._ends[p + 1])
        self._file.touch(start, end)
        return self._file.data[start:end].tobytes().decode()

    def __iter__(self) -> Iterator[str]:
        self._file.touch()
        data = self._file.data.tobytes()
        for start, end in pairwise(self._ends.tolist()):
            yield data[start:end].decode()


class StoredColumns(Mapping[str, Any]):
    """Arrays and texts by name: `[name]` is an array that has been checked, or `StoredTexts`."""

    def __init__(self, columns: Mapping[str, StoredArray | StoredTexts]) -> None:
        self.columns = columns

    def __getitem__(self, name: str) -> Any:
        found = self.columns[name]
        return np.asarray(found) if isinstance(found, StoredArray) else found

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)


def rows_of(columns: Mapping[str, Any], name: str) -> Any:
    """`columns[name]`; an array on the disk is checked row by row as it is read."""
    return columns.columns[name] if isinstance(columns, StoredColumns) else columns[name]


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
