"""Writing an index: everything or nothing (the layout is described in `storage`)."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import IndexFormatError, InputError
from crossknn.index.disk import locked, sync
from crossknn.index.storage import (
    FORMAT,
    MANIFEST,
    VERSION,
    manifest_checksum,
    quick_checksum,
    read_manifest,
)
from crossknn.types import FloatArray

Rows: TypeAlias = FloatArray | Sequence[FloatArray]
"""Rows (r, n) in one array, or each where it lies."""

_OURS = re.compile(r"(data|partial|work)-[\w-]+|" + re.escape(MANIFEST) + r"\.[0-9a-f]+")


class IndexWriter:
    """Writes the files of one step; `writing` opens it and makes them the index."""

    def __init__(self, partial: Path) -> None:
        self.partial = partial
        self.files: list[str] = []
        self.replaced: list[str] = []

    def replace(self, prefix: str) -> None:
        """Leave out the files that the index has under that prefix so far."""
        self.replaced.append(prefix)

    def array(self, name: str, values: NDArray[Any]) -> None:
        """`name`.npy."""
        if values.dtype.hasobject:
            raise InputError(f"{name} is an array of Python objects, which cannot be stored")
        with self.open(name + ".npy") as write:
            np.lib.format.write_array(
                cast(Any, _Sink(write)), np.asarray(values, order="C"), allow_pickle=False
            )

    def rows(self, name: str, rows: Rows) -> None:
        """`name`.npy of rows (r, n), r at least 1, one after the other: they are not copied."""
        n, dtype = len(rows[0]), np.lib.format.dtype_to_descr(rows[0].dtype)
        header = {"descr": dtype, "fortran_order": False, "shape": (len(rows), n)}
        with self.open(name + ".npy") as write:
            np.lib.format.write_array_header_1_0(cast(Any, _Sink(write)), header)
            for row in rows:
                write(row.tobytes())

    def texts(self, name: str, texts: Iterable[str]) -> None:
        """`name`.utf8 and `name`.offsets.npy."""
        offsets = [0]
        with self.open(name + ".utf8") as write:
            for position, text in enumerate(texts):
                try:
                    encoded = text.encode("utf-8")
                except UnicodeEncodeError:
                    raise InputError(
                        f"{name} {position} holds half a surrogate pair, which is no text"
                    ) from None
                write(encoded)
                offsets.append(offsets[-1] + len(encoded))
        self.array(name + ".offsets", np.array(offsets, dtype=np.uint64))

    def records(self, name: str, records: Iterable[Mapping[str, object]]) -> None:
        """`name` as texts, one JSON object each."""
        try:
            self.texts(name, (json.dumps(record) for record in records))
        except (TypeError, ValueError) as error:
            raise InputError(f"a field of {name} cannot be stored as JSON: {error}") from error

    def json(self, name: str, value: object) -> None:
        """`name`.json."""
        with self.open(name + ".json") as write:
            write(json.dumps(value, ensure_ascii=False).encode("utf-8"))

    def state(self, prefix: str, state: Mapping[str, Any]) -> None:
        """The arrays and values of a model, as `prefix`.<key>."""
        for key, value in state.items():
            put = self.array if isinstance(value, np.ndarray) else self.json
            put(f"{prefix}.{key}", value)

    @contextmanager
    def open(self, name: str) -> Iterator[Callable[[bytes], object]]:
        """Write a file of that name; it is on the disk when the block ends."""
        self.files.append(name)
        with (self.partial / name).open("wb") as file:
            yield file.write
            file.flush()
            os.fsync(file.fileno())


class _Sink:
    # NumPy's own writing to a file hides the reason of a failure (disk full); this does not.
    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write


@contextmanager
def writing(folder: Path, meta: dict[str, Any], *, keep: bool = False) -> Iterator[IndexWriter]:
    """Write files into `folder` and make them its index when the block ends without an error.

    With `keep` the files that the manifest already names stay, unless one of the same name is
    written or the writer replaces them, and the mappings in `meta` are added to those that are
    there, what is new last, if the index is still the same `build`. Raises `InputError` if the disk
    is full, the folder cannot be written or is something else than an index; what was there stays
    as it was.
    """
    _check_replaceable(folder)
    token = secrets.token_hex(8)
    partial = folder / f"partial-{_host()}-{os.getpid()}-{token}"
    is_new = not folder.exists()
    try:
        partial.mkdir(parents=True)
        writer = IndexWriter(partial)
        yield writer
        with locked(folder, wait=True):
            _commit(folder, writer, token, meta, keep)
            _remove_unused(folder)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, OSError):
            raise InputError(
                f"the index {folder} cannot be written: {error.strerror or error}; "
                "nothing was changed"
            ) from error
        raise


def _commit(
    folder: Path, writer: IndexWriter, token: str, meta: dict[str, Any], keep: bool
) -> None:

    data = f"data-{token}"
    files: dict[str, Any] = {}
    if keep:
        before = read_manifest(folder)
        if before["meta"]["build"] != meta["build"]:
            raise IndexFormatError(f"the index {folder} was replaced meanwhile; load it again")
        gone = tuple(writer.replaced)
        files = {n: entry for n, entry in before["files"].items() if not n.startswith(gone)}
        meta = {**before["meta"], **_merged(before["meta"], meta)}
    for name in writer.files:
        path = writer.partial / name
        files[name] = {
            "path": f"{data}/{name}",
            "bytes": path.stat().st_size,
            "checksum": quick_checksum(path),
        }
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "requires": [],
        "written_by": f"crossknn {version('crossknn')}",
        "meta": meta,
        "files": files,
    }
    manifest = json.loads(json.dumps(manifest))  # the checksum is of what a reader will see
    manifest["checksum"] = manifest_checksum(manifest)
    sync(writer.partial)
    os.rename(writer.partial, folder / data)
    temporary = folder / f"{MANIFEST}.{token}"
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(manifest, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        sync(folder)
        os.replace(temporary, folder / MANIFEST)
    except BaseException:
        temporary.unlink(missing_ok=True)
        shutil.rmtree(folder / data, ignore_errors=True)
        raise
    sync(folder)


def _merged(before: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """Every mapping of `added`, joined to the one that was there: what is new comes last.

    What is None is dropped.
    """
    return {
        key: {n: v for n, v in before.get(key, {}).items() if n not in values}
        | {n: v for n, v in values.items() if v is not None}
        for key, values in added.items()
        if key != "build"
    }


def _check_replaceable(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; an index needs a folder")
    if folder.is_dir() and not (folder / MANIFEST).is_file():
        names = sorted(entry.name for entry in folder.iterdir())
        foreign = [name for name in names if not _OURS.fullmatch(name)]
        if foreign:
            raise InputError(
                f"{folder} is not an index and not empty (it holds {foreign[0]!r}), so it "
                "is not replaced; choose another folder"
            )


def _remove_unused(folder: Path) -> None:
    """Remove what no manifest names any more, and partial folders whose writer is dead."""
    try:
        files = read_manifest(folder)["files"]
    except IndexFormatError:
        return
    used = {str(entry["path"]).split("/")[0] for entry in files.values()}
    for entry in folder.iterdir():
        kind, *rest = entry.name.split("-")
        old = kind == "data" and entry.name not in used
        dead = kind == "partial" and rest[:1] == [_host()] and not _is_alive(int(rest[1]))
        if old or dead:
            shutil.rmtree(entry, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # There, os.kill would end the process.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _host() -> str:
    return f"{zlib.crc32(socket.gethostname().encode()):08x}"
