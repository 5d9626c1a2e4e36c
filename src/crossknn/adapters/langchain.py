"""LangChain: a retriever over an index, and a compressor that reranks under a budget.

A cross-encoder of LangChain is a scorer as it is: `ck.Searcher(index, encoder.score)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crossknn.adapters import SCORE, metadata_of, of_kind, reranked
from crossknn.errors import needs_extra
from crossknn.search.results import Results
from crossknn.searcher.rerank import rerank
from crossknn.searcher.searcher import PER_QUERY, Budget, Searcher

with needs_extra("crossknn.adapters.langchain", "langchain"):
    from langchain_core.documents import BaseDocumentCompressor, Document
    from langchain_core.retrievers import BaseRetriever
    from pydantic import ConfigDict


class CrossknnRetriever(BaseRetriever):
    """Searches an index; documents carry `id`, and as metadata the item's title and fields,
    `crossknn_score`, and `crossknn_predicted` where a document was not scored.

    `invoke` takes `k`, `budget`, `filter` and the other options of `Searcher.search`, too.

    Args:
        searcher: Of the index.
        k: Documents to return; by default 10, or all there are.
        budget: Pairs that a query may score, or a `Budget`.
        filter: See `Searcher.search`.
    """

    searcher: Searcher
    k: int | None = None
    budget: int | Budget | None = PER_QUERY
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
        Document(
            hit.text,
            id=hit.id,
            metadata=metadata_of(hit) | {SCORE: hit.final_score},
        )
        for hit in results[0]
    ]


class CrossknnReranker(BaseDocumentCompressor):
    """Orders documents by `ck.rerank`; metadata get `crossknn_score`, a raw logit, and
    `crossknn_predicted` where a document was not scored.

    Args:
        scorer: Whatever `Searcher` takes; the bundled cross-encoder by default.
        top_n: Documents to return; None returns all.
        budget: Documents that are scored; None scores all. Or a `Budget`.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    scorer: Any = None
    top_n: int | None = None
    budget: int | Budget | None = None

    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Any = None
    ) -> list[Document]:
        """The documents, the best first."""
        documents = of_kind(documents, Document, "Document(page_content=text)")
        if not documents:
            return []
        found = rerank(
            query,
            [document.page_content for document in documents],
            self.budget,
            scorer=self.scorer,
            top_k=self.top_n,
        )
        ranked = []
        for entry in found:
            document = documents[entry["corpus_id"]]
            said = reranked(document.metadata, entry) | {SCORE: entry["score"]}
            ranked.append(document.model_copy(update={"metadata": said}))
        return ranked
