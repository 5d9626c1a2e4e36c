"""Models that an index remembers by name and opens when needed: where query vectors come from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

import numpy as np

from crossknn.errors import CrossknnError, IndexFormatError, InputError
from crossknn.scorers.base import Encoder
from crossknn.types import FloatArray

EncodeQueries: TypeAlias = Callable[[Sequence[str]], FloatArray]
"""Texts (m) -> vectors (m, d)."""

GivenEncoder: TypeAlias = Encoder | str | Path
"""A dual encoder, or its folder or name."""


class Model(Protocol):
    """What is checked of a model that an index remembers."""

    @property
    def fingerprint(self) -> str | None: ...

    @property
    def dimensions(self) -> int: ...


M = TypeVar("M", bound=Model)


class Remembered(ABC, Generic[M]):
    """The model that made what an index keeps as `name`.

    On disk only its name (a folder, a hub name, "bundled"; None for an object without one), its
    fingerprint and its dimensions are kept. It is opened when it is first needed, and refused there
    if its fingerprint is another: what it makes of queries would not fit the items'.
    """

    what: ClassVar[str]
    """Such a model."""
    made: ClassVar[str]
    """What it makes."""

    def __init__(
        self,
        *,
        source: str | None,
        fingerprint: str | None,
        dimensions: int,
        name: str,
        opened: M | None = None,
    ) -> None:
        self.source = source
        self.fingerprint = fingerprint
        self.dimensions = dimensions
        self.name, self._opened = name, opened

    @classmethod
    @abstractmethod
    def open(cls, name: str) -> M:
        """The model of that name."""

    def state(self) -> dict[str, Any]:
        """What the index keeps of it."""
        return {
            "source": self.source,
            "fingerprint": self.fingerprint,
            "dimensions": self.dimensions,
        }

    def attach(self, model: M | str | Path) -> None:
        """Use `model`; `IndexFormatError` if what the index keeps is another's."""
        if isinstance(model, (str, Path)):
            source: str | None = lasting(model)
            opened = self.open(str(source))
            self._check(opened, str(source))
        else:
            source, opened = self.source, model
            self._check(opened, "given")
        self.source, self._opened = source, opened

    def get(self) -> M:
        """The model, opened."""
        if self._opened is None:
            self._opened = self._find()
        return self._opened

    def _find(self) -> M:
        if self.source is None:
            return self._without_name()
        try:
            opened = self.open(self.source)
        except InputError as error:
            raise InputError(
                f"the {self.made} {self.name!r} were made by the {self.what} {self.source}, "
                f"which cannot be opened: {error}; if it has moved, {self._how}"
            ) from error
        self._check(opened, self.source)
        return opened

    def _without_name(self) -> M:
        raise InputError(
            f"the {self.made} {self.name!r} were made by a {self.what} that has no name "
            f"(fingerprint {self.fingerprint}); {self._how}"
        )

    @property
    def _how(self) -> str:
        given = f"encoder={{{self.name!r}: ENCODER}}"
        return f"give it to ItemIndex.load as {given}, and save the index to keep where it is"

    def _check(self, opened: M, name: str) -> None:
        if (opened.fingerprint, opened.dimensions) != (self.fingerprint, self.dimensions):
            raise IndexFormatError(
                f"the {self.made} {self.name!r} were made by another {self.what}: its fingerprint "
                f"is {self.fingerprint} ({self.dimensions} dimensions), that of {name} is "
                f"{opened.fingerprint} ({opened.dimensions}); give the right one or make the "
                f"{self.made} again"
            )


class RememberedEncoder(Remembered[Encoder]):
    """The dual encoder of one vector space, the vectors `name`."""

    what = "dual encoder"
    made = "vectors"

    @staticmethod
    def of(encoder: GivenEncoder) -> RememberedEncoder:
        """The encoder itself, or the one of that name."""
        source = None
        if isinstance(encoder, (str, Path)):
            source = lasting(encoder)
            encoder = RememberedEncoder.open(source)
        if not isinstance(encoder, Encoder):
            raise InputError(
                f"{encoder!r:.80} is no dual encoder: give one, its folder or its name"
            )
        return RememberedEncoder(
            source=source,
            fingerprint=encoder.fingerprint,
            dimensions=encoder.dimensions,
            name="dense",
            opened=encoder,
        )

    @staticmethod
    def from_state(state: dict[str, Any], name: str = "dense") -> RememberedEncoder:
        """The encoder of a stored index's vectors `name`, not opened yet."""
        return RememberedEncoder(**state, name=name)

    @classmethod
    def open(cls, name: str) -> Encoder:
        from crossknn.scorers.opening import DualEncoder

        return DualEncoder(name)

    def _without_name(self) -> Encoder:
        try:
            bundled = self.open("bundled")
        except CrossknnError:
            bundled = None
        if bundled is not None and bundled.fingerprint == self.fingerprint:
            return bundled
        return super()._without_name()


def lasting(name: str | Path) -> str:
    """A folder by its full path, so that the index finds it from anywhere; other names as is."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else str(name)


def checked_vectors(values: FloatArray, rows: int, dimensions: int | None, what: str) -> FloatArray:
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
    finite = np.isfinite(vectors).all(axis=1)
    if not finite.all():
        raise InputError(f"{what}: row {int(np.argmin(finite))} holds a NaN or an infinity")
    return vectors
