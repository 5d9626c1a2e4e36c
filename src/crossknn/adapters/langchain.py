"""LangChain: a retriever over an index, and a compressor that reranks under a budget.

LangChain's cross-encoders can be used as scorers: `ck.Searcher(index, encoder.score)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crossknn.adapters import SCORE, list_of, metadata_of, rerank_documents, text_of
from crossknn.errors import needs_extra
from crossknn.search.results import Results
from crossknn.search.searcher import PER_QUERY, Budget, Searcher

with needs_extra("crossknn.adapters.langchain", "langchain"):
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import ConfigDict


class CrossknnRetriever(BaseRetriever):
    """Searches an index; `invoke` takes all options of `Searcher.search`. Metadata have title and
    fields, `crossknn_score`, and `crossknn_predicted` if the document was not scored."""

    searcher: Searcher
    k: int | None = None
    budget: int | Sequence[int] | Budget | None = PER_QUERY
    filter: Any = None

    def _get_relevant_documents(
        self, query: str, *, run_manager: Any, **options: Any
    ) -> list[Document]:
        return _documents(self.searcher.search(query, **self._options(options)))

    async def _aget_relevant_documents(
        self, query: str, *, run_manager: Any, **options: Any
    ) -> list[Document]:
        return _documents(await self.searcher.asearch(query, **self._options(options)))

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        return {"k": self.k, "budget": self.budget, "filter": self.filter} | given


def _documents(results: Results) -> list[Document]:
    return [
        Document(text_of(hit), id=hit.id, metadata=metadata_of(hit) | {SCORE: hit.final_score})
        for hit in results[0]
    ]


class CrossknnReranker(BaseDocumentCompressor):
    """Orders documents by `ck.rerank`, of which `budget` are scored (by default all). Metadata get
    `crossknn_score`, a raw logit, and `crossknn_predicted` if the document was not scored."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    scorer: Any = None
    top_n: int | None = None
    budget: int | Budget | None = None

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> list[Document]:
        """Return the documents, the best first."""
        documents = list_of(Document, documents)
        texts = [document.page_content for document in documents]
        options: Any = {"budget": self.budget, "scorer": self.scorer, "top_k": self.top_n}
        ranked = rerank_documents(query, documents, texts, lambda each: each.metadata, **options)
        return [
            document.model_copy(update={"metadata": metadata | {SCORE: score}})
            for document, score, metadata in ranked
        ]
