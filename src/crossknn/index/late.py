"""What an index keeps for a late-interaction model: the states of its items, and who made them.

A work folder holds a file `<key>-<start>.npz` for each part: the states' values (s, d), and how
many each item has. The key names the model and the items; files with another key are removed.

Axes: n items, s states, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from crossknn.columns import rows_of
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
"""Items of a part."""

_ALL = "all.f16"


class LateStates(NamedTuple):
    """The states of n items, float16 and mapped if the index was loaded, and their model."""

    states: States
    encoder: RememberedModel

    def artifact(self) -> Artifact:
        """What an index keeps."""
        values, starts = self.states.values, self.states.starts
        meta = {"states": len(values), **self.encoder.state()}
        return Artifact(meta, {"values": values, "starts": starts})

    @staticmethod
    def of(artifact: Artifact, name: str) -> LateStates:
        """What was kept as `name`, mapped."""
        arrays, known = artifact.arrays, dict(artifact.meta)
        del known["states"]
        model = RememberedModel("late-interaction model", name, **known)
        return LateStates(States(rows_of(arrays, "values"), arrays["starts"]), model)


def encode_states(
    model: RememberedModel,
    texts: Sequence[str],
    folder: Path | None,
    progress: Progress | None = None,
) -> States:
    """The states of n texts, float16.

    With the `folder` of an index they are made in parts in a work folder, which a killed run
    resumes. Raises `InputError` for states that do not fit, a full disk, and another process.
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
    """Where the states `name` lie until they are in the index in `folder`."""
    return folder / f"work-late-{name}"


def _read(work: Path, names: Sequence[str], d: int) -> States:
    """The states of all parts, mapped."""
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
    """States of the texts `start` to `stop`, one at least of each; `InputError` for others."""
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
