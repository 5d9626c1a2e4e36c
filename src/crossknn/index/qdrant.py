"""Vectors in Qdrant: a server, a cluster, or the engine embedded in this process.

A server is reached through a `QdrantClient` (package qdrant-client, extra `qdrant`); an embedded
shard is an `EdgeShard` (package qdrant-edge-py). Both run the same engine and take the same
requests, under different names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError, nearest, needs_extra
from crossknn.files import parse_json, read_file
from crossknn.index.database import DatabaseStore, Found, Id, plain_id
from crossknn.index.filters import (
    Among,
    Between,
    Condition,
    Missing,
    combined,
    evaluate,
    kind_of,
)
from crossknn.types import FloatArray

_PAGE = 10_000  # points of one scroll
_LARGEST, _EXACT = 2**63, 2**53  # whole numbers that Qdrant has, and that it compares exactly
_SAMPLE = 100  # records that tell which fields there are


class QdrantStore(DatabaseStore):
    """The points of a Qdrant collection, ordered by id; a `VectorStore`.

    >>> store = QdrantStore(QdrantClient("http://localhost:6333"), "docs")  # doctest: +SKIP
    >>> store = QdrantStore(EdgeShard.load("docs.shard"), "docs.shard")  # doctest: +SKIP

    Args:
        client: A `QdrantClient`, or an `EdgeShard`.
        collection: The collection's name, or the folder of the shard.
        vector: The name of the vectors, if the collection has named vectors.
        exact: Compare the query with all points instead of using the collection's HNSW index.

    Raises:
        InputError: There is no such collection, no such vector or no point, or vectors are not
            compared by inner product or cosine.
        StoreError: Qdrant cannot be reached.
    """

    filters = True

    def __init__(
        self, client: Any, collection: str | Path, *, vector: str = "", exact: bool = False
    ) -> None:
        embedded = hasattr(client, "query_batch")
        if not embedded and not hasattr(client, "query_batch_points"):
            raise InputError(
                f"the client of Qdrant is {client!r:.80}: give QdrantClient(url) or an EdgeShard"
            )
        with needs_extra("vectors in Qdrant", "qdrant"):
            models = import_module("qdrant_edge" if embedded else "qdrant_client.models")
        given = client, models, str(collection), vector, exact
        self._engine = engine = _Shard(*given) if embedded else _Server(*given)
        self.name = f"the Qdrant collection {str(collection)!r}"
        self.errors = OSError, RuntimeError  # RuntimeError: the client is closed
        if not embedded:
            api = import_module("qdrant_client.http.exceptions")
            # The client's local mode raises ValueError if the collection has been deleted.
            self.errors += api.ApiException, import_module("grpc").RpcError, ValueError
        with self.answering():
            about = engine.vectors_config()
            if vector not in about:
                have = ", ".join(map(repr, about)) or "none"
                raise InputError(
                    f"{self.name} has no dense vectors {vector!r}, but {have}: name one with "
                    "vector="
                )
            dimensions, distance = about[vector]
            if distance not in ("Dot", "Cosine"):
                raise InputError(
                    f"{self.name} compares vectors by {distance}: searches need Dot or Cosine"
                )
            ids = [*engine.ids(None)]
        self._cosine = distance == "Cosine"
        super().__init__(self.name, ids, dimensions)

    def _search(
        self, vectors: FloatArray, count: int, among: Sequence[Id] | Condition | None
    ) -> Sequence[Found]:
        given = self._engine.only if isinstance(among, Sequence) else self._engine.filter
        only = None if among is None else given(among)  # type: ignore[arg-type]
        answers = self._engine.search(vectors.tolist(), count, only)
        # For Cosine Qdrant stores unit vectors, so a product with the query is |query| cos.
        lengths = np.linalg.norm(vectors, axis=1) if self._cosine else np.ones(len(vectors))
        return [
            ([plain_id(p.id) for p in points], [p.score * length for p in points])
            for points, length in zip(answers, lengths.tolist(), strict=True)
        ]

    def _read(self, ids: Sequence[Id], *, vectors: bool) -> Mapping[Id, Any]:
        points = self._engine.read(ids, vectors)
        if not vectors:
            return {plain_id(point.id): point.payload or {} for point in points}
        name = self._engine.vector
        held = {plain_id(p.id): (p.vector or {}).get(name) if name else p.vector for p in points}
        for key, vector in held.items():
            if not vector:
                raise InputError(f"the point {key} of {self.name} has no vector: give it one")
        return held

    def _check_field(self, field: str) -> None:
        self._engine.check_field(field, self.name)

    def _matching(self, condition: Condition) -> Iterable[Id]:
        return self._engine.ids(self._engine.filter(condition))

    def _native(self, key: str) -> Id:
        return int(key) if key.isdigit() else key


class _Server:
    """Requests to a server, through a `QdrantClient`."""

    def __init__(self, client: Any, models: Any, collection: str, vector: str, exact: bool) -> None:
        self.client, self.models, self.collection = client, models, collection
        self.vector, self.exact, self.named = vector, exact, [vector] if vector else True

    def vectors_config(self) -> dict[str, tuple[int, str]]:
        """Dimensions and distance of the dense vectors, by name."""
        if not self.client.collection_exists(self.collection):
            have = [one.name for one in self.client.get_collections().collections]
            hint = nearest(self.collection, have) if have else "there is none"
            raise InputError(f"Qdrant has no collection {self.collection!r} ({hint})")
        about = self.client.get_collection(self.collection).config.params.vectors or {}
        given = about if isinstance(about, dict) else {"": about}
        return {name: (int(v.size), str(v.distance.value)) for name, v in given.items()}

    def search(self, vectors: list[list[float]], count: int, only: Any) -> list[list[Any]]:
        """Return the nearest points of each vector."""
        how = self.models.SearchParams(exact=True) if self.exact else None
        common = {"using": self.vector or None, "limit": count, "filter": only, "params": how}
        asked = [self.models.QueryRequest(query=vector, **common) for vector in vectors]
        answers = self.client.query_batch_points(self.collection, requests=asked)
        return [answer.points for answer in answers]

    def read(self, ids: Sequence[Id], vectors: bool) -> list[Any]:
        """Read points by id, with their vectors or their payloads."""
        what = {"with_payload": not vectors, "with_vectors": vectors and self.named}
        return self.client.retrieve(self.collection, [*ids], **what)

    def page(self, only: Any, count: int, offset: Any, payload: bool) -> tuple[list[Any], Any]:
        """Read `count` points in the order of ids, and the offset of the next page."""
        what = {"with_payload": payload, "with_vectors": False}
        where = {"scroll_filter": only, "limit": count, "offset": offset}
        return self.client.scroll(self.collection, **where, **what)

    def only(self, ids: Sequence[Id]) -> Any:
        """Make a filter that allows these ids."""
        return self.models.Filter(must=[self.models.HasIdCondition(has_id=[*ids])])

    def between(self, bounds: Mapping[Any, Any], dates: bool) -> Any:
        """Make a range of numbers or of dates."""
        return (self.models.DatetimeRange if dates else self.models.Range)(**bounds)

    def match(self, value: Any) -> Any:
        """Make a condition that a field equals a value."""
        return self.models.MatchValue(value=value)

    def ids(self, only: Any) -> Iterator[Id]:
        """Return the ids of all points, or of those that a filter allows."""
        pages, offset = 0, None
        while not pages or offset is not None:
            points, offset = self.page(only, _PAGE, offset, payload=False)
            yield from (plain_id(point.id) for point in points)
            pages += 1

    def check_field(self, name: str, of: str) -> None:
        """Raise `InputError` if no point has the field."""
        having = self.models.Filter(must_not=[self.field(name, is_empty=True)])
        if not self.page(having, 1, None, payload=False)[0]:
            some = self.page(None, _SAMPLE, None, payload=True)[0]
            hint = nearest(name, {key for point in some for key in point.payload or {}})
            raise InputError(
                f"the filter names {name!r}, but no item of {of} has this field ({hint})"
            )

    def field(self, name: str, **condition: Any) -> Any:
        """Make a condition on a field."""
        return self.models.FieldCondition(key=name, **condition)

    def filter(self, condition: Condition) -> Any:
        """Translate a condition to a Qdrant filter."""
        to = self.models.Filter
        group = combined(
            lambda parts: to(must=[*parts]),
            lambda parts: to(should=[*parts]),
            lambda part: to(must_not=[part]),
        )
        return to(must=[evaluate(condition, self.leaf, group)])

    def leaf(self, leaf: Among | Between | Missing) -> Any:
        """Translate a condition on one field."""
        if isinstance(leaf, Missing):
            return self.field(leaf.field, is_empty=True)
        if isinstance(leaf, Between):
            dates = "text" in {kind_of(value) for value in leaf.bounds.values()}
            if dates:
                _check_dates(leaf)
            return self.field(leaf.field, range=self.between(leaf.bounds, dates))
        conditions = list[Any]()
        for value in leaf.values:
            # 1 and 1.0 are equal in filters; Qdrant matches integers only, so other numbers become
            # a range.
            number, whole = kind_of(value) == "number", isinstance(value, int)
            if not number or (whole and -_LARGEST <= value < _LARGEST):  # type: ignore[operator]
                conditions.append(self.field(leaf.field, match=self.match(value)))
            if number and (not whole or -_EXACT < value < _EXACT):  # type: ignore[operator]
                same = self.between({"gte": value, "lte": value}, dates=False)
                conditions.append(self.field(leaf.field, range=same))
        # Qdrant lets all points pass a filter without conditions.
        return self.models.Filter(should=conditions or [self.only([])])


class _Shard(_Server):
    """Requests to an embedded `EdgeShard`; the shard's folder describes its vectors."""

    def vectors_config(self) -> dict[str, tuple[int, str]]:
        try:
            about = parse_json(read_file(Path(self.collection), "edge_config.json"))
        except (OSError, ValueError) as error:
            raise InputError(
                f"{self.collection} is not the folder of an embedded Qdrant shard: give the "
                "folder that the shard was loaded from"
            ) from error
        return {name: (v["size"], v["distance"]) for name, v in about["vectors"].items()}

    def search(self, vectors: list[list[float]], count: int, only: Any) -> list[list[Any]]:
        how = self.models.SearchParams(exact=self.exact)
        common = {"filter": only, "params": how, "with_payload": False, "with_vector": False}
        near = [self.models.Query.Nearest(v, using=self.vector or None) for v in vectors]
        asked = [self.models.QueryRequest(limit=count, query=query, **common) for query in near]
        return self.client.query_batch(self.models.QueryBatchRequest(asked))

    def read(self, ids: Sequence[Id], vectors: bool) -> list[Any]:
        what = {"with_payload": not vectors, "with_vector": vectors and self.named}
        return self.client.retrieve([*ids], **what)

    def page(self, only: Any, count: int, offset: Any, payload: bool) -> tuple[list[Any], Any]:
        what = {"with_payload": payload, "with_vector": False}
        where = {"filter": only, "limit": count, "offset": offset}
        return self.client.scroll(self.models.ScrollRequest(**where, **what))

    def only(self, ids: Sequence[Id]) -> Any:
        return self.models.Filter(must=[self.models.HasIdCondition({*ids})])

    def between(self, bounds: Mapping[Any, Any], dates: bool) -> Any:
        return (self.models.RangeDateTime if dates else self.models.RangeFloat)(**bounds)

    def match(self, value: Any) -> Any:
        # qdrant-edge-py (0.9) takes Python's booleans for integers, but not NumPy's.
        plain = np.bool_(value) if isinstance(value, bool) else value
        return self.models.MatchValue(value=plain)


def _check_dates(leaf: Between) -> None:
    for value in leaf.bounds.values():
        try:
            datetime.fromisoformat(str(value))
        except ValueError:
            raise InputError(
                f"the filter compares {leaf.field!r} with {value!r}: Qdrant can order only "
                "numbers and dates such as '2024-05-31'"
            ) from None
