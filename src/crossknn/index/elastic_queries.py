"""Inner products and filters as queries to Elasticsearch and OpenSearch.

Their scores are never negative. With a cosine of c a hit scores (1 + c) / 2, with an inner product
of p it scores 1 + p, or 1 / (1 - p) if p is negative: "Dense vector field type" in Elasticsearch's
documentation, "Spaces" in OpenSearch's (version 2.19 and later, engines faiss and lucene). The
scripts of an exact search compute the same scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import InputError, nearest
from crossknn.index.elastic_requests import PAGE
from crossknn.index.filters import Between, Condition, Leaf, Missing, evaluate, kind_of
from crossknn.types import FloatArray

Query: TypeAlias = Mapping[str, Any]
Fields: TypeAlias = Mapping[str, Mapping[str, Any]]
"""The definitions of fields in a mapping, by name."""

_VECTORS = ("dense_vector", "knn_vector")
_COSINES = ("cosine", "dot_product", "cosinesimil")  # dot_product is of unit vectors only
_PRODUCTS = ("max_inner_product", "innerproduct")
_VISITED = 100  # vectors that an approximate search compares at least
_WHOLE = {"long": 63, "integer": 31, "short": 15, "byte": 7, "unsigned_long": 64}  # in bits
_LARGEST: Mapping[str, float] = {"double": 1.7e308, "float": 3.4e38, "half_float": 65504} | {
    kind: 2**bits - 1 for kind, bits in _WHOLE.items()
}
"""The largest number of each type: a server refuses larger ones."""


@dataclass(frozen=True)
class VectorField:
    """The field of vectors of d dimensions. `unit` says whether vectors are compared by cosine,
    as if they had the length 1; `exact`, whether a script compares the query with all of them."""

    name: str
    dimensions: int
    elastic: bool
    unit: bool
    exact: bool

    @classmethod
    def of(cls, fields: Fields, name: str, index: str, *, exact: bool) -> VectorField:
        """Find the field in the mapping of an index, which `index` names in messages."""
        about = fields.get(name, {"type": None})
        if about["type"] not in _VECTORS:
            held = [field for field, other in fields.items() if other["type"] in _VECTORS]
            hint = nearest(name, held) if held else "no field is a dense_vector or a knn_vector"
            raise InputError(f"{index} has no vectors in a field {name!r} ({hint})")
        elastic, method = about["type"] == "dense_vector", about.get("method", {})
        engine, has_graph = method.get("engine", ""), about.get("index", True)
        how = about.get("similarity") or about.get("space_type") or method.get("space_type")
        how = how or ("cosine" if elastic and has_graph else "l2")
        numbers = about.get("element_type") or about.get("data_type") or "float"
        if numbers not in ("float", "bfloat16"):
            raise InputError(f"the vectors {name!r} of {index} are of {numbers}: map them as float")
        exact = exact or not has_graph
        if not exact and (how not in _COSINES + _PRODUCTS or engine == "nmslib"):
            raise InputError(
                f"{index} compares the vectors {name!r} by {how}{engine and ' in ' + engine}: map "
                "them with a cosine or an inner product (OpenSearch: in faiss or lucene), or pass "
                "exact=True"
            )
        d = int(about.get("dims") or about.get("dimension") or 0)
        return cls(name, d, elastic, how in _COSINES, exact)

    def searches(self, vectors: FloatArray, count: int, within: Query | None) -> list[Query]:
        """Return a search for the nearest items of each vector (m, d), within those of a query."""
        if self.unit:  # the nearest items of a vector of zeros are arbitrary
            vectors = np.where(vectors.any(axis=1, keepdims=True), vectors, 1)
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        search = self._exact if self.exact or count > PAGE else self._approximate
        return [search(vector, count, within) for vector in vectors.tolist()]

    def products(self, scores: Sequence[float], vector: FloatArray) -> list[float]:
        """Turn the scores of hits into inner products with a query vector (d,)."""
        s = np.array(scores, np.float64)
        if self.unit:
            return ((2 * s - 1) * np.linalg.norm(vector)).tolist()
        return np.where(s >= 1, s - 1, 1 - 1 / np.maximum(s, 1e-38)).tolist()

    def _approximate(self, vector: list[float], count: int, within: Query | None) -> Query:
        only = {} if within is None else {"filter": within}
        if not self.elastic:
            return {"query": {"knn": {self.name: {"vector": vector, "k": count, **only}}}}
        visited = min(max(2 * count, _VISITED), PAGE)
        about = {"field": self.name, "query_vector": vector, "k": count, "num_candidates": visited}
        return {"knn": {**about, **only}}

    def _exact(self, vector: list[float], _: int, within: Query | None) -> Query:
        script: Query = {"params": {"query_vector": vector}}
        if self.unit:
            field = f"'{self.name}'" if self.elastic else f"doc['{self.name}']"
            source = f"(1.0 + cosineSimilarity(params.query_vector, {field})) / 2"
        elif self.elastic:
            source = f"double p = dotProduct(params.query_vector, '{self.name}'); "
            source += "return p < 0 ? 1 / (1 - p) : p + 1"
        else:
            about = {"field": self.name, "query_value": vector, "space_type": "innerproduct"}
            script, source = {"lang": "knn", "params": about}, "knn_score"
        have = {"exists": {"field": self.name}}  # scripts fail where there is no vector
        query = {"bool": {"filter": [have] if within is None else [have, within]}}
        return {"query": {"script_score": {"query": query, "script": {**script, "source": source}}}}


def filter_query(condition: Condition, fields: Fields, index: str) -> Query:
    """Translate a filter condition to a query."""
    return evaluate(
        condition,
        lambda leaf: _leaf(leaf, fields, index),
        all=lambda parts: {"bool": {"filter": [*parts]}},
        any=lambda parts: {"bool": {"should": [*parts], "minimum_should_match": 1}},
        no=lambda part: {"bool": {"must_not": [part]}},
    )


def _leaf(leaf: Leaf, fields: Fields, index: str) -> Query:
    if isinstance(leaf, Missing):
        return {"bool": {"must_not": [{"exists": {"field": leaf.field}}]}}
    field, kind = _compared(leaf.field, fields, index)
    # A server would find the number 1 for the text "1".
    largest, is_number = _LARGEST.get(kind, np.inf), kind in (*_LARGEST, "scaled_float")
    own = "number" if is_number else "truth value" if kind == "boolean" else "text"
    if isinstance(leaf, Between):
        bounds = dict[str, Any](leaf.bounds)
        if {kind_of(value) for value in bounds.values()} != {own}:
            return {"match_none": {}}
        if is_number:
            low = 0 if kind == "unsigned_long" else -largest
            bounds = {bound: min(max(value, low), largest) for bound, value in bounds.items()}
        return {"range": {field: bounds}}
    values: list[Any] = [value for value in leaf.values if kind_of(value) == own]
    if is_number:
        values = [v for v in values if abs(v) <= largest and (kind not in _WHOLE or v == int(v))]
    return {"terms": {field: values}}


def _compared(field: str, fields: Fields, index: str) -> tuple[str, str]:
    """Return the field with whole values, perhaps a subfield of an analysed text, and its type."""
    kind, refusal = fields[field]["type"], f"the filter names {field!r}, "
    if kind in ("text", "match_only_text"):
        for name, about in fields[field].get("fields", {}).items():
            if about["type"] == "keyword":
                return f"{field}.{name}", "keyword"
        raise InputError(
            f"{refusal}an analysed text of {index}: map it as keyword, or give it a subfield of "
            "the type keyword"
        )
    if kind in ("object", "nested", *_VECTORS):
        entries = [name for name in fields if name.startswith(f"{field}.")]
        hint = f"name an entry, such as {entries[0]!r}" if entries else "it cannot be compared"
        raise InputError(f"{refusal}which is a field of {kind} of {index}: {hint}")
    return field, kind
