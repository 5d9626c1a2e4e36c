"""LlamaIndex: a retriever over an index, and a postprocessor that reranks under a budget."""

from __future__ import annotations

import pickle
from typing import Any

from crossknn.adapters import (
    PREDICTED,
    RETRIEVAL_SCORE,
    budget_of,
    metadata_of,
    of_kind,
    reranked,
)
from crossknn.errors import InputError, needs_extra
from crossknn.search.results import Results
from crossknn.searcher.rerank import rerank
from crossknn.searcher.searcher import PER_QUERY, Budget, Searcher

with needs_extra("crossknn.adapters.llama_index", "llama-index"):
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.callbacks import CBEventType, EventPayload
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import (
        BaseNode,
        MetadataMode,
        NodeWithScore,
        QueryBundle,
        TextNode,
    )

_MARKS = [PREDICTED, RETRIEVAL_SCORE]  # which neither an encoder nor a language model reads


class CrossknnRetriever(BaseRetriever):
    """Searches an index; nodes carry the item's id, title and fields, and its final score, and
    `crossknn_predicted` in their metadata if they were not scored. A reranker reads the text alone,
    as this search did.

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
        k = self.similarity_top_k
        return {"k": k, "budget": self.budget, "filter": self.filter}


def _nodes(results: Results) -> list[NodeWithScore]:
    nodes = []
    for hit in results[0]:
        metadata = metadata_of(hit)
        node = TextNode(
            id_=hit.id,
            text=hit.text,  # with its title
            metadata=metadata,
            excluded_embed_metadata_keys=[*metadata],
            excluded_llm_metadata_keys=[*_MARKS, *(["title"] if hit.title else [])],
        )
        nodes.append(NodeWithScore(node=node, score=hit.final_score))
    return nodes


def _with(node: BaseNode, metadata: dict[str, Any]) -> BaseNode:
    """A copy of a node with other metadata."""
    update: dict[str, Any] = {"metadata": metadata}
    for name in ("excluded_embed_metadata_keys", "excluded_llm_metadata_keys"):
        update[name] = [*dict.fromkeys([*getattr(node, name), *_MARKS])]
    return node.model_copy(update=update)


class CrossknnRerank(BaseNodePostprocessor):
    """Orders nodes by `ck.rerank`; scores are raw logits, and a node that was not scored has
    `crossknn_predicted` in its metadata. Nodes' embeddings help to choose what to score, if all
    have one.

    Args:
        scorer: Whatever `Searcher` takes; the bundled cross-encoder by default.
        top_n: Nodes to return; None returns all.
        budget: Nodes that are scored; None scores all. Or a `Budget`.
        keep_retrieval_score: Keep the retriever's score, as `crossknn_retrieval_score`.
    """

    scorer: Any = None
    top_n: int | None = None
    budget: Any = None
    keep_retrieval_score: bool | None = False

    @classmethod
    def class_name(cls) -> str:
        """As LlamaIndex names the class in its serialised form."""
        return "CrossknnRerank"

    def __getstate__(self) -> dict[str, Any]:
        try:  # LlamaIndex leaves out what it cannot pickle: the copy would have another scorer
            pickle.dumps(self.scorer)
        except Exception as error:
            what = type(self.scorer).__name__
            said = f"the scorer, a {what}, cannot be pickled: give its folder or name"
            raise InputError(said) from error
        state: dict[str, Any] = super().__getstate__()
        return state

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("reranking needs the query: give query_str or query_bundle")
        nodes = of_kind(nodes, NodeWithScore, "NodeWithScore(node=TextNode(text=text))")
        if not nodes:
            return []
        embedded = all(node.node.embedding is not None for node in nodes)
        texts = [entry.node.get_content(metadata_mode=MetadataMode.EMBED) for entry in nodes]
        payload = {
            EventPayload.NODES: nodes,
            EventPayload.MODEL_NAME: "bundled" if self.scorer is None else str(self.scorer),
            EventPayload.QUERY_STR: query_bundle.query_str,
            EventPayload.TOP_K: self.top_n or len(nodes),
        }
        with self.callback_manager.event(CBEventType.RERANKING, payload=payload) as event:
            found = rerank(
                query_bundle.query_str,
                texts,
                budget_of(self.budget),
                vectors=[entry.node.embedding for entry in nodes] if embedded else None,
                scorer=self.scorer,
                top_k=self.top_n,
                query_vector=query_bundle.embedding if embedded else None,
            )
            ranked = []
            for entry in found:
                given = nodes[entry["corpus_id"]]
                said = reranked(given.node.metadata, entry)
                said |= {RETRIEVAL_SCORE: given.score} if self.keep_retrieval_score else {}
                ranked.append(NodeWithScore(node=_with(given.node, said), score=entry["score"]))
            event.on_end(payload={EventPayload.NODES: ranked})
        return ranked
