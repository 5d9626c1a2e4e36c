"""Item vectors fitted to a cross-encoder: what an index keeps of them, and how they are searched.

Axes: m queries, n items, c dimensions that come in, d that go out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from crossknn.errors import IndexFormatError, InputError
from crossknn.index.base import Scale
from crossknn.index.encoders import RememberedModel, check_finite, check_vectors
from crossknn.types import Artifact, FloatArray, Queries

_CHUNK = 8_192


class QueryMap(Protocol):
    """From the vectors that queries have, (m, c), to those of another space, (m, d).

    A frozen dataclass of arrays; an index keeps them, and its `kind`.
    """

    kind: ClassVar[str]

    def __call__(self, vectors: FloatArray) -> FloatArray: ...


@dataclass(frozen=True, eq=False)
class Same:
    """The vectors as they are: the items moved, in the space of the queries (MF_TRNS, ALS)."""

    kind: ClassVar[str] = "same"

    def __call__(self, vectors: FloatArray) -> FloatArray:
        return vectors


@dataclass(frozen=True, eq=False)
class Linear:
    """`vectors @ weight + offset`: weight (c, d), offset (d,)."""

    weight: FloatArray
    offset: FloatArray
    kind: ClassVar[str] = "linear"

    def __call__(self, vectors: FloatArray) -> FloatArray:
        return vectors @ self.weight + self.offset


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


MAPS: Mapping[str, type[Any]] = {kind.kind: kind for kind in (Same, Linear, GatedSkip)}


def gelu(values: FloatArray) -> FloatArray:
    """x times the normal distribution function of x, exact as in PyTorch's default."""
    from scipy.special import ndtr

    return values * ndtr(values)


@dataclass(frozen=True, kw_only=True)
class IndexingCost:
    """What fitted vectors cost to make (AXN figure 2, table 3).

    Train queries, cross-encoder calls (pairs scored), and seconds: of making the vectors they start
    from, of scoring, and of fitting.
    """

    queries: int = 0
    calls: int = 0
    vector_seconds: float = 0.0
    scoring_seconds: float = 0.0
    fitting_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.vector_seconds + self.scoring_seconds + self.fitting_seconds


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedVectors:
    """Item vectors (n, d) fitted to a cross-encoder, and how a query gets one beside them.

    Args:
        values: (n, d) float32 or float16.
        method: The way they were made.
        base: Name of the index's own vectors that they start from.
        map: Makes query vectors of those of `base`, or of `encoder`; with neither, queries have no
            vectors here (CUR).
        item_map: Made `values` of the vectors `base`, and can make those of other items; None if
            they were fitted one by one.
        scale: Brings exact scores to their inner products.
        fingerprint: Of the cross-encoder.
        details: What the fit reported, values for JSON.
    """

    values: FloatArray
    method: str
    base: str | None = None
    map: QueryMap = field(default_factory=Same)
    item_map: QueryMap | None = None
    encoder: RememberedModel | None = None
    scale: Scale | None = None
    fingerprint: str | None = None
    cost: IndexingCost = field(default_factory=IndexingCost)
    details: Mapping[str, Any] = field(default_factory=dict)

    def check(self, n: int, vectors: Mapping[str, FloatArray], name: str) -> None:
        """`InputError` unless they fit n items and `vectors`, the index's own item vectors."""
        what, values = f"the fitted vectors {name!r}", self.values
        if values.dtype not in (np.float16, np.float32):
            raise InputError(
                f"{what} are an array of {values.dtype}; it must be float32 or float16"
            )
        if values.ndim != 2 or len(values) != n or not values.shape[1]:
            raise InputError(f"{what} have the shape {values.shape}; it must be ({n}, d)")
        check_finite(values, what)
        if self.base is not None and self.encoder is not None:
            raise InputError(f"{what} have both a base and an encoder; give one of them")
        source = None if self.encoder is None else self.encoder.dimensions
        if self.base is not None:
            if self.base not in vectors:
                raise InputError(
                    f"{what} start from the vectors {self.base!r}, which the index was not built "
                    f"with; it has {', '.join(vectors) or 'none'}"
                )
            source = vectors[self.base].shape[1]
        if source is not None:
            made = self.map(np.zeros((1, source), np.float32))
            check_vectors(made, 1, values.shape[1], f"the queries' vectors for {what}")
        try:
            json.dumps(dict(self.details))
        except (TypeError, ValueError) as error:
            raise InputError(f"the details of {what} cannot be stored as JSON: {error}") from error

    def query_vectors(
        self, queries: Queries, of_base: Callable[[Queries, str], FloatArray]
    ) -> FloatArray:
        """Query vectors (m, d); `of_base` gives those of the space `base`."""
        if self.encoder is not None:
            return self.map(self.encoder.get().encode_queries(queries.texts))
        assert self.base is not None
        return self.map(of_base(queries, self.base))

    def of_items(self, vectors: FloatArray) -> FittedVectors | None:
        """The same for other items, with the vectors `base` (n, d); None without an `item_map`."""
        if self.item_map is None:
            return None
        values = [self.item_map(vectors[s : s + _CHUNK]) for s in range(0, len(vectors), _CHUNK)]
        return replace(self, values=np.concatenate(values))

    def artifact(self) -> Artifact:
        """What an index keeps."""
        meta = {
            "method": self.method,
            "dimensions": int(self.values.shape[1]),
            "base": self.base,
            "map": self.map.kind,
            "item_map": None if self.item_map is None else self.item_map.kind,
            "encoder": None if self.encoder is None else self.encoder.state(),
            "scale": None if self.scale is None else [self.scale.alpha, self.scale.beta],
            "fingerprint": self.fingerprint,
            "cost": asdict(self.cost),
            "details": dict(self.details),
        }
        arrays = {"values": self.values}
        for prefix, found in (("map", self.map), ("item_map", self.item_map)):
            for entry in fields(found) if found is not None else ():  # type: ignore[arg-type]
                arrays[f"{prefix}.{entry.name}"] = np.asarray(getattr(found, entry.name))
        return Artifact(meta, arrays)

    @staticmethod
    def of(artifact: Artifact, name: str) -> FittedVectors:
        """What was kept as `name`, mapped."""
        meta, arrays = dict(artifact.meta), artifact.arrays
        del meta["dimensions"]
        encoder, scale, item_map = (meta.pop(key) for key in ("encoder", "scale", "item_map"))
        return FittedVectors(
            **meta
            | {
                "values": arrays["values"],
                "map": _read_map(meta["map"], "map", arrays),
                "item_map": None if item_map is None else _read_map(item_map, "item_map", arrays),
                "encoder": None
                if encoder is None
                else RememberedModel("dual encoder", name, **encoder),
                "scale": None if scale is None else Scale(*scale),
                "cost": IndexingCost(**meta["cost"]),
            }
        )


def _read_map(kind: str, prefix: str, arrays: Mapping[str, Any]) -> QueryMap:
    if kind not in MAPS:
        raise IndexFormatError(f"the index maps queries by {kind!r}, which this version cannot")
    made: QueryMap = MAPS[kind](*(arrays[f"{prefix}.{f.name}"] for f in fields(MAPS[kind])))
    return made
