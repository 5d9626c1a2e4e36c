"""An index on disk: a folder of plain files that is replaced in one step.

    crossknn-index.json      the manifest: what there is, where, how long, and its checksums
    data-<token>/            the files of one writing; the bytes that a manifest names never change
    work-<name>/             vectors, or states, of the items encoded so far (see `work`, `late`)
    scores.db                exact scores (see `crossknn.scores`), for good

An index is a number of named parts (`vectors/dense`, `words/bm25`, ...), each an `Artifact`:
values for JSON, and columns, which are arrays (`.npy`) or texts (one UTF-8 blob with uint64
offsets). A writing fills a data folder, or adds rows at the end of files, and then replaces the
manifest, the one atomic step; it removes data folders that the manifest does not name. Who has
opened the index before goes on with the bytes that the old manifest names: they are mapped, and
POSIX keeps a mapped file that is removed.
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

from crossknn.columns import (
    CheckedFile,
    StoredArray,
    StoredColumns,
    StoredTexts,
    append_array,
    append_texts,
    write_array,
    write_texts,
)
from crossknn.data.items import Items
from crossknn.errors import IndexFormatError, InputError
from crossknn.files import (
    exclusive_lock,
    open_file,
    parse_json,
    read_file,
    remove_parts,
    sync,
    write_file,
)
from crossknn.types import Artifact

MANIFEST = "crossknn-index.json"
SCORES = "scores.db"
VERSION = 3

_PATH = re.compile(r"data-[0-9a-f]+/[\w.-]+")
_OURS = re.compile(r"(data|work|nearest)-[\w-]+|" + re.escape(SCORES) + r".*|.*\.part")


class Growth(NamedTuple):
    """Rows that are added to the columns of a part, or begin one that it lacks; its new `meta`."""

    meta: Mapping[str, Any]
    rows: Mapping[str, Any]

    def of(self, part: Artifact) -> Artifact:
        """The part with the rows, in memory."""
        arrays: dict[str, Any] = dict(part.arrays)
        for name, rows in self.rows.items():
            known = arrays.get(name)
            if isinstance(known, np.ndarray):
                arrays[name] = np.concatenate([known, np.asarray(rows, known.dtype)])
            else:
                arrays[name] = rows if known is None else [*known, *rows]
        return Artifact(self.meta, arrays)


def read_parts(folder: Path, build: str | None = None) -> tuple[str, dict[str, Artifact]]:
    """What names this building of the index in `folder`, and its parts, every file mapped.

    Raises `IndexFormatError` unless it is whole, and this `build` if one is named; reads once more
    if it was replaced meanwhile.
    """
    while True:
        manifest = read_manifest(folder, build)
        try:
            parts = {key: _open(folder, part, key) for key, part in manifest["parts"].items()}
            return manifest["build"], parts
        except IndexFormatError:
            if read_manifest(folder)["checksum"] == manifest["checksum"]:
                raise


def damages(parts: Mapping[str, Artifact]) -> list[str]:
    """Check every chunk of the parts' files: a sentence for each file that is damaged."""
    found = []
    columns = [c for part in parts.values() for c in part.arrays.columns.values()]  # type: ignore[attr-defined]
    for file in (file for column in columns for file in column.files):
        try:
            file.touch()
        except IndexFormatError as error:
            found.append(str(error))
    return found


def read_manifest(folder: Path, build: str | None = None) -> dict[str, Any]:
    """The manifest of `folder`, or one sentence on why it is no index, or not this `build`."""
    try:
        manifest: dict[str, Any] = parse_json(read_file(folder, MANIFEST))
        changed = manifest["checksum"] != _checksum(manifest)
    except (FileNotFoundError, NotADirectoryError) as error:
        begun = folder.is_dir() and any((*folder.glob("data-*"), *folder.glob("work-*")))
        why = "it is still being written, or that was interrupted" if begun else error.strerror
        why = "that is a file" if folder.is_file() else why
        raise IndexFormatError(
            f"there is no index {folder} ({MANIFEST}: {why}); make it with crossknn index build"
        ) from error
    except OSError as error:
        raise InputError(f"the index {folder} cannot be read: {error.strerror or error}") from error
    except InputError:  # a link, a pipe
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        changed = True
    if changed:
        raise IndexFormatError(f"the index {folder} is damaged: {MANIFEST} has been changed")
    if manifest.get("version") != VERSION:
        raise IndexFormatError(
            f"the index {folder} was written by another version of crossknn (its format is "
            f"{manifest.get('version')}, not {VERSION}); use that version or build the index again"
        )
    if not isinstance(manifest.get("parts"), dict) or not isinstance(manifest.get("build"), str):
        raise IndexFormatError(f"the index {folder} is damaged: {MANIFEST} names no parts")
    if build is not None and manifest["build"] != build:
        raise IndexFormatError(f"the index {folder} was replaced; load it again")
    return manifest


def stamp_of(folder: Path) -> tuple[int, int, int] | None:
    """Tells whether another manifest has been written since; None where there is none."""
    try:
        found = (folder / MANIFEST).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def write_parts(
    folder: Path, parts: Mapping[str, Artifact | None], build: str, *, keep: bool = False
) -> None:
    """Write `parts` into `folder` and make them its index, in one atomic step.

    Args:
        parts: By key; None drops the part.
        keep: Keep the other parts of the index, if it is still the same `build`.

    Raises:
        InputError: If the disk is full, the folder cannot be written or is something else than an
            index, or a part cannot be stored; the folder stays as it was.
        IndexFormatError: With `keep`, if the index was replaced.
    """
    check_target(folder)
    is_new = not folder.exists()
    try:
        with _writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with changing(folder):
                commit(folder, parts, build, build if keep else None)
    finally:
        if is_new:
            with suppress(OSError):  # an index was written into it
                folder.rmdir()


def check_target(folder: Path) -> None:
    """`InputError` if there is something else than an index, which would have to be replaced."""
    if folder.is_dir() and not (folder / MANIFEST).is_file():
        foreign = sorted(p.name for p in folder.iterdir() if not _OURS.fullmatch(p.name))
        if foreign:
            raise InputError(
                f"{folder} is not an index and not empty (it holds {foreign[0]!r}), so it "
                "is not replaced; choose another folder"
            )
    if any(part.is_file() for part in (folder, *folder.parents)):
        raise InputError(f"the index {folder} cannot be written: a part of this path is a file")


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """One process and thread at a time changes the index in `folder`; readers need not wait. What
    the manifest does not name at the end is removed."""
    with exclusive_lock(folder, wait=True):
        try:
            yield
        finally:
            _remove_unused(folder)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"the index {folder} cannot be written: {error.strerror or error}; nothing was changed"
        ) from error


def commit(
    folder: Path,
    parts: Mapping[str, Artifact | Growth | None],
    build: str,
    keep: str | None = None,
) -> None:
    """`write_parts` while the folder is `changing`.

    Args:
        parts: A `Growth` adds rows to a part that is there.
        keep: Keep the other parts of the index, if it is still this build.
    """
    before = {} if keep is None else read_manifest(folder, keep)["parts"]
    written, longer = dict[str, Any](), list[dict[str, Any]]()
    with _writing(folder):
        data = folder / f"data-{secrets.token_hex(8)}"
        data.mkdir()
        try:
            for key, part in parts.items():
                if isinstance(part, Growth):
                    longer += [
                        entry for column in before[key]["columns"].values() for entry in column
                    ]
                    written[key] = _grow(folder, data, key, part, before[key]["columns"])
                elif part is not None:
                    written[key] = _write(data, key, part)
            sync(data)
        except BaseException:
            for entry in longer:  # a full disk gets its room back
                with suppress(OSError, InputError), open_file(folder, entry["path"], "r+b") as file:
                    file.truncate(entry["bytes"])
            raise
        kept = {key: part for key, part in before.items() if key not in parts}
        manifest = {"version": VERSION, "build": build, "parts": kept | written}
        manifest["checksum"] = _checksum(manifest)
        write_file(folder, MANIFEST, json.dumps(manifest, indent=1).encode())


def _open(folder: Path, part: Mapping[str, Any], key: str = "") -> Artifact:
    columns, what = dict[str, StoredArray | StoredTexts](), f"the index {folder}"
    try:
        if re.search(r"[\\\0]|/.*/", key) is not None:
            raise IndexFormatError(f"{what} names a part outside its folder")
        for name, entries in part["columns"].items():
            if not all(_PATH.fullmatch(entry["path"]) for entry in entries):
                raise IndexFormatError(f"{what} names a file outside its folder")
            files = [CheckedFile(folder, entry, what) for entry in entries]
            columns[name] = StoredTexts(*files) if len(files) == 2 else StoredArray(*files)
        return Artifact(dict(part["meta"]), StoredColumns(columns))
    except InputError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError) as error:
        raise IndexFormatError(f"{what} is damaged: {MANIFEST} describes no files") from error


def _grow(
    folder: Path, data: Path, key: str, part: Growth, columns: Mapping[str, Any]
) -> dict[str, Any]:
    """Add rows to columns of a part, or write new columns; what the manifest says of it."""
    known = _open(folder, {"meta": {}, "columns": columns}).arrays.columns  # type: ignore[attr-defined]
    new = {name: rows for name, rows in part.rows.items() if name not in known}
    made = dict(columns) | _write(data, key, Artifact({}, new))["columns"]
    for name in part.rows.keys() & known.keys():
        rows, entries, column = part.rows[name], columns[name], known[name]
        if isinstance(column, StoredTexts):
            with _as_text(key, name):
                made[name] = append_texts(folder, entries, rows)
        else:
            [entry] = entries
            rows = np.asarray(rows, column.dtype).reshape(-1, *column.shape[1:])
            made[name] = [append_array(folder, entry, rows)]
    return {"meta": dict(part.meta), "columns": made}


@contextmanager
def _as_text(key: str, name: str) -> Iterator[None]:
    try:
        yield
    except UnicodeEncodeError as error:
        raise InputError(
            f"{key}: {name} hold half a surrogate pair, which is no text: {error.object!r:.80}"
        ) from None


def _write(data: Path, key: str, part: Artifact) -> dict[str, Any]:
    """Write the columns of a part; what the manifest says of it."""
    columns = dict[str, list[dict[str, Any]]]()
    for name, values in part.arrays.items():
        path = f"{data.name}/{key.replace('/', '.')}.{name}"
        if not isinstance(values, np.ndarray | np.generic | StoredArray):
            with _as_text(key, name):
                columns[name] = write_texts(data.parent, f"{path}.utf8", values)
        elif values.dtype.hasobject:
            raise InputError(f"{key}: {name} is an array of Python objects: it is not stored")
        else:
            columns[name] = [write_array(data.parent, f"{path}.npy", np.asarray(values))]
    return {"meta": dict(part.meta), "columns": columns}


def columns_of(items: Items) -> dict[str, Any]:
    """What is kept of items; `InputError` for fields that JSON cannot have."""
    columns: dict[str, Any] = {name: getattr(items, name) for name in ("ids", "texts", "titles")}
    columns["extra"] = [as_json(record, "extra") for record in items.extra]
    if items.alive is not None:
        columns["deleted"] = np.flatnonzero(~items.alive)
    return columns


def as_json(values: Mapping[str, Any], what: str) -> str:
    """JSON of an object; `InputError` for `what` that has none."""
    try:
        return json.dumps(dict(values))
    except (TypeError, ValueError) as error:
        raise InputError(f"{what} cannot be stored as JSON: {error}") from error


def _checksum(manifest: Mapping[str, Any]) -> int:
    """CRC-32 of the manifest without its checksum."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _remove_unused(folder: Path) -> None:
    """Remove the data folders that the manifest does not name; none if it cannot be read."""
    remove_parts(folder)
    try:
        named = read_file(folder, MANIFEST)
        parse_json(named)
    except FileNotFoundError:
        named = b""
    except (OSError, ValueError):
        return
    for data in folder.glob("data-*"):
        if data.name.encode() not in named and not data.is_symlink():
            shutil.rmtree(data, ignore_errors=True)
