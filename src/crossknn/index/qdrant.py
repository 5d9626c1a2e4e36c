"""Vectors in a Qdrant server or cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from typing import Any

import numpy as np

from crossknn.errors import InputError, nearest, needs_extra
from crossknn.index.database import Among, DatabaseStore, Found, Id
from crossknn.index.filters import Between, Condition, Leaf, Missing, evaluate, kind_of
from crossknn.types import FloatArray

_PAGE = 10_000  # points of one scroll
_LARGEST, _EXACT = 2**63, 2**53  # limits of whole numbers in Qdrant, and of exact comparison
_SAMPLE = 100  # records whose fields a message suggests


class QdrantStore(DatabaseStore):
    """The points of a Qdrant collection, ordered by id; a `VectorStore`.

    >>> store = QdrantStore(QdrantClient("http://localhost:6333"), "docs")  # doctest: +SKIP

    Args:
        client: A `QdrantClient`.
        collection: The collection's name.
        vector: Name of the vectors to search, if the collection has named vectors.
        exact: Compare the query with all points instead of using the collection's HNSW index.
    """

    filters = True

    def __init__(
        self, client: Any, collection: str, *, vector: str = "", exact: bool = False
    ) -> None:
        if not hasattr(client, "query_batch_points"):
            raise InputError(f"the client of Qdrant is {client!r:.80}: give QdrantClient(url)")
        with needs_extra("vectors in Qdrant", "qdrant"):
            self._models = import_module("qdrant_client.models")
        self._client, self._collection = client, collection
        self._vector, self._exact = vector, exact
        api = import_module("qdrant_client.http.exceptions")
        # The client raises RuntimeError once it is closed; its local mode raises ValueError if the
        # collection has been deleted.
        self.errors = OSError, RuntimeError, ValueError, api.ApiException
        self.errors += (import_module("grpc").RpcError,)
        self.name = f"the Qdrant collection {collection!r}"
        with self.answering():
            dimensions, distance = self._vectors_config()
            if distance not in ("Dot", "Cosine"):
                raise InputError(
                    f"{self.name} compares vectors by {distance}: searches need Dot or Cosine"
                )
            ids = [*self._ids(None)]
        self._cosine = distance == "Cosine"
        super().__init__(self.name, ids, dimensions)

    def _vectors_config(self) -> tuple[int, str]:
        if not self._client.collection_exists(self._collection):
            names = [one.name for one in self._client.get_collections().collections]
            hint = nearest(self._collection, names) if names else "there is none"
            raise InputError(f"Qdrant has no collection {self._collection!r} ({hint})")
        vectors = self._client.get_collection(self._collection).config.params.vectors or {}
        by_name = vectors if isinstance(vectors, dict) else {"": vectors}
        if self._vector not in by_name:
            have = ", ".join(map(repr, by_name)) or "none"
            raise InputError(
                f"{self.name} has no dense vectors {self._vector!r}, but {have}: name one with "
                "vector="
            )
        config = by_name[self._vector]
        return int(config.size), str(config.distance.value)

    def _search(self, vectors: FloatArray, count: int, among: Among) -> Sequence[Found]:
        allowed = None
        if among is not None:
            allowed = self._only(among) if isinstance(among, Sequence) else self._filter(among)
        params = self._models.SearchParams(exact=True) if self._exact else None
        options = {"using": self._vector or None, "filter": allowed, "params": params}
        requests = [
            self._models.QueryRequest(query=vector, limit=count, **options)
            for vector in vectors.tolist()
        ]
        answers = self._client.query_batch_points(self._collection, requests=requests)
        # For Cosine Qdrant stores unit vectors, so a product with the query is |query| cos.
        lengths = np.linalg.norm(vectors, axis=1) if self._cosine else np.ones(len(vectors))
        return [
            ([plain_id(p.id) for p in answer.points], [p.score * length for p in answer.points])
            for answer, length in zip(answers, lengths.tolist(), strict=True)
        ]

    def _read(self, ids: Sequence[Id], *, vectors: bool) -> Mapping[Id, Any]:
        name = self._vector
        which = vectors and ([name] if name else True)
        points = self._client.retrieve(
            self._collection, [*ids], with_payload=not vectors, with_vectors=which
        )
        if not vectors:
            return {plain_id(point.id): point.payload or {} for point in points}
        by_id = {plain_id(p.id): (p.vector or {}).get(name) if name else p.vector for p in points}
        for key, vector in by_id.items():
            if not vector:
                raise InputError(f"the point {key} of {self.name} has no vector: give it one")
        return by_id

    def _fields_like(self, field: str) -> Iterable[str] | None:
        empty = self._models.FieldCondition(key=field, is_empty=True)
        if self._page(self._models.Filter(must_not=[empty]), 1)[0]:
            return None
        sample = self._page(None, _SAMPLE, payload=True)[0]
        return {key for point in sample for key in point.payload or {}}

    def _matching(self, condition: Condition) -> Iterable[Id]:
        return self._ids(self._filter(condition))

    def _native(self, key: str) -> Id:
        return int(key) if key.isdigit() else key

    def _page(
        self, allowed: Any, count: int, offset: Any = None, *, payload: bool = False
    ) -> tuple[list[Any], Any]:
        options = {"scroll_filter": allowed, "limit": count, "offset": offset}
        page: tuple[list[Any], Any] = self._client.scroll(
            self._collection, with_payload=payload, with_vectors=False, **options
        )
        return page

    def _ids(self, allowed: Any) -> Iterator[Id]:
        points, offset = self._page(allowed, _PAGE)
        yield from (plain_id(point.id) for point in points)
        while offset is not None:
            points, offset = self._page(allowed, _PAGE, offset)
            yield from (plain_id(point.id) for point in points)

    def _only(self, ids: Sequence[Id]) -> Any:
        return self._models.Filter(must=[self._models.HasIdCondition(has_id=[*ids])])

    def _filter(self, condition: Condition) -> Any:
        to = self._models.Filter
        met = evaluate(
            condition,
            self._leaf,
            all=lambda parts: to(must=[*parts]),
            any=lambda parts: to(should=[*parts]),
            no=lambda part: to(must_not=[part]),
        )
        return to(must=[met])

    def _leaf(self, leaf: Leaf) -> Any:
        models, field = self._models, self._models.FieldCondition
        if isinstance(leaf, Missing):
            return field(key=leaf.field, is_empty=True)
        if isinstance(leaf, Between):
            dates = "text" in {kind_of(value) for value in leaf.bounds.values()}
            for value in leaf.bounds.values() if dates else ():
                try:
                    datetime.fromisoformat(str(value))
                except ValueError:
                    raise InputError(
                        f"the filter compares {leaf.field!r} with {value!r}: Qdrant can order only "
                        "numbers and dates such as '2024-05-31'"
                    ) from None
            between = models.DatetimeRange if dates else models.Range
            return field(key=leaf.field, range=between(**leaf.bounds))
        conditions = list[Any]()
        for value in leaf.values:
            # 1 and 1.0 are equal in filters; Qdrant matches integers only, so other numbers become
            # a range.
            number, whole = kind_of(value) == "number", isinstance(value, int)
            if not number or (whole and -_LARGEST <= value < _LARGEST):  # type: ignore[operator]
                conditions.append(field(key=leaf.field, match=models.MatchValue(value=value)))
            if number and (not whole or -_EXACT < value < _EXACT):  # type: ignore[operator]
                same = models.Range(gte=value, lte=value)
                conditions.append(field(key=leaf.field, range=same))
        # Qdrant lets all points pass a filter without conditions.
        return models.Filter(should=conditions or [self._only([])])


def plain_id(key: Any) -> Id:
    """Return an id as a number or a text, even if the client returns a UUID object."""
    return key if isinstance(key, int) else str(key)
