"""From the vectors a query has to those of another space: how fitted item vectors are searched.

Axes: m queries, c dimensions that come in, d that go out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Protocol

import numpy as np

from crossknn.errors import IndexFormatError
from crossknn.types import FloatArray


class QueryMap(Protocol):
    """Query vectors (m, c) -> (m, d); `state` is what an index keeps of it, under its `kind`."""

    kind: ClassVar[str]

    def __call__(self, vectors: FloatArray) -> FloatArray: ...

    def state(self) -> dict[str, Any]: ...


@dataclass(frozen=True, eq=False)
class Same:
    """The vectors as they are: the items moved, in the space of the queries (MF_TRNS, ALS)."""

    kind: ClassVar[str] = "same"

    def __call__(self, vectors: FloatArray) -> FloatArray:
        return vectors

    def state(self) -> dict[str, Any]:
        return {}


@dataclass(frozen=True, eq=False)
class Linear:
    """`vectors @ weight + offset`: weight (c, d), offset (d,)."""

    weight: FloatArray
    offset: FloatArray
    kind: ClassVar[str] = "linear"

    def __call__(self, vectors: FloatArray) -> FloatArray:
        return vectors @ self.weight + self.offset

    def state(self) -> dict[str, Any]:
        return _arrays(self)


@dataclass(frozen=True, eq=False)
class GatedSkip:
    """The two-layer perceptron of MF_IND (AXN A.2.2):
    `s * (outer @ gelu(inner @ x + inner_offset) + outer_offset) + (1 - s) * x`, s = sigmoid(gate).

    inner (h, d), inner_offset (h,), outer (d, h), outer_offset (d,), gate (); a gate of infinity
    is the variant without the skip.
    """

    inner: FloatArray
    inner_offset: FloatArray
    outer: FloatArray
    outer_offset: FloatArray
    gate: FloatArray
    kind: ClassVar[str] = "gated-skip"

    def __call__(self, vectors: FloatArray) -> FloatArray:
        from scipy.special import expit

        share = float(expit(np.float64(self.gate)))
        hidden = gelu(vectors @ self.inner.T + self.inner_offset)
        moved = hidden @ self.outer.T + self.outer_offset
        return (share * moved + (1 - share) * vectors).astype(np.float32)

    def state(self) -> dict[str, Any]:
        return _arrays(self)


def gelu(values: FloatArray) -> FloatArray:
    """x times the normal distribution function of x, exact as in PyTorch's default."""
    from scipy.special import ndtr

    return values * ndtr(values)


KINDS: dict[str, type[Any]] = {kind.kind: kind for kind in (Same, Linear, GatedSkip)}


def read_map(kind: str, state: Mapping[str, Any]) -> QueryMap:
    """The map that an index kept; IndexFormatError for one of a kind that is not known."""
    if kind not in KINDS:
        raise IndexFormatError(f"the index maps queries by {kind!r}, which this version cannot")
    found: QueryMap = KINDS[kind](**state)
    return found


def _arrays(found: Any) -> dict[str, Any]:
    return {field.name: getattr(found, field.name) for field in fields(found)}
