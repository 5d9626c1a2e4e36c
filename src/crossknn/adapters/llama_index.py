"""LlamaIndex: a retriever over an index, and a postprocessor that reranks under a budget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from crossknn.adapters import PREDICTED, list_of, metadata_of, rerank_documents, text_of
from crossknn.errors import InputError, needs_extra
from crossknn.search.results import Results
from crossknn.search.searcher import PER_QUERY, Budget, Searcher

with needs_extra("crossknn.adapters.llama_index", "llama-index"):
    from llama_index.core.base.base_retriever import BaseRetriever
    from llama_index.core.postprocessor.types import BaseNodePostprocessor
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode


class CrossknnRetriever(BaseRetriever):
    """Searches an index; `options` go to LlamaIndex's `BaseRetriever`. Metadata are the title and
    fields, and `crossknn_predicted` if the node was not scored; rerankers read the text alone."""

    def __init__(
        self,
        searcher: Searcher,
        similarity_top_k: int | None = None,
        budget: int | Sequence[int] | Budget = PER_QUERY,
        filter: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.searcher = searcher
        self.options: dict[str, Any] = {"k": similarity_top_k, "budget": budget, "filter": filter}

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(self.searcher.search(query_bundle.query_str, **self.options))

    async def _aretrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return _nodes(await self.searcher.asearch(query_bundle.query_str, **self.options))


def _nodes(results: Results) -> list[NodeWithScore]:
    nodes = []
    for hit in results[0]:
        metadata = metadata_of(hit)
        # An item's text begins with its title, and so does a document's first passage.
        has_title = bool(hit.title) and (hit.passage is None or hit.passage.start == 0)
        node = TextNode(
            id_=hit.id,
            text=text_of(hit),
            metadata=metadata,
            excluded_embed_metadata_keys=[*metadata],
            excluded_llm_metadata_keys=[PREDICTED, *(["title"] if has_title else [])],
        )
        nodes.append(NodeWithScore(node=node, score=hit.final_score))
    return nodes


class CrossknnRerank(BaseNodePostprocessor):
    """Orders nodes by `ck.rerank`, with raw logits as scores. If all nodes have embeddings, these
    help to choose which `budget` nodes to score (by default all). A node that was not scored has
    `crossknn_predicted` in its metadata."""

    scorer: Any = None
    top_n: int | None = None
    budget: Any = None

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise InputError("reranking needs the query: give query_str or query_bundle")
        nodes = list_of(NodeWithScore, nodes)
        ranked = rerank_documents(
            query_bundle.query_str,
            nodes,
            [each.node.get_content(metadata_mode=MetadataMode.EMBED) for each in nodes],
            lambda each: each.node.metadata,
            budget=self.budget,
            scorer=self.scorer,
            top_k=self.top_n,
            embeddings=[each.node.embedding for each in nodes],
            query_embedding=query_bundle.embedding,
        )
        return [_scored(*each) for each in ranked]


def _scored(given: NodeWithScore, score: float, metadata: Any) -> NodeWithScore:
    """A node with its new score; encoders and language models do not read what was added."""
    update = {"metadata": metadata}
    for name in ("excluded_embed_metadata_keys", "excluded_llm_metadata_keys"):
        update[name] = [*dict.fromkeys([*getattr(given.node, name), PREDICTED])]
    return NodeWithScore(node=given.node.model_copy(update=update), score=score)
