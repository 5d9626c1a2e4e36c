"""An index on disk, a folder that changes in one atomic step; see `docs/reference/formats.md`.

Why readers need no lock: a commit fills a new data folder, or appends rows after the bytes that the
manifest names, and then replaces the manifest, which is the only atomic step. A reader that opened
the index earlier keeps its bytes, because POSIX keeps a mapped file that is removed.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from crossknn import files
from crossknn.data.items import Items
from crossknn.errors import IndexFormatError, InputError
from crossknn.index.columns import (
    CheckedFile,
    StoredArray,
    StoredColumns,
    StoredTexts,
    append_array,
    append_texts,
    write_array,
    write_texts,
)
from crossknn.types import Artifact

MANIFEST = "crossknn-index.json"
SCORES = "scores.db"
VERSION = 6

_PATH = re.compile(r"data-[0-9a-f]+/[\w.-]+")
_OURS = re.compile(r"(data|work|nearest)-[\w-]+|" + re.escape(SCORES) + r".*|.*\.part")


class Growth(NamedTuple):
    """Rows to append to the columns of a part, and its new `meta`."""

    meta: Mapping[str, Any]
    rows: Mapping[str, Any]

    def of(self, part: Artifact) -> Artifact:
        """Append the rows in memory."""
        arrays: dict[str, Any] = dict(part.arrays)
        for name, rows in self.rows.items():
            before = arrays.get(name)
            if isinstance(before, np.ndarray):
                arrays[name] = np.concatenate([before, np.asarray(rows, before.dtype)])
            else:
                arrays[name] = rows if before is None else [*before, *rows]
        return Artifact(self.meta, arrays)


class IndexFolder:
    """The folder of an index, and the only code that reads and writes its manifest and parts."""

    def __init__(self, path: str | Path) -> None:
        self.path = files.as_path(path, "the folder of the index")

    def stamp(self) -> tuple[int, int, int] | None:
        """Return a value that changes with every new manifest; None without a manifest."""
        try:
            state = (self.path / MANIFEST).stat()
        except OSError:
            return None
        return state.st_ino, state.st_mtime_ns, state.st_size

    def manifest(self, build: str | None = None) -> dict[str, Any]:
        """Read the manifest; `IndexFormatError` if it is missing or of another `build`."""
        path = self.path
        try:
            manifest: dict[str, Any] = files.parse_json(files.read_file(path, MANIFEST))
            changed = manifest["checksum"] != checksum_of(manifest)
        except (FileNotFoundError, NotADirectoryError) as error:
            begun = path.is_dir() and any((*path.glob("data-*"), *path.glob("work-*")))
            why = "still being written, or writing was interrupted" if begun else error.strerror
            raise IndexFormatError(
                f"there is no index in {path} ({MANIFEST}: {why}); make it with crossknn index "
                "build"
            ) from error
        except OSError as error:
            raise InputError(f"the index {path} cannot be read: {error.strerror}") from error
        except InputError:  # a link, a pipe
            raise
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            changed = True
        if changed:
            raise IndexFormatError(
                f"the index {path} is damaged: the checksum of {MANIFEST} does not match"
            )
        if manifest.get("version") != VERSION:
            raise IndexFormatError(
                f"the index {path} was written by another version of crossknn (its format is "
                f"{manifest.get('version')}, not {VERSION}); use that version or build the index "
                "again"
            )
        parts, name = manifest.get("parts"), manifest.get("build")
        if not isinstance(parts, dict) or not isinstance(name, str):
            raise IndexFormatError(f"the index {path} is damaged: {MANIFEST} names no parts")
        if build not in (None, name):
            raise IndexFormatError(f"the index {path} was replaced; load it again")
        return manifest

    def read(self, build: str | None = None) -> tuple[str, dict[str, Artifact]]:
        """Return the name of the build and all parts, memory-mapped."""
        while True:
            manifest = self.manifest(build)
            try:
                parts = {key: self._open(part, key) for key, part in manifest["parts"].items()}
                return manifest["build"], parts
            except IndexFormatError:  # unless the index was replaced meanwhile
                if self.manifest()["checksum"] == manifest["checksum"]:
                    raise

    def write(self, parts: Mapping[str, Artifact], build: str, *, keep: bool = False) -> None:
        """Write parts by key in one atomic step; after an error the folder stays as it was, or
        absent. `build` is a random name that changes when the index is built anew; `keep` keeps the
        other parts, provided that the index still has this build."""
        self.check_target()
        is_new = not self.path.exists()
        try:
            with self.changing():
                self.commit(parts, build, build if keep else None)
        finally:
            if is_new:
                with suppress(OSError):  # not empty: the index was written
                    self.path.rmdir()

    def check_target(self) -> None:
        """Raise `InputError` if the folder holds something other than an index."""
        path = self.path
        if path.is_dir() and not (path / MANIFEST).is_file():
            foreign = sorted(p.name for p in path.iterdir() if not _OURS.fullmatch(p.name))
            if foreign:
                raise InputError(
                    f"{path} is not an index and not empty (it holds {foreign[0]!r}), so it is not "
                    "replaced; choose another folder"
                )

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Make the folder, and hold the lock of changes; at the end, remove files that the manifest
        does not name."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with files.exclusive_lock(self.path, wait=True):
                try:
                    yield
                finally:
                    self._remove_unused()
        except OSError as error:
            why = error.strerror or error
            raise InputError(
                f"the index {self.path} cannot be written: {why}; nothing was changed"
            ) from error

    def commit(
        self, parts: Mapping[str, Artifact | Growth], build: str, keep: str | None = None
    ) -> None:
        """Write parts by key under the lock of `changing`, as the build `build`; a `Growth` appends
        rows to an existing part. The other parts of the build `keep` are kept."""
        before = {} if keep is None else self.manifest(keep)["parts"]
        written, grown_files = dict[str, Any](), list[dict[str, Any]]()
        data = self.path / f"data-{secrets.token_hex(8)}"
        data.mkdir()
        try:
            for key, part in parts.items():
                if isinstance(part, Growth):
                    columns = before[key]["columns"]
                    grown_files += [e for column in columns.values() for e in column]
                    written[key] = self._grow(data, key, part, columns)
                else:
                    written[key] = _write(data, key, part)
            files.sync(data)
        except BaseException as error:
            for entry in grown_files:  # free the space on a full disk
                with (
                    suppress(OSError, InputError),
                    files.open_file(self.path, entry["path"], "r+b") as file,
                ):
                    file.truncate(entry["bytes"])
            if isinstance(error, UnicodeEncodeError):
                raise InputError(
                    f"{key} contain half a surrogate pair, which is not valid text: "
                    f"{error.object!r:.80}"
                ) from None
            raise
        kept = {key: part for key, part in before.items() if key not in parts}
        manifest = {"version": VERSION, "build": build, "parts": kept | written}
        manifest["checksum"] = checksum_of(manifest)
        files.write_file(self.path, MANIFEST, json.dumps(manifest, indent=1).encode())

    def remove_work(self, name: str = "work-vectors") -> None:
        """Remove the work files of encodings that have been committed to the index."""
        for path in (self.path / name, *self.path.glob(f"{name}-*")):
            shutil.rmtree(path, ignore_errors=True)

    def _open(self, part: Mapping[str, Any], key: str = "") -> Artifact:
        columns, what = dict[str, StoredArray | StoredTexts](), f"the index {self.path}"
        try:
            if re.search(r"[\\\0]|/.*/", key) is not None:
                raise IndexFormatError(f"{what} names a part outside its folder")
            for name, entries in part["columns"].items():
                if not all(_PATH.fullmatch(entry["path"]) for entry in entries):
                    raise IndexFormatError(f"{what} names a file outside its folder")
                parts = [CheckedFile(self.path, entry, what) for entry in entries]
                columns[name] = StoredTexts(*parts) if len(parts) == 2 else StoredArray(*parts)
            return Artifact(dict(part["meta"]), StoredColumns(columns))
        except InputError:
            raise
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise IndexFormatError(f"{what} is damaged: {MANIFEST} describes no files") from error

    def _grow(
        self, data: Path, key: str, part: Growth, columns: Mapping[str, Any]
    ) -> dict[str, Any]:
        before = self._open({"meta": {}, "columns": columns}).arrays.data  # type: ignore[attr-defined]
        new = {name: rows for name, rows in part.rows.items() if name not in before}
        entries = dict(columns) | _write(data, key, Artifact({}, new))["columns"]
        for name in part.rows.keys() & before.keys():
            rows, column = part.rows[name], before[name]
            if isinstance(column, StoredTexts):
                entries[name] = append_texts(self.path, columns[name], rows)
            else:
                [entry] = columns[name]
                rows = np.asarray(rows, column.dtype).reshape(-1, *column.shape[1:])
                entries[name] = [append_array(self.path, entry, rows)]
        return {"meta": dict(part.meta), "columns": entries}

    def _remove_unused(self) -> None:
        files.remove_parts(self.path)
        try:
            manifest = files.read_file(self.path, MANIFEST)
            files.parse_json(manifest)
        except FileNotFoundError:
            manifest = b""
        except (OSError, ValueError):  # all data folders would be removed
            return
        for data in self.path.glob("data-*"):
            if data.name.encode() not in manifest and not data.is_symlink():
                shutil.rmtree(data, ignore_errors=True)


def damages(parts: Mapping[str, Artifact]) -> list[str]:
    """Check every chunk of the parts' files, and return one sentence per damaged file."""
    sentences = []
    columns = [c for part in parts.values() for c in part.arrays.data.values()]  # type: ignore[attr-defined]
    for file in (file for column in columns for file in column.files):
        try:
            file.touch()
        except IndexFormatError as error:
            sentences.append(str(error))
    return sentences


def columns_of(items: Items) -> dict[str, Any]:
    """Return the columns in which items are stored."""
    columns: dict[str, Any] = {name: getattr(items, name) for name in ("ids", "texts", "titles")}
    columns["extra"] = [as_json(record, "extra") for record in items.extra]
    if items.alive is not None:
        columns["deleted"] = np.flatnonzero(~items.alive)
    return columns


def as_json(values: Mapping[str, Any], what: str) -> str:
    """Convert an object to JSON, or raise `InputError`, which names the object `what`."""
    try:
        return json.dumps(dict(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} cannot be stored as JSON: {error}") from error


def checksum_of(manifest: Mapping[str, Any]) -> int:
    """Compute the CRC-32 of the manifest without its checksum entry."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _write(data: Path, key: str, part: Artifact) -> dict[str, Any]:
    columns = dict[str, list[dict[str, Any]]]()
    for name, values in part.arrays.items():
        path = f"{data.name}/{key.replace('/', '.')}.{name}"
        if not isinstance(values, np.ndarray | np.generic | StoredArray):
            columns[name] = write_texts(data.parent, f"{path}.utf8", values)
        elif values.dtype.hasobject:
            raise InputError(f"{key}: {name} is an array of Python objects, which cannot be stored")
        else:
            columns[name] = [write_array(data.parent, f"{path}.npy", np.asarray(values))]
    return {"meta": dict(part.meta), "columns": columns}
