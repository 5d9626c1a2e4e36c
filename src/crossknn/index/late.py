"""What an index keeps for a late-interaction model: the states of its items, and who made them.

Axes: n items, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from crossknn.errors import InputError
from crossknn.index.encoders import Remembered, lasting
from crossknn.index.part_states import encode_in_parts
from crossknn.index.storage import IndexReader
from crossknn.index.writing import IndexWriter
from crossknn.retrievers.late import LateInteraction
from crossknn.types import Progress, States

GivenLate: TypeAlias = LateInteraction | str | Path
"""A late-interaction model, or its folder or name."""


class RememberedLate(Remembered[LateInteraction]):
    """The late-interaction model of the states `name`."""

    what = "late-interaction model"
    made = "states"

    @property
    def _how(self) -> str:
        return f"run  crossknn encode INDEX MODEL --name {self.name}  with it, or {super()._how}"

    @staticmethod
    def of(model: GivenLate, name: str | None = None) -> RememberedLate:
        """The model itself, or the one of that folder or name; `name` is its kind by default."""
        source = None
        if isinstance(model, (str, Path)):
            source = lasting(model)
            model = RememberedLate.open(str(model))
        if not isinstance(model, LateInteraction):
            raise InputError(
                f"{type(model).__name__} is no late-interaction model: it needs kind, fingerprint, "
                "dimensions, encode_queries, encode_items and compare"
            )
        return RememberedLate(
            source=source,
            fingerprint=model.fingerprint,
            dimensions=model.dimensions,
            name=name or model.kind,
            opened=model,
        )

    @classmethod
    def open(cls, name: str) -> LateInteraction:
        from crossknn.scorers import open_late

        return cast(LateInteraction, open_late(name))


@dataclass(frozen=True, kw_only=True, eq=False)
class LateStates:
    """The states of n items, float16 and mapped if the index was loaded, and their model."""

    states: States
    model: RememberedLate
    kind: str

    def check(self, n: int, name: str) -> None:
        """`InputError` unless they are the states of n items, one at least of each."""
        what = f"the states {name!r}"
        values, starts = self.states.values, self.states.starts
        if len(self.states) != n:
            raise InputError(f"{what} are those of {len(self.states)} items, out of {n}")
        d = self.model.dimensions
        if values.dtype != np.float16 or values.ndim != 2 or values.shape[1] != d:
            raise InputError(
                f"{what} are an array of {values.dtype} of the shape {values.shape}; it must be "
                f"float16, (states, {d})"
            )
        if starts[0] != 0 or starts[-1] != len(values) or (self.states.counts < 1).any():
            raise InputError(f"{what} do not give every item at least one state")
        if not np.isfinite(values).all():
            raise InputError(f"{what} hold a NaN or an infinity")

    def meta(self) -> dict[str, Any]:
        """What the manifest says of them."""
        return {"kind": self.kind, "states": len(self.states.values), **self.model.state()}

    def write(self, writer: IndexWriter, name: str) -> None:
        """Put them on the disk as `name`."""
        writer.replace(f"late-{name}.")
        writer.array(f"late-{name}.values", self.states.values)
        writer.array(f"late-{name}.starts", self.states.starts)

    @staticmethod
    def read(reader: IndexReader, name: str) -> LateStates:
        """The stored states `name`, mapped."""
        meta = {k: v for k, v in reader.meta["late"][name].items() if k != "states"}
        kind = meta.pop("kind")
        states = States(reader.array(f"late-{name}.values"), reader.array(f"late-{name}.starts"))
        return LateStates(states=states, model=RememberedLate(**meta, name=name), kind=kind)


def encoded(
    model: RememberedLate,
    texts: Sequence[str],
    before: LateStates | None,
    work: Path | None,
    progress: Progress | None = None,
) -> LateStates:
    """The states of n texts: those of `before`, if they are the same model's, or new ones, which
    are kept in `work` as they are made, if there is such a folder.

    Raises `InputError` if `before` is another's, or the model gives states that do not fit.
    """
    opened = model.get()
    if before is not None and before.model.fingerprint == model.fingerprint is not None:
        return replace(before, model=model)
    if before is not None:
        raise InputError(
            f"the index has states {model.name!r} of another model (fingerprint "
            f"{before.model.fingerprint}); use another name, or replace them (--replace)"
        )

    def checked(part: Sequence[str], report: Progress | None) -> States:
        states = opened.encode_items(part, report)
        LateStates(states=states, model=model, kind=opened.kind).check(len(part), model.name)
        return states

    states = (
        checked(texts, progress)
        if work is None
        else encode_in_parts(checked, texts, model.dimensions, work, model.fingerprint, progress)
    )
    return LateStates(states=states, model=model, kind=opened.kind)
