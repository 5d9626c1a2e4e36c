"""LlamaIndex: a retriever over an index, and a postprocessor that reranks under a budget."""

from __future__ import annotations

from typing import Any

from crossknn.errors import InputError, needs_extra
from crossknn.rerank import rerank
from crossknn.search.results import Results
from crossknn.search.searcher import PER_QUERY, Budget, Searcher

with needs_extra("crossknn.adapters.llama_index", "llama-index"):
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.callbacks import CBEventType, EventPayload
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode


class CrossknnRetriever(BaseRetriever):
    """Searches an index; nodes carry the item's id, title and fields, and its final score.

    Args:
        searcher: Of the index.
        similarity_top_k: Nodes to return; by default 10, or all there are.
        budget: Pairs that a query may score, or a `Budget`.
        filter: See `Searcher.search`.
        options: Of LlamaIndex's `BaseRetriever`, such as `callback_manager`.
    """

    def __init__(
        self,
        searcher: Searcher,
        similarity_top_k: int | None = None,
        budget: int | Budget = PER_QUERY,
        filter: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.searcher = searcher
        self.similarity_top_k = similarity_top_k
        self.budget = budget
        self.filter = filter

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(self.searcher.search(query_bundle.query_str, **self._options()))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(await self.searcher.asearch(query_bundle.query_str, **self._options()))

    def _options(self) -> dict[str, Any]:
        return {"k": self.similarity_top_k, "budget": self.budget, "filter": self.filter}


def _nodes(results: Results) -> list[NodeWithScore]:
    return [
        NodeWithScore(
            node=TextNode(id_=hit.id, text=hit.text, metadata={**hit.extra, "title": hit.title}),
            score=hit.final_score,
        )
        for hit in results[0]
    ]


class CrossknnRerank(BaseNodePostprocessor):
    """Orders nodes by `ck.rerank`; scores are raw logits, and a node that was not scored has
    `predicted` in its metadata. Nodes' embeddings help to choose what to score, if all have one.

    Args:
        scorer: Whatever `Searcher` takes; the bundled cross-encoder by default.
        top_n: Nodes to return; None returns all.
        budget: Nodes that are scored; None scores all. Or a `Budget`.
        keep_retrieval_score: Keep the retriever's score as `retrieval_score` in the metadata.
    """

    scorer: Any = None
    top_n: int | None = None
    budget: Any = None
    keep_retrieval_score: bool = False

    @classmethod
    def class_name(cls) -> str:
        """As LlamaIndex names the class in its serialised form."""
        return "CrossknnRerank"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("reranking needs the query: give query_str or query_bundle")
        if not nodes:
            return []
        embedded = all(node.node.embedding is not None for node in nodes)
        texts = [entry.node.get_content(metadata_mode=MetadataMode.EMBED) for entry in nodes]
        payload = {
            EventPayload.NODES: nodes,
            EventPayload.MODEL_NAME: str(self.scorer or "bundled"),
            EventPayload.QUERY_STR: query_bundle.query_str,
            EventPayload.TOP_K: self.top_n or len(nodes),
        }
        with self.callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
            found = rerank(
                query_bundle.query_str,
                texts,
                self.budget,
                vectors=[entry.node.embedding for entry in nodes] if embedded else None,
                scorer=self.scorer,
                top_k=self.top_n,
                query_vector=query_bundle.embedding if embedded else None,
            )
            ranked = []
            for entry in found:
                given = nodes[entry["corpus_id"]]
                said = {"retrieval_score": given.score} if self.keep_retrieval_score else {}
                said |= {"predicted": True} if "predicted" in entry else {}
                node = given.node.model_copy(update={"metadata": given.node.metadata | said})
                ranked.append(NodeWithScore(node=node, score=entry["score"]))
            event.on_end(payload={EventPayload.NODES: ranked})
        return ranked
