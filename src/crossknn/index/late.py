"""The states of an index's items under a late-interaction model, and the model itself.

While items are encoded, a work folder holds a file `<key>-<start>.npz` for each batch: the values
(s, d) and the number of states of each item. The key names the model and the items; files with
another key are removed.

Axes: n items, s states, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from crossknn.errors import InputError
from crossknn.files import (
    digest,
    exclusive_lock,
    is_file,
    make_folder,
    new_file,
    open_file,
    read_npz,
    translate_os_errors,
)
from crossknn.index.vectors import RememberedModel
from crossknn.types import Artifact, Progress, States

AT_ONCE = 1024
"""Number of items per file."""

_ALL = "all.f16"


class LateStates(NamedTuple):
    """The states of n items in float16, memory-mapped if the index was loaded, with their model."""

    states: States
    encoder: RememberedModel

    def artifact(self) -> Artifact:
        """Convert to an artifact, as stored in the index."""
        values, starts = self.states.values, self.states.starts
        meta = {"states": len(values), **self.encoder.state()}
        return Artifact(meta, {"values": values, "starts": starts})

    @staticmethod
    def of(artifact: Artifact, name: str) -> LateStates:
        """Read from the artifact that was stored as `name`, memory-mapped."""
        arrays, known = artifact.arrays, dict(artifact.meta)
        del known["states"]
        model = RememberedModel("late-interaction model", name, **known)
        return LateStates(States(artifact.rows("values"), arrays["starts"]), model)


def encode_states(
    model: RememberedModel,
    texts: Sequence[str],
    folder: Path | None,
    progress: Progress | None = None,
) -> States:
    """Encode n texts into states in float16.

    With the `folder` of an index, finished batches are kept in a work folder, so that a killed run
    can resume. Raises `InputError` if the model returns states of another shape, the disk is full,
    or another process is encoding.
    """
    if folder is None:
        return _encode(model, texts, progress)
    n, work = len(texts), work_folder(folder, model.name)
    key = digest([str(model.fingerprint), str(model.dimensions), *texts])
    paths = {start: work / f"{key}-{start}.npz" for start in range(0, n, AT_ONCE)}
    with translate_os_errors(work, "states"):
        make_folder(work)
        with exclusive_lock(work, what="states"):
            made = set() if model.fingerprint is None else {*paths.values()}
            for other in {*work.iterdir()} - made:  # of other items, or of another model
                other.unlink()
            for start, path in paths.items():
                if not is_file(work, path.name):
                    part = _encode(model, texts, progress, start, start + AT_ONCE)
                    with new_file(work, path.name) as file:
                        np.savez(file, values=part.values, counts=part.counts)
            return _read(work, [path.name for path in paths.values()], model.dimensions)


def work_folder(folder: Path, name: str) -> Path:
    """Return the work folder for the states `name`."""
    return folder / f"work-late-{name}"


def _read(work: Path, names: Sequence[str], d: int) -> States:
    """Read the states of all batches, memory-mapped."""
    counts = np.concatenate([read_npz(work, name, ["counts"])["counts"] for name in names])
    starts = np.concatenate([[0], np.cumsum(counts)])
    with suppress(FileNotFoundError):
        (work / _ALL).unlink()
    with open_file(work, _ALL, "x+b") as file:
        values = np.memmap(file, np.float16, "w+", shape=(int(starts[-1]), d))
    for name, start in zip(names, starts[::AT_ONCE].tolist(), strict=False):
        part = read_npz(work, name, ["values"])["values"]
        values[start : start + len(part)] = part
    return States(values, starts)


def _encode(
    model: RememberedModel,
    texts: Sequence[str],
    progress: Progress | None,
    start: int = 0,
    stop: int | None = None,
) -> States:
    """Encode the texts from `start` to `stop`; `InputError` unless each gets at least one state."""
    part = texts[start:stop]
    report = progress and (lambda done, _: progress(start + done, len(texts)))
    found: States = model.get().encode_items(part, report)
    values, starts, d = found.values, found.starts, model.dimensions
    if (
        (len(found), values.dtype, values.shape[1:]) != (len(part), np.dtype(np.float16), (d,))
        or (starts[0], starts[-1]) != (0, len(values))
        or (found.counts < 1).any()
        or not np.isfinite(values).all()
    ):
        raise InputError(
            f"the states {model.name!r} of {len(part)} items are {values.dtype} of the shape "
            f"{values.shape}, of {len(found)} items; they must be finite float16, (states, {d}), "
            "at least one of each item"
        )
    return found
