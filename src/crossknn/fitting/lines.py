"""Texts that pairs name by their line in a file.

Files are appended to, so a line stays what it is; what a kill cut off at the end is written again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossknn.types import IntArray

Digests: TypeAlias = NDArray[np.bytes_]

_DIGEST = 16


def digests(texts: Sequence[str]) -> Digests:
    """What tells each text (n,) from every other one."""
    encoded = (text.encode("utf-8", "surrogatepass") for text in texts)
    found = b"".join(blake2b(data, digest_size=_DIGEST).digest() for data in encoded)
    return np.frombuffer(found, f"S{_DIGEST}")


class QueryLines:
    """Different texts by line; those beyond the ones kept are not in the file yet."""

    def __init__(self, path: Path | None) -> None:
        """Raises ValueError or TypeError for a file that is none of these."""
        known = b"" if path is None else path.read_bytes()
        self._path, self._end = path, known.rfind(b"\n") + 1
        texts = map(json.loads, known[: self._end].splitlines())
        self._line: dict[str, int] = {text: line for line, text in enumerate(texts)}
        self._kept = len(self._line)

    def __len__(self) -> int:
        return len(self._line)

    @property
    def texts(self) -> list[str]:
        """All of them, by line."""
        return list(self._line)

    def of(self, texts: Sequence[str]) -> IntArray:
        """The line of each text (q,); new ones follow those there, each once."""
        found = [self._line.setdefault(text, len(self._line)) for text in texts]
        return np.array(found, dtype=np.int64)

    def keep(self) -> None:
        """Write what is not in the file yet, so that pairs on the disk may name it."""
        new = list(self._line)[self._kept :]
        data = "".join(json.dumps(text) + "\n" for text in new).encode()
        _append(self._path, self._end, data)
        self._end, self._kept = self._end + len(data), len(self._line)


class ItemLines:
    """Digests of different texts by line; those beyond the ones kept are not in the file yet."""

    def __init__(self, path: Path | None) -> None:
        known = b"" if path is None else path.read_bytes()
        self._path, self._kept = path, len(known) // _DIGEST
        self.digests: Digests = np.frombuffer(known, f"S{_DIGEST}", count=self._kept)

    def __len__(self) -> int:
        return len(self.digests)

    def of(self, wanted: Digests) -> IntArray:
        """The line of each digest (n,); new ones follow those there, each once."""
        known, both = len(self), np.concatenate([self.digests, wanted])
        _, first, which = np.unique(both, return_index=True, return_inverse=True)
        new = np.sort(first[first >= known])
        line = np.where(first < known, first, known + np.searchsorted(new, first))
        self.digests = np.concatenate([self.digests, both[new]])
        return line[which[known:]]

    def keep(self) -> None:
        """Write what is not in the file yet, so that pairs on the disk may name it."""
        _append(self._path, self._kept * _DIGEST, self.digests[self._kept :].tobytes())
        self._kept = len(self.digests)


def _append(path: Path | None, end: int, data: bytes) -> None:
    """Put `data` in place of what follows `end`, on the disk."""
    if path is not None and data:
        with path.open("r+b") as file:
            file.truncate(end)
            file.seek(end)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
