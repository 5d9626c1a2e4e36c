"""Inner products and filters as queries to Elasticsearch and OpenSearch.

Their scores are never negative. With a cosine of c a hit scores (1 + c) / 2, with an inner product
of p it scores 1 + p, or 1 / (1 - p) if p is negative: "Dense vector field type" in Elasticsearch's
documentation, "Spaces" in OpenSearch's (version 2.19 and later, engines faiss and lucene). The
scripts of an exact search compute the same scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import InputError, nearest
from crossknn.index.database import Among, Found
from crossknn.index.filters import Between, Leaf, Missing, evaluate, kind_of
from crossknn.types import FloatArray

Query: TypeAlias = Mapping[str, Any]

PAGE = 10_000
"""Maximum number of hits of one search, the default of `index.max_result_window`."""
_TEXTS, _VECTORS = ("text", "match_only_text"), ("dense_vector", "knn_vector")
_COSINES = ("cosine", "dot_product", "cosinesimil")  # dot_product is of unit vectors only
_PRODUCTS = ("max_inner_product", "innerproduct")
_VISITED = 100  # vectors that an approximate search compares at least
_LARGEST = {"double": 1.7e308, "float": 3.4e38, "half_float": 65504.0, "scaled_float": np.inf}
_LARGEST |= {"byte": 127, "short": 2**15 - 1, "integer": 2**31 - 1, "long": 2**63 - 1}
_LARGEST["unsigned_long"] = 2**64 - 1
"""The largest number of each type: a server refuses larger ones."""


class Schema:
    """The fields of an index, which is named `index` in messages, and its `vector` field, of d
    dimensions. `unit` says whether vectors are compared by cosine, as if they had the length 1;
    `exact`, whether a script compares the query with all of them."""

    def __init__(self, mapping: Query, vector: str, index: str, *, exact: bool) -> None:
        self.fields = dict(_flat(mapping.get("properties", {})))
        about = self.fields.get(vector, {"type": None})
        if about["type"] not in _VECTORS:
            held = [name for name, other in self.fields.items() if other["type"] in _VECTORS]
            hint = nearest(vector, held) if held else "no field is a dense_vector or a knn_vector"
            raise InputError(f"{index} has no vectors in a field {vector!r} ({hint})")
        about = {"index": True, "engine": "faiss", **about.get("method", {}), **about}
        self.elastic, self.exact = about["type"] == "dense_vector", exact or not about["index"]
        how = about.get("similarity") or about.get("space_type")
        how = how or ("cosine" if self.elastic and about["index"] else "l2")
        numbers = about.get("element_type") or about.get("data_type") or "float"
        by_graph = how in _COSINES + _PRODUCTS and about["engine"] in ("faiss", "lucene")
        if numbers not in ("float", "bfloat16") or not (self.exact or by_graph):
            raise InputError(
                f"{index} compares the vectors {vector!r} of {numbers} by {how}"
                f"{'' if self.elastic else ' in ' + about['engine']}: map them as float with a "
                "cosine or an inner product (OpenSearch: in faiss or lucene), or as float and pass "
                "exact=True"
            )
        self.dimensions = int(about.get("dims") or about.get("dimension") or 0)
        self.index, self.vector, self.unit = index, vector, how in _COSINES
        self.held: Query = {"exists": {"field": vector}}

    def nearest(self, vectors: FloatArray, count: int, among: Among) -> list[Query]:
        """Return a search for the nearest items of each vector (m, d)."""
        if self.unit:  # the nearest items of a vector of zeros are arbitrary
            vectors = np.where(vectors.any(axis=1, keepdims=True), vectors, 1)
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        given: list[list[float]] = vectors.tolist()
        if self.exact or count > PAGE:
            query = self.within(among, self.held)  # scripts fail where there is no vector
            scripts = [{"query": query, "script": self._script(vector)} for vector in given]
            return [{"query": {"script_score": script}} for script in scripts]
        only: dict[str, Any] = {"k": count} | (
            {} if among is None else {"filter": self.within(among)}
        )
        if not self.elastic:
            return [{"query": {"knn": {self.vector: {"vector": v, **only}}}} for v in given]
        only |= {"field": self.vector, "num_candidates": min(max(2 * count, _VISITED), PAGE)}
        return [{"knn": {"query_vector": vector, **only}} for vector in given]

    def _script(self, vector: list[float]) -> Query:
        if not (self.unit or self.elastic):
            about = {"field": self.vector, "query_value": vector, "space_type": "innerproduct"}
            return {"lang": "knn", "params": about, "source": "knn_score"}
        field = f"'{self.vector}'" if self.elastic else f"doc['{self.vector}']"
        source = f"(1.0 + cosineSimilarity(params.query_vector, {field})) / 2"
        if not self.unit:
            source = f"double p = dotProduct(params.query_vector, {field}); "
            source += "return p < 0 ? 1 / (1 - p) : p + 1"
        return {"params": {"query_vector": vector}, "source": source}

    def found(self, hits: Sequence[Any], vector: FloatArray) -> Found:
        """Return the ids of hits, and their inner products with a query vector (d,)."""
        s = np.array([hit["_score"] for hit in hits], np.float64)
        cosines, length = 2 * s - 1, np.linalg.norm(vector)
        products = np.where(s >= 1, s - 1, 1 - 1 / np.maximum(s, 1e-38))
        return [h["_id"] for h in hits], (cosines * length if self.unit else products).tolist()

    def within(self, among: Among, *others: Query) -> Query:
        """Return the query for what a search is restricted to, and other queries match, too."""
        parts = [*others]
        if isinstance(among, Sequence):
            parts.append({"ids": {"values": [*map(str, among)]}})
        elif among is not None:
            met: Query = evaluate(
                among,
                self._leaf,
                all=lambda some: {"bool": {"filter": [*some]}},
                any=lambda some: {"bool": {"should": [*some], "minimum_should_match": 1}},
                no=lambda one: {"bool": {"must_not": [one]}},
            )
            parts.append(met)
        return {"bool": {"filter": parts}}

    def _leaf(self, leaf: Leaf) -> Query:
        field, kind = leaf.field, self.fields[leaf.field]["type"]
        if isinstance(leaf, Missing):
            return {"bool": {"must_not": [{"exists": {"field": field}}]}}
        if kind in _TEXTS:  # only a subfield has whole values
            inner = self.fields[field].get("fields", {}).items()
            whole = [name for name, about in inner if about["type"] == "keyword"]
            field, kind = (f"{field}.{whole[0]}", "keyword") if whole else (field, kind)
        if kind in ("object", "nested", *_TEXTS, *_VECTORS):
            raise InputError(
                f"the filter names {field!r}, which is {kind} in {self.index}: map a text as "
                "keyword, or with a subfield of the type keyword, and name an entry of an object"
            )
        largest = _LARGEST.get(kind)
        # A server would find the number 1 for the text "1".
        own = "number" if largest else "truth value" if kind == "boolean" else "text"
        if isinstance(leaf, Between):
            bounds = dict[str, Any](leaf.bounds)
            if {kind_of(value) for value in bounds.values()} != {own}:
                return {"match_none": {}}
            if largest:
                bounds = {name: min(max(v, -largest), largest) for name, v in bounds.items()}
            return {"range": {field: bounds}}
        values: list[Any] = [value for value in leaf.values if kind_of(value) == own]
        return {"terms": {field: [v for v in values if not largest or abs(v) <= largest]}}


def _flat(properties: Mapping[str, Any], of: str = "") -> Iterator[tuple[str, Query]]:
    for name, about in properties.items():
        yield of + name, {"type": "object", **about}
        if about.get("type") != "nested":  # its entries can only be searched by a nested query
            inner = {**about.get("fields", {}), **about.get("properties", {})}
            yield from _flat(inner, f"{of}{name}.")
