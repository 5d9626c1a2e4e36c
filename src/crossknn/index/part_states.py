"""States of items while they are made: they are written as they come, so that a kill loses a part.

A work folder holds `<key>.f16`, the values (s, d) of the items encoded so far, and `<key>.i64`, how
many of them each item has. The key names the model and the items; what has another is removed.

Axes: n items, s states, d dimensions.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from crossknn.errors import ScorerError
from crossknn.index.disk import keeping
from crossknn.index.storage import digest
from crossknn.types import Progress, States

logger = logging.getLogger(__name__)

Encode: TypeAlias = Callable[[Sequence[str], Progress | None], States]
"""Texts -> their states, float16, (s, d)."""

AT_ONCE = 1024
"""Items of a part. Parts begin at its multiples: a run that goes on has the same batches."""


def encode_in_parts(
    encode: Encode,
    texts: Sequence[str],
    d: int,
    folder: Path,
    fingerprint: str | None,
    progress: Progress | None = None,
) -> States:
    """The states of n texts, mapped from `folder`, where what a killed run made is taken up.

    Only the states of a part are held in memory. Those of another `fingerprint`, or of other texts,
    are removed; a model without one begins anew. Raises `InputError` for a full disk.
    """
    with keeping(folder, "states"):
        folder.mkdir(exist_ok=True)
        made = _Made(folder, _key(fingerprint, d, texts), d, len(texts))
        if fingerprint is None:
            made.keep(0)
    if made.done:
        logger.info("%d of %d items are encoded already", made.done, len(texts))
    for start in range(made.done, len(texts), AT_ONCE):
        try:
            part = encode(texts[start : start + AT_ONCE], _shifted(progress, start, len(texts)))
        except ScorerError as error:
            raise ScorerError(f"in the items from {start} on: {error}") from error
        with keeping(folder, "states"):
            made.add(part)
    return made.states()


def discard(folder: Path | None) -> None:
    """Remove the states in a work folder, which are in the index now."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


class _Made:
    """What a work folder holds; `done` says of how many items."""

    def __init__(self, folder: Path, key: str, d: int, n: int) -> None:
        self._values, self._counts, self._d = folder / f"{key}.f16", folder / f"{key}.i64", d
        for other in folder.iterdir():
            if other not in (self._values, self._counts):
                logger.info("%s is of other items or of another model: it is removed", other)
                other.unlink()
        for path in (self._values, self._counts):
            path.touch()
        there = self._values.stat().st_size // (2 * d)
        whole = int(np.searchsorted(np.cumsum(self._known()), there, side="right"))
        self.keep(whole if whole == n else whole // AT_ONCE * AT_ONCE)

    def keep(self, items: int) -> None:
        """Only the first items."""
        os.truncate(self._values, 2 * self._d * int(self._known()[:items].sum()))
        os.truncate(self._counts, 8 * items)
        self.done = items

    def add(self, part: States) -> None:
        """The counts come last: states without one do not count."""
        _append(self._values, part.values.astype("<f2", copy=False).tobytes())
        _append(self._counts, part.counts.astype("<i8", copy=False).tobytes())

    def states(self) -> States:
        """All of them, mapped."""
        starts = np.concatenate([[0], np.cumsum(self._known())])
        shape = (int(starts[-1]), self._d)
        return States(np.memmap(self._values, dtype="<f2", mode="r", shape=shape), starts)

    def _known(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.fromfile(self._counts, dtype="<i8")


def _append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _key(fingerprint: str | None, d: int, texts: Sequence[str]) -> str:
    what = f"{fingerprint}|{d}|{digest(texts)}"
    return hashlib.blake2b(what.encode(), digest_size=16).hexdigest()


def _shifted(progress: Progress | None, start: int, n: int) -> Progress | None:
    return None if progress is None else lambda done, _: progress(start + done, n)
