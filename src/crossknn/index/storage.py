"""An index on disk: a folder of plain files that is replaced in one step.

    crossknn-index.json      the manifest: what there is, where, how long, and its checksums
    data-<token>/            the files of one writing; never changed once the manifest names them
    partial-<host>-<pid>-<token>/   a writing in progress, invisible to readers
    work-<name>/             states of the items encoded so far (see `late`)
    scores.db                exact scores (see `crossknn.scores`), for good

An index is a number of named parts (`vectors/dense`, `graphs/bm25`, ...), each an `Artifact`:
values
for JSON, and columns, which are arrays (`.npy`) or texts (one UTF-8 blob with uint64 offsets).
Nothing is ever unpickled. A writing fills a partial folder, syncs it, renames it and then replaces
the manifest, which is the one atomic step: whatever is killed, and whenever, the manifest names
complete files only. Adding a part writes a folder of its own and leaves the others where they are.

A manifest that `requires` a feature this version does not know (deleted items, appended
segments) is refused, so later versions can add them without a new format.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import zlib
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import numpy as np

from crossknn.errors import IndexFormatError, InputError
from crossknn.files import (
    CheckedFile,
    StoredArray,
    StoredColumns,
    checked_writing,
    exclusive_lock,
    sync,
    write_array,
    write_file,
)
from crossknn.types import Artifact

MANIFEST = "crossknn-index.json"
SCORES = "scores.db"
FORMAT = "crossknn-index"
VERSION = 2

_PATH = re.compile(r"data-[0-9a-f]+/[\w.-]+")
_OURS = re.compile(r"(data|partial|work)-[\w-]+|" + re.escape(SCORES) + r".*|.*\.part")


class StoredIndexFolder:
    """The complete index in a folder: its manifest, and its parts with every file mapped."""

    def __init__(self, folder: Path) -> None:
        """Raises `IndexFormatError` unless it is whole; once more if it was replaced meanwhile."""
        self.folder = folder
        while True:
            self.manifest = read_manifest(folder)
            try:
                self.parts = self._parts()
                return
            except IndexFormatError:
                if read_manifest(folder)["checksum"] == self.manifest["checksum"]:
                    raise

    @property
    def build(self) -> str:
        """Names this building of the index."""
        return str(self.manifest["build"])

    def verify(self) -> list[str]:
        """Check every chunk of every file: a sentence for each that is damaged."""
        found = []
        for part in self.parts.values():
            for file in cast(StoredColumns, part.arrays).files.values():
                try:
                    file.touch()
                except IndexFormatError as error:
                    found.append(str(error))
        return found

    def _parts(self) -> dict[str, Artifact]:
        files: dict[str, dict[str, CheckedFile]] = {key: {} for key in self.manifest["parts"]}
        for name, entry in self.manifest["files"].items():
            key, _, column = name.rpartition("/")
            files[key][column] = CheckedFile(
                self.folder / entry["path"],
                entry,
                what=f"the index {self.folder}",
                advice="build or copy it again",
            )
        metas = self.manifest["parts"].items()
        return {key: Artifact(meta, StoredColumns(files[key])) for key, meta in metas}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of `folder`, or one sentence on why it is no index to be read."""
    path = folder / MANIFEST
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise IndexFormatError(_why_no_manifest(folder)) from None
    except OSError as error:
        raise IndexFormatError(f"{path} cannot be read: {error.strerror}") from error
    try:
        manifest = json.loads(content)
    except ValueError:
        raise IndexFormatError(f"the index {folder} is damaged: {MANIFEST} is not JSON") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise IndexFormatError(f"{folder} is not a crossknn index: {MANIFEST} says otherwise")
    written, requires = manifest.get("version"), manifest.get("requires", [])
    if written != VERSION or requires:
        needs = f"format {written}" if written != VERSION else ", ".join(map(str, requires))
        raise IndexFormatError(
            f"the index {folder} was written by another version of crossknn (it needs {needs}); "
            "use that version or build the index again"
        )
    files = manifest.get("files")
    if manifest.get("checksum") != _checksum(manifest) or not isinstance(files, dict):
        raise IndexFormatError(f"the index {folder} is damaged: {MANIFEST} has been changed")
    for entry in files.values():
        if not _PATH.fullmatch(str(entry["path"])):
            raise IndexFormatError(f"the index {folder} names a file outside its folder")
    return cast(dict[str, Any], manifest)


def write_parts(
    folder: Path, parts: Mapping[str, Artifact | None], build: str, *, keep: bool = False
) -> None:
    """Write `parts` into `folder` and make them its index, in one atomic step.

    Args:
        parts: By key; None drops the part that is there.
        keep: Keep the other parts that are there, if the index is still the same `build`; what is
            written comes last.

    Raises:
        InputError: If the disk is full, the folder cannot be written or is something else than an
            index, or a part cannot be stored; what was there stays as it was.
    """
    _check_replaceable(folder)
    token = secrets.token_hex(8)
    partial = folder / f"partial-{_host()}-{os.getpid()}-{token}"
    is_new = not folder.exists()
    try:
        partial.mkdir(parents=True)
        files = {}
        for key, part in parts.items():
            if part is not None:
                for name, entry in _write_columns(partial, key.replace("/", "."), part.arrays):
                    files[f"{key}/{name}"] = entry | {"path": f"data-{token}/{entry['path']}"}
        with exclusive_lock(folder, wait=True):
            _commit(folder, partial, token, _manifest(folder, parts, files, build, keep))
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


def _write_columns(
    partial: Path, stem: str, columns: Mapping[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """Write arrays and texts; (name, entry) of each file, its path within `partial`."""
    written = []

    def write(name: str, values: Any) -> None:
        if values.dtype.hasobject:
            raise InputError(f"{stem}.{name} is an array of Python objects, which cannot be stored")
        path = partial / f"{stem}.{name}.npy"
        written.append((f"{name}.npy", write_array(path, values) | {"path": path.name}))

    for name, values in columns.items():
        if isinstance(values, np.ndarray | np.generic | StoredArray):
            write(name, np.asarray(values))
            continue
        path = partial / f"{stem}.{name}.utf8"
        offsets = np.zeros(len(values) + 1, np.uint64)
        with checked_writing(path) as writer:
            for position, text in enumerate(values):
                try:
                    encoded = text.encode("utf-8")
                except UnicodeEncodeError:
                    raise InputError(
                        f"{name} {position} holds half a surrogate pair, which is no text"
                    ) from None
                writer.write(encoded)
                offsets[position + 1] = offsets[position] + len(encoded)
        written.append((path.name.removeprefix(stem + "."), writer.entry() | {"path": path.name}))
        write(f"{name}.offsets", offsets)
    return written


def _manifest(
    folder: Path,
    parts: Mapping[str, Artifact | None],
    files: Mapping[str, Any],
    build: str,
    keep: bool,
) -> bytes:
    """The manifest of what is there when `parts` and `files` are."""
    metas, entries = dict[str, Any](), dict[str, Any]()
    if keep:
        before = read_manifest(folder)
        if before["build"] != build:
            raise IndexFormatError(f"the index {folder} was replaced meanwhile; load it again")
        metas = {key: meta for key, meta in before["parts"].items() if key not in parts}
        others = before["files"].items()
        entries = {name: entry for name, entry in others if name.rpartition("/")[0] in metas}
    try:
        added = {key: dict(part.meta) for key, part in parts.items() if part is not None}
        manifest: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "requires": [],
            "written_by": f"crossknn {version('crossknn')}",
            "build": build,
            "parts": {**metas, **added},
            "files": {**entries, **files},
        }
        manifest = json.loads(json.dumps(manifest))  # the checksum is of what a reader will see
    except (TypeError, ValueError) as error:
        raise InputError(f"a part of the index cannot be stored as JSON: {error}") from error
    manifest["checksum"] = _checksum(manifest)
    return json.dumps(manifest, indent=1).encode()


def _commit(folder: Path, partial: Path, token: str, manifest: bytes) -> None:
    sync(partial)
    data = folder / f"data-{token}"
    os.rename(partial, data)
    try:
        sync(folder)
        write_file(folder / MANIFEST, manifest)
    except BaseException:
        shutil.rmtree(data, ignore_errors=True)
        raise


def _checksum(manifest: Mapping[str, Any]) -> int:
    """CRC-32 of the manifest without its checksum."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _why_no_manifest(folder: Path) -> str:
    if not folder.exists():
        return f"there is no index {folder}"
    if not folder.is_dir():
        return f"{folder} is a file, not the folder of an index"
    if any(entry.name.startswith(("partial-", "data-")) for entry in folder.iterdir()):
        return (
            f"the index {folder} is still being written, or its writing was interrupted; wait, "
            "or build it again"
        )
    return f"{folder} is not a crossknn index: it has no {MANIFEST}"


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
    files = read_manifest(folder)["files"]
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
