"""Where an index gets query vectors from: an encoder, remembered by name and opened when needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import CrossknnError, IndexFormatError, InputError
from crossknn.scorers.encoder import Encoder
from crossknn.types import FloatArray

EncodeQueries: TypeAlias = Callable[[Sequence[str]], FloatArray]
"""Texts (m) -> vectors (m, d)."""

GivenEncoder: TypeAlias = Encoder | str | Path
"""A dual encoder, or its folder or name."""


class RememberedEncoder:
    """The dual encoder of one vector space, the vectors `name`.

    On disk only its name (a folder, a hub name, "bundled"; None for an object without one),
    its fingerprint and its dimensions are kept. It is opened on the first query, and refused
    there if its fingerprint is another: its query vectors would not fit the item vectors.
    """

    def __init__(
        self,
        *,
        source: str | None,
        fingerprint: str | None,
        dimensions: int,
        name: str = "de",
        opened: Encoder | None = None,
    ) -> None:
        self.source = source
        self.fingerprint = fingerprint
        self.dimensions = dimensions
        self._name, self._opened = name, opened

    @staticmethod
    def of(encoder: GivenEncoder) -> RememberedEncoder:
        """The encoder itself, or the one of that name."""
        source = None
        if isinstance(encoder, (str, Path)):
            source = _lasting(encoder)
            encoder = _open(source)
        return RememberedEncoder(
            source=source,
            fingerprint=encoder.fingerprint,
            dimensions=encoder.dimensions,
            opened=encoder,
        )

    @staticmethod
    def from_state(state: dict[str, Any], name: str = "de") -> RememberedEncoder:
        """The encoder of a stored index's vectors `name`, not opened yet."""
        return RememberedEncoder(**state, name=name)

    def state(self) -> dict[str, Any]:
        """What the index keeps of it."""
        return {
            "source": self.source,
            "fingerprint": self.fingerprint,
            "dimensions": self.dimensions,
        }

    def attach(self, encoder: GivenEncoder) -> None:
        """Use `encoder`; `IndexFormatError` if the item vectors are another's."""
        source = _lasting(encoder) if isinstance(encoder, (str, Path)) else self.source
        opened = _open(str(source)) if isinstance(encoder, (str, Path)) else encoder
        self._check(opened, str(source) if isinstance(encoder, (str, Path)) else "given")
        self.source, self._opened = source, opened

    def get(self) -> Encoder:
        """The encoder, opened."""
        if self._opened is None:
            self._opened = self._find()
        return self._opened

    def _find(self) -> Encoder:
        if self.source is not None:
            try:
                opened = _open(self.source)
            except InputError as error:
                raise InputError(
                    f"the vectors {self._name!r} were made by the dual encoder {self.source}, "
                    f"which cannot be opened: {error}; if it has moved, {self._how}"
                ) from error
            self._check(opened, self.source)
            return opened
        try:
            bundled = _open("bundled")
        except CrossknnError:
            bundled = None
        if bundled is not None and bundled.fingerprint == self.fingerprint:
            return bundled
        raise InputError(
            f"the vectors {self._name!r} were made by a dual encoder that has no name "
            f"(fingerprint {self.fingerprint}); {self._how}"
        )

    @property
    def _how(self) -> str:
        given = f"encoder={{{self._name!r}: ENCODER}}"
        return f"give it to ItemIndex.load as {given}, and save the index to keep where it is"

    def _check(self, opened: Encoder, name: str) -> None:
        if (opened.fingerprint, opened.dimensions) != (self.fingerprint, self.dimensions):
            raise IndexFormatError(
                f"the vectors {self._name!r} were made by another dual encoder: its fingerprint is "
                f"{self.fingerprint} ({self.dimensions} dimensions), that of {name} is "
                f"{opened.fingerprint} ({opened.dimensions}); give the right one or make the "
                "vectors again"
            )


def _lasting(name: str | Path) -> str:
    """A folder by its full path, so that the index finds it from anywhere; other names as is."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.is_dir() else str(name)


def _open(name: str) -> Encoder:
    from crossknn.scorers.cross_encoder import DualEncoder

    return DualEncoder(name)


def checked_vectors(values: FloatArray, rows: int, dimensions: int | None, what: str) -> FloatArray:
    """Finite vectors (rows, d) as float32, or `InputError`."""
    vectors = np.asarray(values)
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
