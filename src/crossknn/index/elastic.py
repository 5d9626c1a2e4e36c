"""Vectors and texts of an Elasticsearch or OpenSearch index, and its BM25 as a retriever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.index.database import FEW, Among, DatabaseStore, Found, Id, entry_of
from crossknn.index.elastic_queries import Query, VectorField, filter_query
from crossknn.index.elastic_requests import Requests
from crossknn.index.filters import Condition
from crossknn.retrievers.base import Ranked
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Queries


class ElasticStore(DatabaseStore):
    """The documents of an Elasticsearch or OpenSearch index that have a vector, shorter ids first,
    then in the order of ids; a `VectorStore`.

    >>> store = ElasticStore(Elasticsearch("http://localhost:9200"), "docs")  # doctest: +SKIP

    Args:
        client: An `elasticsearch.Elasticsearch` or an `opensearchpy.OpenSearch`.
        index: The name of one index, which is only read.
        vector: The field of vectors, of the type `dense_vector` or `knn_vector`.
        exact: Compare the query with all vectors instead of using their graph.
    """

    filters = True

    def __init__(
        self, client: Any, index: str, *, vector: str = "embedding", exact: bool = False
    ) -> None:
        self._requests = Requests(client, index)
        self.name, self.errors = self._requests.name, self._requests.errors
        with self.answering():
            self._fields = self._requests.fields()
            self._vector = VectorField.of(self._fields, vector, self.name, exact=exact)
            ids = sorted(self._matching(None), key=lambda key: (len(key), key))
        super().__init__(self.name, ids, self._vector.dimensions)

    def words(self, *fields: str, query: Callable[[str], Query] | None = None) -> ElasticWords:
        """Return a retriever by the BM25 of the index, for `ItemIndex.add_retriever`.

        Args:
            fields: Fields to search, such as "title^2", "body"; by default every field of the type
                text.
            query: Function from a query's text to a query of Elasticsearch, such as
                `{"match": {"body": text}}`, that is asked instead.
        """
        texts = [name for name, about in self._fields.items() if about["type"] == "text"]
        if query is None and not (fields or texts):
            raise InputError(f"{self.name} has no field of the type text: name one, or pass query=")
        among = {"fields": [*(fields or texts)]}
        return ElasticWords(self, query or (lambda text: {"multi_match": {"query": text, **among}}))

    def _hits(self, queries: Sequence[Query], count: int, among: Sequence[Among]) -> list[Found]:
        """Return the ids and scores of the `count` best hits of each query, restricted to the ids
        or the condition in `among`."""
        bodies = [
            {"query": {"bool": {"must": [query], "filter": [self._within(some)]}}}
            for query, some in zip(queries, among, strict=True)
        ]
        return [*map(_found, self._requests.hits(bodies, count))]

    def _search(self, vectors: FloatArray, count: int, among: Among) -> Sequence[Found]:
        within = None if among is None else self._within(among)
        searches = self._vector.searches(vectors, count, within)
        answers = map(_found, self._requests.hits(searches, count))
        return [
            (ids, self._vector.products(scores, vector))
            for (ids, scores), vector in zip(answers, vectors, strict=True)
        ]

    def _read(self, ids: Sequence[Id], *, vectors: bool) -> Mapping[Id, Any]:
        field, send = self._vector.name, self._requests
        if not vectors:
            return send.sources(ids, {"excludes": [field]})
        if self._vector.elastic:  # from 9.2 on, _source is without vectors
            body = {"query": self._within(ids), "fields": [field]}
            (hits,) = send.hits([body], len(ids))
            by_id = {hit["_id"]: hit.get("fields", {}).get(field) for hit in hits}
        else:  # OpenSearch has no `fields` of vectors
            sources = send.sources(ids, {"includes": [field]})
            by_id = {key: entry_of(source, field) for key, source in sources.items()}
        for key, given in by_id.items():
            vector = np.ravel([] if given is None else given)
            if len(vector) != self._vector.dimensions:
                raise InputError(f"the document {key!r} of {self.name} has no vector: give it one")
            # If compared by cosine, products are those of unit vectors.
            by_id[key] = vector / (np.linalg.norm(vector) or 1) if self._vector.unit else vector
        return by_id

    def _fields_like(self, field: str) -> Iterable[str] | None:
        return None if field in self._fields else self._fields

    def _matching(self, condition: Condition | None) -> Iterable[str]:
        held = [{"exists": {"field": self._vector.name}}, self._within(condition)]
        body = {"query": {"bool": {"filter": held}}, "sort": ["_doc"]}
        return (hit["_id"] for hit in self._requests.scroll(body))

    def _within(self, among: Among) -> Query:
        if among is None:
            return {"match_all": {}}
        if isinstance(among, Sequence):
            return {"ids": {"values": [*map(str, among)]}}
        return filter_query(among, self._fields, self.name)


def _found(hits: Sequence[Any]) -> Found:
    return [hit["_id"] for hit in hits], [hit["_score"] for hit in hits]


class ElasticWords(Ranked):
    """Ranks the items of a store by the scores of queries to its index (BM25 if they match words).
    Items that a query does not match score 0."""

    def __init__(self, store: ElasticStore, query: Callable[[str], Query]) -> None:
        self._store, self._query = store, query

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """See `Retriever.top`."""
        asked = [*map(self._query, queries.texts)]

        def search(rows: Sequence[int], limit: int, among: Among) -> Sequence[Found]:
            return self._store._hits([asked[row] for row in rows], limit, [among] * len(rows))

        return self._store.best(len(asked), search, count, allowed=allowed)

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Score given items (m, c) by queries restricted to them, or all items (m, n)."""
        if items is None:
            return self.of_all(queries)
        scores, store = np.zeros(items.shape, np.float32), self._store
        asked = [*map(self._query, queries.texts)]
        for start in range(0, items.shape[1], FEW):
            some = np.maximum(items[:, start : start + FEW], 0).tolist()
            ids = [[store.id(item) for item in row] for row in some]
            for q, (found, values) in enumerate(store._hits(asked, len(ids[0]), ids)):
                by_id = dict(zip(found, values, strict=True))
                scores[q, start : start + FEW] = [by_id.get(key, 0) for key in ids[q]]
        return scores

    def of_all(self, queries: Queries) -> FloatArray:
        """Score all items: (m, n)."""
        return self.spread(self.top(queries, n := self._store.shape[0]), n)
