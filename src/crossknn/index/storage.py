"""An index on disk: a folder of plain files that is replaced in one step.

    crossknn-index.json      the manifest: what there is, where, how long, and its checksum
    data-<token>/            the files of one writing; never changed once the manifest names them
    partial-<host>-<pid>-<token>/   a writing in progress, invisible to readers
    work-<name>/             unfinished rows of paid scores (see `table`)
    work-late-<name>/        states of the items encoded so far (see `part_states`)
    work-pairs/              scores of pairs of texts, for good (see `align.bank`)

A writing fills a partial folder, syncs it, renames it and then replaces the manifest, which is
the one atomic step: whatever is killed, and whenever, the manifest names complete files only.
Adding anchors writes a folder of its own and leaves the others where they are. Arrays are `.npy`,
texts one UTF-8 blob with uint64 offsets, everything else JSON. Nothing is ever unpickled.

A manifest that `requires` a feature this version does not know (deleted items, appended
segments) is refused, so later versions can add them without a new format.
"""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import IndexFormatError
from crossknn.index.columns import StoredTexts

T = TypeVar("T")

MANIFEST = "crossknn-index.json"
FORMAT = "crossknn-index"
VERSION = 1

_PATH = re.compile(r"data-[0-9a-f]+/[\w.-]+")
_ENDS = 64 * 1024


class IndexReader:
    """The files of a complete index, mapped on demand."""

    def __init__(self, folder: Path) -> None:
        """Check the manifest, and every file's length and ends; raises `IndexFormatError`."""
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.meta: dict[str, Any] = self.manifest["meta"]
        self._files: dict[str, dict[str, Any]] = self.manifest["files"]
        for name in self._files:
            self._check(name)

    def _check(self, name: str) -> None:
        entry, path = self._files[name], self._path(name)
        try:
            size, checksum = path.stat().st_size, quick_checksum(path)
        except OSError as error:
            raise IndexFormatError(
                f"the index {self.folder} is damaged: {name} cannot be read ({error.strerror})"
            ) from error
        if size != entry["bytes"]:
            raise IndexFormatError(
                f"the index {self.folder} is damaged: {name} has {size} bytes instead of "
                f"{entry['bytes']}; build or copy it again"
            )
        if checksum != entry["checksum"]:
            raise IndexFormatError(
                f"the index {self.folder} is damaged: the contents of {name} have changed; "
                "build or copy it again"
            )

    def _path(self, name: str) -> Path:
        return self.folder / str(self._files[name]["path"])

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def array(self, name: str) -> NDArray[Any]:
        """The array of that name, mapped read-only."""
        with self._reading(name + ".npy") as path:
            try:
                mapped = np.load(path, mmap_mode="r", allow_pickle=False)
            except ValueError:
                # An array without elements cannot be mapped.
                mapped = np.load(path, allow_pickle=False)
            return np.asarray(mapped)

    def texts(self, name: str) -> StoredTexts:
        """The strings of that name, mapped."""
        with self._reading(name + ".utf8") as path:
            empty = path.stat().st_size == 0
            data = np.zeros(0, np.uint8) if empty else np.memmap(path, dtype=np.uint8, mode="r")
        return StoredTexts(np.asarray(data), self.array(name + ".offsets"))

    def json(self, name: str) -> Any:
        """The JSON value of that name."""
        with self._reading(name + ".json") as path:
            return json.loads(path.read_text(encoding="utf-8"))

    def state(self, prefix: str) -> dict[str, Any]:
        """Everything that was written under `prefix` by `IndexWriter.state`."""
        found: dict[str, Any] = {}
        for name in self._files:
            if name.startswith(prefix + "."):
                stem, _, kind = name.rpartition(".")
                key = stem.removeprefix(prefix + ".")
                found[key] = self.array(stem) if kind == "npy" else self.json(stem)
        return found

    @contextmanager
    def _reading(self, name: str) -> Iterator[Path]:
        if name not in self._files:
            raise IndexFormatError(f"the index {self.folder} has no {name}")
        try:
            yield self._path(name)
        except (OSError, ValueError) as error:
            raise IndexFormatError(
                f"{name} of the index {self.folder} cannot be read ({error}); if it was replaced "
                "meanwhile, load it again"
            ) from error


def read_index(folder: Path, read: Callable[[IndexReader], T]) -> T:
    """`read` of the index in `folder`; once more if the index was replaced while it was read."""
    while True:
        before = read_manifest(folder)
        try:
            return read(IndexReader(folder))
        except IndexFormatError:
            if read_manifest(folder)["checksum"] == before["checksum"]:
                raise


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
    version, requires = manifest.get("version"), manifest.get("requires", [])
    if version != VERSION or requires:
        needs = f"format {version}" if version != VERSION else ", ".join(map(str, requires))
        raise IndexFormatError(
            f"the index {folder} was written by a newer version of crossknn (it needs {needs}); "
            "upgrade crossknn or build the index again"
        )
    files = manifest.get("files")
    if manifest.get("checksum") != manifest_checksum(manifest) or not isinstance(files, dict):
        raise IndexFormatError(f"the index {folder} is damaged: {MANIFEST} has been changed")
    for entry in files.values():
        if not _PATH.fullmatch(str(entry["path"])):
            raise IndexFormatError(f"the index {folder} names a file outside its folder")
    return cast(dict[str, Any], manifest)


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


def manifest_checksum(manifest: Mapping[str, Any]) -> int:
    """CRC-32 of the manifest without its checksum."""
    content = {key: value for key, value in manifest.items() if key != "checksum"}
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def quick_checksum(path: Path) -> int:
    """CRC-32 of a file's first and last 64 KiB: notices damage without reading gigabytes."""
    with path.open("rb") as file:
        checksum = zlib.crc32(file.read(_ENDS))
        if (size := path.stat().st_size) > _ENDS:
            file.seek(max(_ENDS, size - _ENDS))
            checksum = zlib.crc32(file.read(), checksum)
    return checksum


def digest(texts: Iterable[str]) -> str:
    """Names the contents of a column of texts."""
    total = hashlib.blake2b(digest_size=16)
    for text in texts:
        encoded = text.encode("utf-8", "replace")
        total.update(len(encoded).to_bytes(8, "little") + encoded)
    return total.hexdigest()
