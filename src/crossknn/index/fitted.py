"""Item vectors fitted with a cross-encoder: what an index keeps of them, and of their making.

Axes: m queries, n items, d dimensions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Scale
from crossknn.index.encoders import RememberedEncoder, checked_vectors
from crossknn.index.maps import QueryMap, Same, read_map
from crossknn.index.storage import IndexReader
from crossknn.index.writing import IndexWriter
from crossknn.types import FloatArray, Queries

_CHUNK = 8_192


@dataclass(frozen=True, kw_only=True)
class IndexingCost:
    """What fitted vectors cost to make (AXN figure 2, table 3).

    Train queries, cross-encoder calls (pairs paid), and seconds: of making the vectors they start
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
    """Item vectors (n, d), and how a query gets one beside them.

    `map` is applied to the query's vectors of the index that `base` names, or to those of
    `encoder`; with neither, queries have no vectors there (CUR). `item_map` made `values` of the
    vectors `base`, and can make those of other items; it is None if they were fitted one by one.
    `values` are float32 or float16, `scale` brings raw scores to theirs, `fingerprint` names the
    cross-encoder, `method` the way they were made, and `details` (values for JSON) what the fit
    reported.
    """

    values: FloatArray
    method: str
    base: str | None = None
    map: QueryMap = field(default_factory=Same)
    item_map: QueryMap | None = None
    encoder: RememberedEncoder | None = None
    scale: Scale | None = None
    fingerprint: str | None = None
    cost: IndexingCost = field(default_factory=IndexingCost)
    details: Mapping[str, Any] = field(default_factory=dict)

    def check(self, n: int, vectors: Mapping[str, FloatArray], name: str) -> None:
        """`InputError` unless they fit n items and `vectors`, the index's own item vectors."""
        what = f"the fitted vectors {name!r}"
        _check_values(self.values, n, what)
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
            checked_vectors(made, 1, self.values.shape[1], f"the queries' vectors for {what}")
        try:
            json.dumps(self.meta())
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

    def meta(self) -> dict[str, Any]:
        """What the manifest says of them."""
        return {
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

    def write(self, writer: IndexWriter, name: str) -> None:
        """Put them on the disk as `name`."""
        writer.replace(f"fitted-{name}.")
        writer.array(f"fitted-{name}.values", self.values)
        for end, found in (("map", self.map), ("item-map", self.item_map)):
            state = {} if found is None else found.state()
            arrays = {key: np.asarray(value) for key, value in state.items()}
            writer.state(f"fitted-{name}.{end}", arrays)

    @staticmethod
    def read(reader: IndexReader, name: str) -> FittedVectors:
        """The stored vectors `name`, mapped."""
        meta = reader.meta["fitted"][name]
        encoder = meta["encoder"]
        return FittedVectors(
            values=reader.array(f"fitted-{name}.values"),
            method=meta["method"],
            base=meta["base"],
            map=read_map(meta["map"], reader.state(f"fitted-{name}.map")),
            item_map=None
            if meta["item_map"] is None
            else read_map(meta["item_map"], reader.state(f"fitted-{name}.item-map")),
            encoder=None if encoder is None else RememberedEncoder.from_state(encoder, name),
            scale=None if meta["scale"] is None else Scale(*meta["scale"]),
            fingerprint=meta["fingerprint"],
            cost=IndexingCost(**meta["cost"]),
            details=meta["details"],
        )


def _check_values(values: FloatArray, n: int, what: str) -> None:
    """Finite vectors (n, d), in single or half precision."""
    if values.dtype not in (np.float16, np.float32):
        raise InputError(f"{what} are an array of {values.dtype}; it must be float32 or float16")
    if values.ndim != 2 or len(values) != n or not values.shape[1]:
        raise InputError(f"{what} have the shape {values.shape}; it must be ({n}, d)")
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        raise InputError(f"{what}: row {int(np.argmin(finite))} holds a NaN or an infinity")
