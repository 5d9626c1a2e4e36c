"""What an index keeps for a late-interaction model: the states of its items, and who made them.

States are written as they are made, so that a kill loses a part. A work folder holds `<key>.f16`,
the values (s, d) of the items encoded so far, and `<key>.i64`, how many of them each item has. The
key names the model and the items; files with another key are removed.

Axes: n items, s states, d dimensions.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.files import digest, exclusive_lock, rows_of, translate_os_errors
from crossknn.index.vectors import RememberedModel
from crossknn.types import Artifact, IntArray, Progress, States

logger = logging.getLogger(__name__)

AT_ONCE = 1024
"""Items of a part. Parts begin at its multiples: a run that goes on has the same batches."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LateStates:
    """The states of n items, float16 and mapped if the index was loaded, and their model."""

    states: States
    model: RememberedModel

    def artifact(self) -> Artifact:
        """What an index keeps."""
        values, starts = np.asarray(self.states.values), self.states.starts
        return Artifact(
            {"states": len(values), **self.model.state()}, {"values": values, "starts": starts}
        )

    @staticmethod
    def of(artifact: Artifact, name: str) -> LateStates:
        """What was kept as `name`, mapped."""
        known = {key: value for key, value in artifact.meta.items() if key != "states"}
        model = RememberedModel("late-interaction model", name, **known)
        arrays = artifact.arrays
        return LateStates(states=States(rows_of(arrays, "values"), arrays["starts"]), model=model)


def encode_states(
    model: RememberedModel,
    texts: Sequence[str],
    folder: Path | None,
    progress: Progress | None = None,
) -> LateStates:
    """The states of n texts, float16.

    With the `folder` of an index they are written to a work folder in it as they are made, and only
    those of a part are held in memory; what a killed run made there is taken up. A model without a
    fingerprint begins anew. Raises `InputError` if the model gives states that do not fit, for a
    full disk, and if another process is encoding.
    """
    if folder is None:
        return LateStates(states=_encode(model, texts, progress), model=model)
    n, work = len(texts), folder / f"work-late-{model.name}"
    with translate_os_errors(work, "states"):
        work.mkdir(exist_ok=True)
    with exclusive_lock(work, what="states"):
        with translate_os_errors(work, "states"):
            made = _Made(work, model, texts)
        if made.done:
            logger.info("%d of %d items are encoded already", made.done, n)
        for start in range(made.done, n, AT_ONCE):

            def report(done: int, _: int, start: int = start) -> None:
                if progress is not None:
                    progress(start + done, n)

            try:
                part = _encode(model, texts[start : start + AT_ONCE], report)
            except ScorerError as error:
                raise ScorerError(f"in the items from {start} on: {error}") from error
            with translate_os_errors(work, "states"):
                made.add(part)
        return LateStates(states=made.states(), model=model)


def discard_work(folder: Path | None, name: str) -> None:
    """Remove the work folder, whose states are in the index now."""
    if folder is not None:
        shutil.rmtree(folder / f"work-late-{name}", ignore_errors=True)


def _encode(model: RememberedModel, texts: Sequence[str], progress: Progress | None) -> States:
    """States of the texts, one at least of each; `InputError` for others."""
    found: States = model.get().encode_items(texts, progress)
    values, starts, d = found.values, found.starts, model.dimensions
    if (
        (len(found), values.dtype, values.shape[1:]) != (len(texts), np.dtype(np.float16), (d,))
        or (starts[0], starts[-1]) != (0, len(values))
        or (found.counts < 1).any()
        or not np.isfinite(values).all()
    ):
        raise InputError(
            f"the states {model.name!r} of {len(texts)} items are {values.dtype} of the shape "
            f"{values.shape}, of {len(found)} items; they must be finite float16, (states, {d}), "
            "at least one of each item"
        )
    return found


class _Made:
    """What a work folder holds; `done` says of how many items."""

    def __init__(self, folder: Path, model: RememberedModel, texts: Sequence[str]) -> None:
        self._d = d = model.dimensions
        what = f"{model.fingerprint}|{d}|{digest(texts)}"
        key = hashlib.blake2b(what.encode(), digest_size=16).hexdigest()
        self._values, self._counts = folder / f"{key}.f16", folder / f"{key}.i64"
        for other in folder.iterdir():
            if other not in (self._values, self._counts):
                logger.info("%s is of other items or of another model: it is removed", other)
                other.unlink()
        for path in (self._values, self._counts):
            path.touch()
        there = self._values.stat().st_size // (2 * d)
        whole = int(np.searchsorted(np.cumsum(self._known()), there, side="right"))
        whole = whole if whole == len(texts) else whole // AT_ONCE * AT_ONCE
        self.done = 0 if model.fingerprint is None else whole
        os.truncate(self._values, 2 * d * int(self._known()[: self.done].sum()))
        os.truncate(self._counts, 8 * self.done)

    def add(self, part: States) -> None:
        """The counts come last: states without one do not count."""
        _append(self._values, part.values.astype("<f2", copy=False))
        _append(self._counts, part.counts.astype("<i8", copy=False))

    def states(self) -> States:
        """All of them, mapped."""
        starts = np.concatenate([[0], np.cumsum(self._known())])
        shape = (int(starts[-1]), self._d)
        return States(np.memmap(self._values, dtype="<f2", mode="r", shape=shape), starts)

    def _known(self) -> IntArray:
        return np.fromfile(self._counts, dtype="<i8")


def _append(path: Path, content: Any) -> None:
    with path.open("ab") as file:
        file.write(content.tobytes())
        file.flush()
        os.fsync(file.fileno())
