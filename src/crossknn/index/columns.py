"""Arrays and texts in memory-mapped files; every chunk of 64 KB is checked when it is first read.

If another process shortened a mapped file, reading it would kill this process (SIGBUS), so the
file's length is checked before each read (`check_mapped`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import mmap
import os
import zlib
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from io import BufferedIOBase, BytesIO
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import CrossknnError, IndexFormatError, InputError
from crossknn.files import open_file
from crossknn.linalg import check_mapped

CHUNK = 64 * 1024
"""Number of bytes per checksum."""


def checksums(data: Any) -> NDArray[np.uint32]:
    """Compute the CRC-32 of each chunk's 64 column sums, 10 times faster than its own CRC-32."""
    flat = np.frombuffer(data, np.uint8) if len(data) else np.zeros(0, np.uint8)
    whole = len(flat) // CHUNK
    words = flat[: whole * CHUNK].view("<u8").reshape(whole, CHUNK // 512, 64)
    sums = [zlib.crc32(row) for row in np.einsum("cwk->ck", words)]
    if len(flat) % CHUNK:
        sums.append(zlib.crc32(flat[whole * CHUNK :].tobytes()))
    return np.array(sums, "<u4")


def _entry(file: BufferedIOBase, name: str) -> dict[str, Any]:
    file.flush()
    os.fsync(file.fileno())
    size = os.fstat(file.fileno()).st_size
    data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
    sums = base64.b64encode(checksums(data).tobytes()).decode()
    return {"path": name, "bytes": size, "checksums": sums}


def write_array(folder: Path, name: str, values: NDArray[Any]) -> dict[str, Any]:
    """Write a new `.npy` file and return its entry: `path`, `bytes`, `checksums`."""
    values = np.asarray(values, order="C")
    with open_file(folder, name, "x+b") as file:
        header = np.lib.format.header_data_from_array_1_0(values)
        np.lib.format.write_array_header_1_0(file, header)
        file.write(values.reshape(-1).view(np.uint8).data)
        return _entry(file, name)


def write_texts(folder: Path, name: str, texts: Iterable[str]) -> list[dict[str, Any]]:
    """Write texts and their offsets (n + 1,) into two new files, and return their entries."""
    ends = [0]
    with open_file(folder, name, "x+b") as file:
        for text in texts:
            ends.append(ends[-1] + file.write(text.encode()))
        entry = _entry(file, name)
    offsets = str(PurePath(name).with_suffix(".offsets.npy"))
    return [entry, write_array(folder, offsets, np.array(ends, np.uint64))]


def append_file(folder: Path, entry: Mapping[str, Any], data: Any) -> dict[str, Any]:
    """Append bytes after those of `entry`, over leftovers of a killed write; return the new entry.

    The last chunk gets a new checksum, so the old one is checked first."""
    size, sums = entry["bytes"], base64.b64decode(entry["checksums"])
    whole = size // CHUNK
    with open_file(folder, entry["path"], "r+b") as file:
        file.seek(whole * CHUNK)
        last = file.read(size - whole * CHUNK)
        if checksums(last).tobytes() != sums[4 * whole :]:
            raise IndexFormatError(
                f"the contents of {folder / entry['path']} have changed; build or copy it again"
            )
        file.write(data)
        file.truncate()
        file.flush()
        os.fsync(file.fileno())
    sums = sums[: 4 * whole] + checksums(last + bytes(data)).tobytes()
    size += memoryview(data).nbytes
    return {**entry, "bytes": size, "checksums": base64.b64encode(sums).decode()}


def append_array(folder: Path, entry: Mapping[str, Any], rows: NDArray[Any]) -> dict[str, Any]:
    """Append rows to a `.npy` file; its header keeps the original number of rows."""
    return append_file(folder, entry, np.asarray(rows, order="C").reshape(-1).view(np.uint8).data)


def append_texts(
    folder: Path, entries: Sequence[Mapping[str, Any]], texts: Iterable[str]
) -> list[dict[str, Any]]:
    """Append texts to the two files of `write_texts`."""
    blob, offsets = entries
    encoded = [text.encode() for text in texts]
    ends = blob["bytes"] + np.cumsum([len(data) for data in encoded], dtype=np.uint64)
    first = append_file(folder, blob, b"".join(encoded))
    return [first, append_array(folder, offsets, ends.astype(np.uint64))]


class CheckedFile:
    """A file whose chunks are checked when first touched, up to the length of its entry."""

    def __init__(self, folder: Path, entry: Mapping[str, Any], what: str) -> None:
        self.name, self._what = PurePath(entry["path"]).name, what
        self.size = int(entry["bytes"])
        self._sums = np.frombuffer(base64.b64decode(entry["checksums"]), "<u4")
        try:
            with open_file(folder, entry["path"]) as file:
                size = os.fstat(file.fileno()).st_size
                if not 0 <= self.size <= size or len(self._sums) != -(-self.size // CHUNK):
                    raise self.damaged(f"{self.name} has {size} bytes instead of {self.size}")
                data: mmap.mmap | bytes = b""
                if self.size:
                    data = mmap.mmap(file.fileno(), self.size, access=mmap.ACCESS_READ)
        except FileNotFoundError as error:
            raise self.damaged(f"{self.name} is missing") from error
        except OSError as error:
            raise InputError(f"{what} cannot be read: {self.name}: {error.strerror}") from error
        self.data: NDArray[np.uint8] = np.frombuffer(data, np.uint8)
        self._unchecked = np.ones(len(self._sums), np.bool_)
        self.checked = not self.size

    def touch(self, start: int = 0, stop: int | None = None) -> None:
        """Check the chunks that hold the bytes `start` to `stop`."""
        check_mapped(self.data)
        if not self.checked:
            stop = self.size if stop is None else stop
            self._check(slice(start // CHUNK, -(-stop // CHUNK)))

    def touch_rows(self, rows: NDArray[Any], offset: int, width: int) -> None:
        """Check the chunks that hold some rows of `width` bytes; row 0 begins at `offset`."""
        check_mapped(self.data)
        first = (offset + rows * width) // CHUNK
        last = (offset + (rows + 1) * width - 1) // CHUNK
        for step in range(int((last - first).max(initial=-1)) + 1):
            chunks = np.unique(np.minimum(first + step, last))
            for chunk in chunks[self._unchecked[chunks]].tolist():
                self._check(slice(chunk, chunk + 1))

    def digest(self, size: int) -> str:
        """Return a hexadecimal digest of all complete chunks in the first `size` bytes."""
        return hashlib.blake2b(self._sums[: size // CHUNK].tobytes(), digest_size=16).hexdigest()

    def damaged(self, how: str) -> IndexFormatError:
        return IndexFormatError(f"{self._what} is damaged: {how}; build or copy it again")

    def _check(self, chunks: slice) -> None:
        if self._unchecked[chunks].any():
            sums = checksums(self.data[chunks.start * CHUNK : chunks.stop * CHUNK])
            if not np.array_equal(sums, self._sums[chunks]):
                raise self.damaged(f"the contents of {self.name} have changed")
            self._unchecked[chunks] = False
            self.checked = not self._unchecked.any()


class StoredArray:
    """An array in a `.npy` file: rows are checked when read, and `np.asarray` checks all rows."""

    def __init__(self, file: CheckedFile) -> None:
        self.files = (file,)
        self._file = file

    @cached_property
    def _values(self) -> NDArray[Any]:
        """Map the whole array, checking only the header."""
        file = self._file
        file.touch(0, min(CHUNK, file.size))
        head = BytesIO(file.data[:CHUNK].tobytes())
        try:
            np.lib.format.read_magic(head)
            shape, _, dtype = np.lib.format.read_array_header_1_0(head)
            values = file.data[head.tell() :].view(dtype)
            if values.size != math.prod(shape):  # rows have been added (`append_array`)
                shape = -1, *shape[1:]
            return values.reshape(shape)
        except (ValueError, TypeError, RecursionError, MemoryError, OverflowError) as error:
            raise file.damaged(f"{file.name} is not an array ({error})") from error

    @property
    def shape(self) -> tuple[int, ...]:
        return self._values.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._values.dtype

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        values, file = self._values, self._file
        if file.checked:
            check_mapped(values)
        else:
            offset, width = file.size - values.nbytes, values.nbytes // max(1, len(values))
            if isinstance(rows, slice):
                start, stop, _ = rows.indices(len(values))
                file.touch(offset + start * width, offset + stop * width)
            else:
                where = np.asarray(rows)
                where = np.flatnonzero(where) if where.dtype == np.bool_ else where.ravel()
                file.touch_rows(where % max(1, len(values)), offset, width)
        taken: NDArray[Any] = values[rows]
        return taken

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        self._file.touch()
        return np.array(self._values, dtype=dtype, copy=copy)


class StoredTexts(Sequence[str]):
    """Texts in one UTF-8 file: text i is the bytes `offsets[i]` to `offsets[i + 1]`."""

    def __init__(self, file: CheckedFile, offsets: CheckedFile) -> None:
        self.files = (file, offsets)
        self._file, self._offsets = file, StoredArray(offsets)

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        offsets, size = np.asarray(self._offsets), self._file.size
        if offsets.dtype != np.uint64 or offsets.ndim != 1 or not len(offsets):
            raise self._file.damaged(f"{self._file.name} does not contain valid offsets of texts")
        ends = offsets.astype(np.int64)
        if ends[0] or ends[-1] > size or (ends < 0).any() or (np.diff(ends) < 0).any():
            raise self._file.damaged(f"the offsets in {self._file.name} are not in ascending order")
        return ends

    def _text(self, data: bytes) -> str:
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise self._file.damaged(f"{self._file.name} is not UTF-8") from error

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: Any) -> Any:
        if isinstance(position, slice):
            return [self[p] for p in range(*position.indices(len(self)))]
        p = range(len(self))[position]
        start, end = int(self._ends[p]), int(self._ends[p + 1])
        self._file.touch(start, end)
        return self._text(self._file.data[start:end].tobytes())

    def __iter__(self) -> Iterator[str]:
        self._file.touch()
        data = self._file.data.tobytes()
        for start, end in pairwise(self._ends.tolist()):
            yield self._text(data[start:end])


class StoredRecords(Sequence[Any]):
    """n JSON objects, or other values, parsed on access; `columns` are those of `field_columns`."""

    def __init__(
        self,
        texts: Sequence[str],
        columns: Mapping[str, Any] | None = None,
        *,
        objects: bool = True,
    ) -> None:
        self._texts, self.columns, self._objects = texts, columns or {}, objects

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, position: Any) -> Any:
        return self._record(self._texts[position])

    def __iter__(self) -> Iterator[Any]:
        return map(self._record, self._texts)

    def _record(self, text: str) -> Any:
        with refusing("the fields of an item"):
            value = json.loads(text)
            return dict(value) if self._objects else value


class StoredColumns(UserDict[str, Any]):
    """Arrays, checked as a whole by `[name]` (see `Artifact.rows`), and `StoredTexts` by name."""

    def __getitem__(self, name: str) -> Any:
        column = self.data[name]
        return np.asarray(column) if isinstance(column, StoredArray) else column


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Turn an error caused by an incomplete part into an `IndexFormatError`."""
    try:
        yield
    except CrossknnError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise IndexFormatError(
            f"the index is damaged or of another version: {what} cannot be read "
            f"({type(error).__name__}: {error}); build or copy it again"
        ) from error
