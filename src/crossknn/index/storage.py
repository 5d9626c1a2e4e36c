"""An index on disk: a folder of plain files that is replaced in one step.

    crossknn-index.json      the manifest: what there is, where, how long, and its checksums
    data-<token>/            the files of one writing; never changed once the manifest names them
    work-<name>/             states of the items encoded so far (see `late`)
    scores.db                exact scores (see `crossknn.scores`), for good

An index is a number of named parts (`vectors/dense`, `graphs/bm25`, ...), each an `Artifact`:
values for JSON, and columns, which are arrays (`.npy`) or texts (one UTF-8 blob with uint64
offsets). A writing fills a data folder and then replaces the manifest, the one atomic step; it
removes data folders that the manifest does not name.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import IndexFormatError, InputError
from crossknn.files import (
    CheckedFile,
    StoredArray,
    StoredColumns,
    StoredTexts,
    exclusive_lock,
    sync,
    write_array,
    write_file,
    write_texts,
)
from crossknn.types import Artifact

MANIFEST = "crossknn-index.json"
SCORES = "scores.db"
VERSION = 3

_PATH = re.compile(r"data-[0-9a-f]+/[\w.-]+")
_OURS = re.compile(r"(data|work|nearest)-[\w-]+|" + re.escape(SCORES) + r".*|.*\.part")


def read_parts(folder: Path, build: str | None = None) -> tuple[str, dict[str, Artifact]]:
    """What names this building of the index in `folder`, and its parts, every file mapped.

    Raises `IndexFormatError` unless it is whole, and this `build` if one is named; reads once more
    if it was replaced meanwhile.
    """
    while True:
        manifest = read_manifest(folder, build)
        try:
            parts = {key: _open(folder, part) for key, part in manifest["parts"].items()}
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
    path = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        changed = manifest["checksum"] != _checksum(manifest)
    except OSError as error:
        begun = folder.is_dir() and any(folder.glob("data-*"))
        why = "it is still being written, or that was interrupted" if begun else error.strerror
        why = "that is a file" if folder.is_file() else why
        raise IndexFormatError(
            f"there is no index {folder} ({MANIFEST}: {why}); make it with crossknn index build"
        ) from error
    except (ValueError, TypeError, LookupError):
        changed = True
    if changed:
        raise IndexFormatError(f"the index {folder} is damaged: {MANIFEST} has been changed")
    if manifest["version"] != VERSION:
        raise IndexFormatError(
            f"the index {folder} was written by another version of crossknn (its format is "
            f"{manifest['version']}, not {VERSION}); use that version or build the index again"
        )
    if build is not None and manifest["build"] != build:
        raise IndexFormatError(f"the index {folder} was replaced; load it again")
    return manifest


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
    if folder.is_dir() and not (folder / MANIFEST).is_file():
        foreign = sorted(p.name for p in folder.iterdir() if not _OURS.fullmatch(p.name))
        if foreign:
            raise InputError(
                f"{folder} is not an index and not empty (it holds {foreign[0]!r}), so it "
                "is not replaced; choose another folder"
            )
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(folder, wait=True):
            try:
                _commit(folder, parts, build, keep)
            finally:
                _remove_unused(folder)
    except OSError as error:
        raise InputError(
            f"the index {folder} cannot be written: {error.strerror or error}; nothing was changed"
        ) from error
    finally:
        if is_new:
            with suppress(OSError):  # an index was written into it
                folder.rmdir()


def _commit(folder: Path, parts: Mapping[str, Artifact | None], build: str, keep: bool) -> None:
    before = read_manifest(folder, build)["parts"] if keep else {}
    data = folder / f"data-{secrets.token_hex(8)}"
    data.mkdir()
    written = {key: _write(data, key, part) for key, part in parts.items() if part is not None}
    sync(data)
    kept = {key: part for key, part in before.items() if key not in parts}
    manifest = {"version": VERSION, "build": build, "parts": kept | written}
    manifest["checksum"] = _checksum(manifest)
    write_file(folder / MANIFEST, json.dumps(manifest, indent=1).encode())


def _open(folder: Path, part: Mapping[str, Any]) -> Artifact:
    columns = dict[str, StoredArray | StoredTexts]()
    for name, entries in part["columns"].items():
        if not all(_PATH.fullmatch(entry["path"]) for entry in entries):
            raise IndexFormatError(f"the index {folder} names a file outside its folder")
        what = f"the index {folder}"
        files = [CheckedFile(folder / entry["path"], entry, what) for entry in entries]
        columns[name] = StoredTexts(*files) if len(files) == 2 else StoredArray(*files)
    return Artifact(part["meta"], StoredColumns(columns))


def _write(data: Path, key: str, part: Artifact) -> dict[str, Any]:
    """Write the columns of a part; what the manifest says of it."""
    columns = dict[str, list[dict[str, Any]]]()
    for name, values in part.arrays.items():
        path = data / f"{key.replace('/', '.')}.{name}.npy"
        try:
            if not isinstance(values, np.ndarray | np.generic | StoredArray):
                columns[name] = write_texts(path.with_suffix(".utf8"), values)
            elif values.dtype.hasobject:
                raise InputError(f"{key}: {name} is an array of Python objects: it is not stored")
            else:
                columns[name] = [write_array(path, np.asarray(values))]
        except UnicodeEncodeError as error:
            raise InputError(
                f"{key}: {name} hold half a surrogate pair, which is no text: {error.object!r:.80}"
            ) from None
    return {"meta": dict(part.meta), "columns": columns}


def _checksum(manifest: Mapping[str, Any]) -> int:
    """CRC-32 of the manifest without its checksum."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _remove_unused(folder: Path) -> None:
    """Remove the data folders that the manifest does not name."""
    manifest = folder / MANIFEST
    named = manifest.read_bytes() if manifest.is_file() else b""
    for data in folder.glob("data-*"):
        if data.name.encode() not in named:
            shutil.rmtree(data, ignore_errors=True)
