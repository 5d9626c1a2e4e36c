"""Haystack: a retriever over an index, and a ranker that scores under a budget.

Pipelines are saved if indexes and scorers are given by their names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from crossknn.adapters import budget_of, metadata_of, of_kind, reranked
from crossknn.errors import InputError, needs_extra
from crossknn.index.filters import comparison, joined
from crossknn.index.item_index import ItemIndex
from crossknn.search.results import Results
from crossknn.searcher.rerank import rerank
from crossknn.searcher.searcher import PER_QUERY, Budget, Searcher

with needs_extra("crossknn.adapters.haystack", "haystack"):
    from haystack import Document, component, default_from_dict, default_to_dict

_COMPARISONS = {
    "==": "eq",
    "!=": "ne",
    ">": "gt",
    ">=": "gte",
    "<": "lt",
    "<=": "lte",
    "in": "in",
    "not in": "nin",
}
_FILTER = f"field, operator ({', '.join(_COMPARISONS)}) and value, or AND, OR, NOT with conditions"


class _Saved:
    """Saved as its arguments, of which an index and a scorer must be names."""

    _arguments: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """For Haystack's saved pipelines.

        Raises:
            InputError: The index or the scorer is an object, not a folder or a name.
        """
        given = dict(self._arguments)
        for name in ("index", "scorer"):
            if not isinstance(given.get(name), str | None):
                what = type(given[name]).__name__
                raise InputError(
                    f"the {name} is a {what}, which no pipeline can save: give its folder or name"
                )
        if isinstance(given["budget"], Budget):
            given["budget"] = asdict(given["budget"])
        return default_to_dict(self, **given)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Any:
        """What `to_dict` saved."""
        return default_from_dict(cls, data)


@component
class CrossknnRetriever(_Saved):
    """Searches an index; a document carries the item's id, text, fields and final score, and
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
        budget: int | Budget | Mapping[str, Any] = PER_QUERY,
        filters: dict[str, Any] | None = None,
    ) -> None:
        self._arguments = {
            "index": str(index) if isinstance(index, Path) else index,
            "scorer": "bundled" if scorer is None else scorer,
            "method": method,
            "top_k": top_k,
            "budget": budget_of(budget),
            "filters": filters,
        }
        self._searcher: Searcher | None = None

    def warm_up(self) -> None:
        """Open the index and the scorer."""
        if self._searcher is None:
            index, scorer, method = (self._arguments[n] for n in ("index", "scorer", "method"))
            opened = ItemIndex.load(index) if isinstance(index, str) else index
            self._searcher = Searcher(opened, scorer, method)

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, Any]:
        """The documents of a query, the best first.

        Args:
            query: A text.
            filters: In the place of the retriever's own.
            top_k: In the place of the retriever's own.
        """
        searcher, options = self._asked(filters, top_k)
        return {"documents": _documents(searcher.search(query, **options))}

    @component.output_types(documents=list[Document])
    async def run_async(
        self, query: str, filters: dict[str, Any] | None = None, top_k: int | None = None
    ) -> dict[str, Any]:
        """`run`, in a thread of its own."""
        await asyncio.to_thread(self.warm_up)
        searcher, options = self._asked(filters, top_k)
        return {"documents": _documents(await searcher.asearch(query, **options))}

    def _asked(
        self, filters: dict[str, Any] | None, top_k: int | None
    ) -> tuple[Searcher, dict[str, Any]]:
        self.warm_up()
        own, searcher = self._arguments, self._searcher
        assert searcher is not None
        conditions = own["filters"] if filters is None else filters
        return searcher, {
            "k": own["top_k"] if top_k is None else top_k,
            "budget": own["budget"],
            "filter": filter_of(conditions) if conditions else None,
        }


def _documents(results: Results) -> list[Document]:
    return [
        Document(
            id=hit.id,
            content=hit.text,
            meta=metadata_of(hit),
            score=hit.final_score,
        )
        for hit in results[0]
    ]


def filter_of(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Our filter for Haystack's conditions.

    Args:
        conditions: `{"field": "meta.year", "operator": ">=", "value": 2020}`, or an operator AND,
            OR or NOT with a list of conditions.

    Raises:
        InputError: An operator is none of Haystack's, or a key is missing.
    """
    if not isinstance(conditions, Mapping):
        raise InputError(f"the filter {conditions!r:.120} is none: give a mapping, {_FILTER}")
    how = conditions.get("operator")
    if how in ("AND", "OR", "NOT") and isinstance(conditions.get("conditions"), list):
        parts = [filter_of(part) for part in conditions["conditions"]]
        found = joined(parts, any=how == "OR")
        return {"not": found} if how == "NOT" else found
    if how not in _COMPARISONS or "value" not in conditions or "field" not in conditions:
        raise InputError(f"the filter {dict(conditions)!r:.120} is none: give {_FILTER}")
    field = str(conditions["field"]).removeprefix("meta.")
    if how in ("==", "!=") and isinstance(conditions["value"], list):
        raise InputError(f"{field} is compared with a list: use the operators in and not in")
    return comparison(field, _COMPARISONS[how], conditions["value"])


@component
class CrossknnRanker(_Saved):
    """Orders documents by `ck.rerank`; scores are raw logits, and a document that was not scored
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
        self._arguments = {"scorer": scorer, "top_k": top_k, "budget": budget_of(budget)}

    @component.output_types(documents=list[Document])
    def run(
        self,
        query: str,
        documents: list[Document],
        top_k: int | None = None,
        query_embedding: list[float] | None = None,
    ) -> dict[str, Any]:
        """The documents, the best first.

        Args:
            query: A text.
            documents: In the order of whatever retrieved them.
            top_k: In the place of the ranker's own.
            query_embedding: The query's, of the encoder of the documents' embeddings.
        """
        documents = of_kind(documents or [], Document, "Document(content=text)")
        if not documents:
            return {"documents": []}
        embedded = all(document.embedding is not None for document in documents)
        found = rerank(
            query,
            [document.content or "" for document in documents],
            self._arguments["budget"],
            vectors=[document.embedding for document in documents] if embedded else None,
            scorer=self._arguments["scorer"],
            top_k=self._arguments["top_k"] if top_k is None else top_k,
            query_vector=query_embedding if embedded else None,
        )
        ranked = []
        for entry in found:
            document = documents[entry["corpus_id"]]
            meta = reranked(document.meta, entry)
            ranked.append(replace(document, score=entry["score"], meta=meta))
        return {"documents": ranked}
