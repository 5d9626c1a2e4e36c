"""Haystack: a retriever over an index, and a ranker that scores under a budget.

Pipelines can be saved if indexes and scorers are given by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from crossknn.adapters import metadata_of, of_kind, rerank_documents
from crossknn.errors import InputError, needs_extra
from crossknn.index.item_index import ItemIndex
from crossknn.search.searcher import PER_QUERY, Budget, Searcher

with needs_extra("crossknn.adapters.haystack", "haystack"):
    from haystack import Document, component

_BOUNDS = {">": "gt", ">=": "gte", "<": "lt", "<=": "lte"}
_OPERATORS = ("==", "!=", *_BOUNDS, "in", "not in")
_FILTER = f"field, operator ({', '.join(_OPERATORS)}) and value, or AND, OR, NOT with conditions"


@component
class CrossknnRetriever:
    """Searches an index. A document has the item's id, text, fields and final score, and
    `crossknn_predicted` in its meta if it was not scored.

    Args:
        index: A folder, opened at `warm_up` or the first `run`, or an `ItemIndex`.
        scorer: Whatever `Searcher` takes; the bundled cross-encoder by default.
        method: A method's spec.
        top_k: Documents to return; by default 10, or all there are.
        budget: Pairs that a query may score, or a `Budget`.
        filters: Conditions in Haystack's form, for queries that bring none.
    """

    def __init__(
        self,
        index: str | Path | ItemIndex,
        scorer: Any = "bundled",
        method: str | None = "auto",
        top_k: int | None = None,
        budget: int | Budget | Mapping[str, Any] | None = PER_QUERY,
        filters: dict[str, Any] | None = None,
    ) -> None:
        # Haystack saves a component as the attributes that are named as its arguments.
        self.index = str(index) if isinstance(index, Path) else index
        self.scorer, self.method = "bundled" if scorer is None else scorer, method
        self.top_k, self.budget, self.filters = top_k, _saved(budget), filters
        self._searcher: Searcher | None = None

    def warm_up(self) -> None:
        """Open the index and the scorer."""
        self._opened()

    def _opened(self) -> Searcher:
        if self._searcher is None:
            index = ItemIndex.load(self.index) if isinstance(self.index, str) else self.index
            self._searcher = Searcher(index, self.scorer, self.method)
        return self._searcher

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, Any]:
        """Return the documents of a query, the best first; `filters` and `top_k` replace the
        retriever's own."""
        conditions = self.filters if filters is None else filters
        results = self._opened().search(
            query,
            self.top_k if top_k is None else top_k,
            Budget(**self.budget) if isinstance(self.budget, dict) else self.budget,
            filter=filter_of(conditions) if conditions else None,
        )
        documents = [
            Document(id=hit.id, content=hit.text, meta=metadata_of(hit), score=hit.final_score)
            for hit in results[0]
        ]
        return {"documents": documents}


def _saved(budget: int | Budget | Mapping[str, Any] | None) -> Any:
    return asdict(budget) if isinstance(budget, Budget) else budget


def filter_of(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Convert Haystack's filter, `{"field": "meta.year", "operator": ">=", "value": 2020}` or an
    operator AND, OR or NOT with a list of conditions, to crossknn's."""
    if not isinstance(conditions, Mapping):
        raise InputError(f"the filter {conditions!r:.120} is none: give a mapping, {_FILTER}")
    operator = conditions.get("operator")
    if operator in ("AND", "OR", "NOT") and isinstance(conditions.get("conditions"), list):
        filters = [filter_of(condition) for condition in conditions["conditions"]]
        if operator == "OR":
            return {"any": filters}
        one_fails = {"any": [{"not": each} for each in filters]}
        return one_fails if operator == "NOT" else {"not": one_fails}
    if operator not in _OPERATORS or "value" not in conditions or "field" not in conditions:
        raise InputError(f"the filter {dict(conditions)!r:.120} is none: give {_FILTER}")
    field, value = str(conditions["field"]).removeprefix("meta."), conditions["value"]
    if operator in ("==", "!=") and isinstance(value, list):
        raise InputError(f"{field} is compared with a list: use the operators in and not in")
    if operator in _BOUNDS:
        return {field: {_BOUNDS[operator]: value}}
    return {field: value if operator in ("==", "in") else {"not": value}}


@component
class CrossknnRanker:
    """Orders documents by `ck.rerank`. Scores are raw logits, and a document that was not scored
    has `crossknn_predicted` in its meta. Embeddings help to choose what to score, if all documents
    have one.

    Args:
        scorer: Whatever `Searcher` takes; the bundled cross-encoder by default.
        top_k: Documents to return; None returns all.
        budget: Documents that are scored; None scores all. Or a `Budget`.
    """

    def __init__(
        self,
        scorer: Any = None,
        top_k: int | None = None,
        budget: int | Budget | Mapping[str, Any] | None = None,
    ) -> None:
        self.scorer, self.top_k, self.budget = scorer, top_k, _saved(budget)

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        documents: list[Document],
        top_k: int | None = None,
        query_embedding: list[float] | None = None,
    ) -> dict[str, Any]:
        """Return the documents, the best first; `top_k` replaces the ranker's own, and
        `query_embedding` comes from the encoder of the documents' embeddings."""
        documents = of_kind(documents or [], Document, "Document(content=text)")
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
