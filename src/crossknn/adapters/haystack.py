"""Haystack: a retriever over an index, and a ranker that scores under a budget, a number of pairs
or a mapping of `Budget`. Pipelines can be saved if indexes and scorers are given by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from crossknn.adapters import budget_of, list_of, metadata_of, rerank_documents, text_of
from crossknn.errors import InputError, needs_extra
from crossknn.index.item_index import ItemIndex
from crossknn.search.searcher import PER_QUERY, Searcher

with needs_extra("crossknn.adapters.haystack", "haystack"):
    from haystack import Document, component

_BOUNDS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
_OPERATORS = ("==", "!=", *_BOUNDS, "in", "not in")
_FILTER = f"field, operator ({', '.join(_OPERATORS)}) and value, or AND, OR, NOT with conditions"


@component
class CrossknnRetriever:
    """Searches an index, or its folder, which is opened at the first `run`. `scorer` and `method`
    are as in `Searcher`; `filters` have Haystack's form. A document that was not scored has
    `crossknn_predicted` in its meta."""

    def __init__(
        self,
        index: str | Path | ItemIndex,
        scorer: Any = "bundled",
        method: str | None = "auto",
        top_k: int | None = None,
        budget: int | list[int] | Mapping[str, Any] | None = PER_QUERY,
        filters: dict[str, Any] | None = None,
    ) -> None:
        # Haystack saves the attributes that have the names of the arguments.
        self.index = str(index) if isinstance(index, Path) else index
        self.scorer, self.method = "bundled" if scorer is None else scorer, method
        self.top_k, self.budget, self.filters = top_k, budget, filters
        self._searcher: Searcher | None = None

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, Any]:
        """Return the best documents first; `filters` and `top_k` replace the settings."""
        if self._searcher is None:
            index = ItemIndex.load(self.index) if isinstance(self.index, str) else self.index
            self._searcher = Searcher(index, self.scorer, self.method)
        conditions = self.filters if filters is None else filters
        results = self._searcher.search(
            query,
            self.top_k if top_k is None else top_k,
            budget_of(self.budget),
            filter=filter_of(conditions) if conditions else None,
        )
        documents = [
            Document(id=hit.id, content=text_of(hit), meta=metadata_of(hit), score=hit.final_score)
            for hit in results[0]
        ]
        return {"documents": documents}


def filter_of(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Convert Haystack's filter, `{"field": "meta.year", "operator": ">=", "value": 2020}` or an
    operator AND, OR or NOT with a list of conditions, to crossknn's."""
    given = conditions if isinstance(conditions, Mapping) else {}
    operator, value = given.get("operator"), given.get("value")
    if operator in ("AND", "OR", "NOT") and isinstance(given.get("conditions"), list):
        filters = [filter_of(condition) for condition in given["conditions"]]
        if operator == "OR":
            return {"any": filters}
        one_fails = {"any": [{"not": each} for each in filters]}
        return one_fails if operator == "NOT" else {"not": one_fails}
    of_list = operator in ("==", "!=") and isinstance(value, list)
    if operator not in _OPERATORS or not {"field", "value"} <= {*given} or of_list:
        raise InputError(f"the filter {conditions!r:.120} is no filter: give a mapping, {_FILTER}")
    field = str(given["field"]).removeprefix("meta.")
    if operator in _BOUNDS:
        return {field: {_BOUNDS[operator]: value}}
    return {field: value if operator in ("==", "in") else {"not": value}}


@component
class CrossknnRanker:
    """Orders documents by `ck.rerank`, with raw logits as scores. If all documents have embeddings,
    these help to choose which `budget` documents to score (by default all). A document that was
    not scored has `crossknn_predicted` in its meta."""

    def __init__(
        self,
        scorer: Any = None,
        top_k: int | None = None,
        budget: int | Mapping[str, Any] | None = None,
    ) -> None:
        self.scorer, self.top_k, self.budget = scorer, top_k, budget

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        documents: list[Document],
        top_k: int | None = None,
        query_embedding: list[float] | None = None,
    ) -> dict[str, Any]:
        """Return the best documents first; `query_embedding` is by the documents' encoder."""
        documents = list_of(Document, documents or [])
        ranked = rerank_documents(
            query,
            documents,
            [document.content or "" for document in documents],
            lambda document: document.meta,
            budget=self.budget,
            scorer=self.scorer,
            top_k=self.top_k if top_k is None else top_k,
            embeddings=[document.embedding for document in documents],
            query_embedding=query_embedding,
        )
        return {"documents": [replace(each, score=s, meta=meta) for each, s, meta in ranked]}
