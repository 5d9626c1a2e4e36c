"""Models that an index remembers by name and opens when needed: where query vectors come from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from crossknn.errors import CrossknnError, IndexFormatError, InputError
from crossknn.retrievers.late import LateInteraction
from crossknn.scorers.base import Encoder
from crossknn.types import FloatArray

EncodeQueries: TypeAlias = Callable[[Sequence[str]], FloatArray]
"""Texts (m) -> vectors (m, d)."""

GivenModel: TypeAlias = Encoder | LateInteraction | str | Path
"""A dual encoder or late-interaction model, or its folder or name."""

ModelKind: TypeAlias = Literal["dual encoder", "late-interaction model"]
_MADE = {"dual encoder": "vectors", "late-interaction model": "states"}


class RememberedModel:
    """The model that made the vectors, or states, that an index keeps as `name`.

    On disk only its source (a folder, a hub name, "bundled"; None for an object without one), its
    fingerprint and its dimensions are kept. It is opened when it is first needed, and refused there
    if its fingerprint is another: what it makes of queries would not fit the items'.
    """

    def __init__(
        self,
        kind: ModelKind,
        name: str,
        *,
        source: str | None,
        fingerprint: str | None,
        dimensions: int,
        opened: Any = None,
    ) -> None:
        self.kind, self.name, self.source = kind, name, source
        self.fingerprint, self.dimensions = fingerprint, dimensions
        self._opened = opened

    @classmethod
    def of(cls, kind: ModelKind, given: GivenModel, name: str | None = None) -> RememberedModel:
        """The model itself, or the one of that folder or name; InputError if it is none.

        `name` is that of what it makes; by default "dense", or a late-interaction model's kind.
        """
        source = lasting(given) if isinstance(given, str | Path) else None
        model: Any = given if source is None else _open(kind, source)
        if kind == "dual encoder" and not isinstance(model, Encoder):
            raise InputError(f"{model!r:.80} is no dual encoder: give one, its folder or its name")
        if kind == "late-interaction model" and not isinstance(model, LateInteraction):
            raise InputError(
                f"{type(model).__name__} is no late-interaction model: it needs kind, fingerprint, "
                "dimensions, encode_queries, encode_items and compare"
            )
        return cls(
            kind,
            name or ("dense" if kind == "dual encoder" else model.kind),
            source=source,
            fingerprint=model.fingerprint,
            dimensions=model.dimensions,
            opened=model,
        )

    def state(self) -> dict[str, Any]:
        """What the index keeps of it."""
        return {
            "source": self.source,
            "fingerprint": self.fingerprint,
            "dimensions": self.dimensions,
        }

    def attach(self, given: GivenModel) -> None:
        """Use this model; `IndexFormatError` if what the index keeps is another's."""
        source = lasting(given) if isinstance(given, str | Path) else None
        opened = given if source is None else _open(self.kind, source)
        self._check(opened, source or "given")
        self.source, self._opened = source or self.source, opened

    def get(self) -> Any:
        """The model, opened; `InputError` if that cannot be."""
        if self._opened is None:
            self._opened = self._find()
        return self._opened

    def _find(self) -> Any:
        made = f"the {_MADE[self.kind]} {self.name!r} were made by"
        given = f"encoder={{{self.name!r}: ENCODER}}"
        how = f"give it to ItemIndex.load as {given}, and save the index to keep where it is"
        if self.kind != "dual encoder":
            how = (
                f"run  crossknn index add INDEX --late MODEL --name {self.name}  with it, or {how}"
            )
        if self.source is None:
            if (bundled := self._bundled()) is not None:
                return bundled
            raise InputError(
                f"{made} a {self.kind} that has no name (fingerprint {self.fingerprint}); {how}"
            )
        try:
            opened = _open(self.kind, self.source)
        except InputError as error:
            raise InputError(
                f"{made} the {self.kind} {self.source}, which cannot be opened: {error}; if it has "
                f"moved, {how}"
            ) from error
        self._check(opened, self.source)
        return opened

    def _bundled(self) -> Any:
        """The bundled dual encoder, if it is this model."""
        if self.kind != "dual encoder":
            return None
        try:
            bundled = _open(self.kind, "bundled")
        except CrossknnError:
            return None
        return bundled if bundled.fingerprint == self.fingerprint else None

    def _check(self, opened: Any, name: str) -> None:
        if (opened.fingerprint, opened.dimensions) != (self.fingerprint, self.dimensions):
            made = _MADE[self.kind]
            raise IndexFormatError(
                f"the {made} {self.name!r} were made by another {self.kind}: its fingerprint "
                f"is {self.fingerprint} ({self.dimensions} dimensions), that of {name} is "
                f"{opened.fingerprint} ({opened.dimensions}); give the right one or make the "
                f"{made} again"
            )


def lasting(name: str | Path) -> str:
    """A folder by its full path, so that the index finds it from anywhere; other names as is."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else str(name)


def check_vectors(values: FloatArray, rows: int, dimensions: int | None, what: str) -> FloatArray:
    """Finite vectors (rows, d) as float32, or `InputError`."""
    try:
        vectors = np.asarray(values)
    except ValueError:
        raise InputError(f"{what} have rows of several lengths") from None
    if vectors.ndim != 2 or len(vectors) != rows or not vectors.shape[1]:
        raise InputError(f"{what} have the shape {vectors.shape}; it must be ({rows}, d)")
    if dimensions is not None and vectors.shape[1] != dimensions:
        raise InputError(f"{what} have {vectors.shape[1]} dimensions, the items' {dimensions}")
    if vectors.dtype.kind not in "fiu":
        raise InputError(f"{what} are an array of {vectors.dtype}, not of numbers")
    vectors = vectors.astype(np.float32, copy=False)
    check_finite(vectors, what)
    return vectors


def check_finite(vectors: FloatArray, what: str) -> None:
    """`InputError` for a row of vectors (n, d) that holds no numbers."""
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise InputError(f"{what}: row {int(np.argmin(finite))} holds a NaN or an infinity")


def _open(kind: ModelKind, name: str) -> Any:
    if kind == "dual encoder":
        from crossknn.scorers.opening import DualEncoder

        return DualEncoder(name)
    from crossknn.scorers.opening import open_late

    return open_late(name)
