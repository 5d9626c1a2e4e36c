"""What an index keeps for a late-interaction model: the states of its items, and who made them.

States are written as they are made, so that a kill loses a part. A work folder holds `<key>.f16`,
the values (s, d) of the items encoded so far, and `<key>.i64`, how many of them each item has. The
key names the model and the items; what has another is removed.

Axes: n items, s states, d dimensions.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.files import digest, rows_of, translate_os_errors
from crossknn.index.encoders import RememberedModel
from crossknn.types import Artifact, IntArray, Progress, States

logger = logging.getLogger(__name__)

AT_ONCE = 1024
"""Items of a part. Parts begin at its multiples: a run that goes on has the same batches."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LateStates:
    """The states of n items, float16 and mapped if the index was loaded, and their model."""

    states: States
    model: RememberedModel
    kind: str

    def check(self, n: int, name: str) -> None:
        """`InputError` unless they are the states of n items, one at least of each."""
        what = f"the states {name!r}"
        values, starts = self.states.values, self.states.starts
        if len(self.states) != n:
            raise InputError(f"{what} are those of {len(self.states)} items, out of {n}")
        d = self.model.dimensions
        if values.dtype != np.float16 or len(values.shape) != 2 or values.shape[1] != d:
            raise InputError(
                f"{what} are an array of {values.dtype} of the shape {values.shape}; it must be "
                f"float16, (states, {d})"
            )
        if starts[0] != 0 or starts[-1] != len(values) or (self.states.counts < 1).any():
            raise InputError(f"{what} do not give every item at least one state")
        if not np.isfinite(values).all():
            raise InputError(f"{what} hold a NaN or an infinity")

    def artifact(self) -> Artifact:
        """What an index keeps."""
        values, starts = np.asarray(self.states.values), self.states.starts
        meta = {"kind": self.kind, "states": len(values), **self.model.state()}
        return Artifact(meta, {"values": values, "starts": starts})

    @staticmethod
    def of(artifact: Artifact, name: str) -> LateStates:
        """What was kept as `name`, mapped."""
        state = {key: artifact.meta[key] for key in ("source", "fingerprint", "dimensions")}
        model = RememberedModel("late-interaction model", name, **state)
        arrays = artifact.arrays
        states = States(rows_of(arrays, "values"), arrays["starts"])
        return LateStates(states=states, model=model, kind=artifact.meta["kind"])


def encode_states(
    model: RememberedModel,
    texts: Sequence[str],
    before: LateStates | None,
    work: Path | None,
    progress: Progress | None = None,
) -> LateStates:
    """The states of n texts: those of `before`, if they are the same model's, or new ones.

    New ones are kept in the folder `work` as they are made, if there is one, and only those of a
    part are held in memory; what a killed run made there is taken up. A model without a fingerprint
    begins anew. Raises `InputError` if `before` is another's, the model gives states that do not
    fit, or for a full disk.
    """
    opened = model.get()
    if before is not None and before.model.fingerprint == model.fingerprint is not None:
        return replace(before, model=model)
    if before is not None:
        raise InputError(
            f"the index has states {model.name!r} of another model (fingerprint "
            f"{before.model.fingerprint}); use another name, or replace them (--replace)"
        )

    def encode(part: Sequence[str], report: Progress | None) -> States:
        states = opened.encode_items(part, report)
        LateStates(states=states, model=model, kind=opened.kind).check(len(part), model.name)
        return states

    if work is None:
        return LateStates(states=encode(texts, progress), model=model, kind=opened.kind)
    n = len(texts)
    with translate_os_errors(work, "states"):
        made = _Made(work, model, texts)
    if made.done:
        logger.info("%d of %d items are encoded already", made.done, n)
    for start in range(made.done, n, AT_ONCE):

        def report(done: int, _: int, start: int = start) -> None:
            if progress is not None:
                progress(start + done, n)

        try:
            part = encode(texts[start : start + AT_ONCE], report)
        except ScorerError as error:
            raise ScorerError(f"in the items from {start} on: {error}") from error
        with translate_os_errors(work, "states"):
            made.add(part)
    return LateStates(states=made.states(), model=model, kind=opened.kind)


def discard(folder: Path | None) -> None:
    """Remove the states in a work folder, which are in the index now."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


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
