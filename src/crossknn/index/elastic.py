"""Vectors and texts of an Elasticsearch or OpenSearch index, and its BM25 as a retriever."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import islice
from typing import Any

import numpy as np

from crossknn.errors import InputError, StoreError
from crossknn.index.database import Among, DatabaseStore, Found, Id, entry_of
from crossknn.index.elastic_queries import PAGE, Query, Schema
from crossknn.retrievers.base import Ranked
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Queries

_AT_ONCE = 50  # searches in one request


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
        packages = {each.__module__.partition(".")[0] for each in type(client).__mro__}
        (package,) = packages & {"elasticsearch", "opensearchpy"} or [""]
        if not package or hasattr(client, "__aenter__"):
            raise InputError(f"the client is {client!r:.80}: give an Elasticsearch or OpenSearch")
        module, helpers = map(import_module, (package, f"{package}.helpers"))
        names = "ApiError", "TransportError", "OpenSearchException"
        held = [getattr(module, name) for name in names if hasattr(module, name)]
        self.errors = OSError, helpers.ScanError, *held
        product = "Elasticsearch" if package == "elasticsearch" else "OpenSearch"
        self.name = f"the {product} index {index!r}"
        self._ask = partial(client.msearch, index=index)
        self._scroll = partial(helpers.scan, client, index=index, size=PAGE, preserve_order=True)
        with self.answering():
            found = client.indices.get_mapping(index=index, ignore_unavailable=True)
            if len(found) != 1:
                raise InputError(f"{product} has {len(found)} indices {index!r}: give one's name")
            (about,) = found.values()
            self.schema = Schema(about["mappings"], vector, self.name, exact=exact)
            ids = sorted(self._matching(None), key=lambda key: (len(key), key))
        super().__init__(self.name, ids, self.schema.dimensions)

    def words(self, *fields: str, query: Callable[[str], Query] | None = None) -> ElasticWords:
        """Return a retriever by the BM25 of the index, for `ItemIndex.add_retriever`.

        Args:
            fields: Fields to search, such as "title^2"; by default every field of the type text.
            query: Function from a query's text to a query of Elasticsearch, such as
                `{"match": {"body": text}}`, that is asked instead.
        """
        kinds = self.schema.fields.items()
        among = {"fields": [*fields] or [name for name, kind in kinds if kind["type"] == "text"]}
        if not (query or among["fields"]):
            raise InputError(f"{self.name} has no field of the type text: name fields to search")
        return ElasticWords(self, query or (lambda text: {"multi_match": {"query": text, **among}}))

    def hits(self, searches: Sequence[Query], count: int) -> list[Sequence[Any]]:
        """Return the `count` best hits of each search, best first."""
        bodies, hits = [{"_source": False, **search} for search in searches], list[Any]()
        if count > PAGE:
            return [[*islice(self._scroll(body), count)] for body in bodies]
        for start in range(0, len(bodies), _AT_ONCE):
            some = bodies[start : start + _AT_ONCE]
            lines = [line for body in some for line in ({}, {"size": count, **body})]
            for answer in self._ask(body=lines)["responses"]:
                failures = answer.get("_shards", {}).get("failures") or [{}]
                error = answer.get("error") or failures[0].get("reason")
                if error or answer["timed_out"]:
                    said = f"{error['type']}: {error.get('reason')}" if error else "timed out"
                    raise StoreError(f"{self.name} failed: {said:.240}")
                hits.append(answer["hits"]["hits"])
        return hits

    def _search(self, vectors: FloatArray, count: int, among: Among) -> Sequence[Found]:
        answers = self.hits(self.schema.nearest(vectors, count, among), count)
        return [*map(self.schema.found, answers, vectors)]

    def _read(self, ids: Sequence[Id], *, vectors: bool) -> Mapping[Id, Any]:
        field, about = self.schema.vector, self.schema
        wanted: Query = {"_source": {"includes" if vectors else "excludes": [field]}}
        if vectors and about.elastic:  # from 9.2 on, _source is without vectors
            wanted = {"fields": [field]}
        (hits,) = self.hits([{"query": about.within(ids), **wanted}], len(ids))
        held = {hit["_id"]: hit.get("fields") or hit.get("_source", {}) for hit in hits}
        for key, given in held.items() if vectors else ():
            vector = np.ravel(entry_of(given, field) or [])
            if len(vector) != about.dimensions:
                raise InputError(f"the document {key!r} of {self.name} has no vector: give it one")
            # If compared by cosine, products are those of unit vectors.
            held[key] = vector / (np.linalg.norm(vector) or 1) if about.unit else vector
        return held

    def _fields_like(self, field: str) -> Iterable[str] | None:
        return None if field in self.schema.fields else self.schema.fields

    def _matching(self, condition: Among) -> Iterable[str]:
        query = self.schema.within(condition, self.schema.held)
        hits = self._scroll({"query": query, "sort": ["_doc"], "_source": False})
        return (hit["_id"] for hit in hits)


class ElasticWords(Ranked):
    """Ranks items by the scores of queries to their index (BM25 for words), 0 without a match."""

    def __init__(self, store: ElasticStore, query: Callable[[str], Query]) -> None:
        self._store, self._query, self.n = store, query, store.shape[0]

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        def search(texts: Sequence[str], limit: int, among: Among) -> Sequence[Found]:
            answers = self._store.hits([self._asked(text, among) for text in texts], limit)
            return [([h["_id"] for h in hits], [h["_score"] for h in hits]) for hits in answers]

        return self._store.top(np.array([*queries.texts], object), count, None, allowed, search)

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Score given items (m, c) by queries restricted to them, or all items (m, n)."""
        if items is None:
            return self.of_all(queries)
        ids = [[self._store.id(item) for item in row] for row in np.maximum(items, 0).tolist()]
        with self._store.answering():
            answers = self._store.hits([*map(self._asked, queries.texts, ids)], items.shape[1])
        by_id = [{hit["_id"]: hit["_score"] for hit in hits} for hits in answers]
        rows = [[of.get(key, 0) for key in row] for of, row in zip(by_id, ids, strict=True)]
        return np.array(rows, np.float32).reshape(items.shape)

    def _asked(self, text: str, among: Among) -> Query:
        within = [self._store.schema.within(among)]
        return {"query": {"bool": {"must": [self._query(text)], "filter": within}}}
