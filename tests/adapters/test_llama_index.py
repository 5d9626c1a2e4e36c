"""The real classes of LlamaIndex."""

from __future__ import annotations

import asyncio
import pickle

import pytest
from adapter_helpers import TEXTS, embedding, overlap

import crossknn as ck

pytest.importorskip("llama_index.core")

from llama_index.core import Settings
from llama_index.core.llms import MockLLM
from llama_index.core.query_engine import RetrieverQueryEngine
from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode

from crossknn.adapters.llama_index import CrossknnRerank, CrossknnRetriever

QUERY = "sort the list"


def nodes(**of):
    return [
        NodeWithScore(node=TextNode(id_=item["id"], text=item["text"], **of), score=1 / (n + 1))
        for n, item in enumerate(TEXTS)
    ]


def test_the_retriever_finds_what_a_search_finds(searcher):
    retriever = CrossknnRetriever(searcher, 3, budget=12, filter={"lang": "en"})
    wanted = searcher.search(QUERY, 3, 12, filter={"lang": "en"})[0]
    found = retriever.retrieve(QUERY)
    assert [node.node_id for node in found] == [hit.id for hit in wanted]
    assert [node.score for node in found] == [hit.final_score for hit in wanted]
    assert found[0].text == wanted[0].text
    assert {node.metadata["lang"] for node in found} == {"en"}
    later = asyncio.run(retriever.aretrieve(QueryBundle(QUERY)))
    assert [node.node_id for node in later] == [node.node_id for node in found]


def test_a_reranker_reads_what_the_search_has_scored(searcher):
    read = set()

    def scorer(pairs):
        read.update(text for _, text in pairs)
        return overlap(pairs)

    found = CrossknnRetriever(searcher, 20, budget=12).retrieve(QUERY)
    assert ["crossknn_predicted" in node.metadata for node in found] == [False] * 12 + [True] * 8
    first = CrossknnRerank(scorer=scorer, budget=4, keep_retrieval_score=True)
    second = CrossknnRerank(scorer=scorer, budget={"per_query": 20})
    again = second.postprocess_nodes(
        first.postprocess_nodes(found, query_str=QUERY), query_str=QUERY
    )
    assert read == {hit.text for hit in searcher.search(QUERY, 20, 12)[0]}
    assert not any("crossknn_predicted" in node.metadata for node in again)
    shown = again[0].node.get_content(metadata_mode=MetadataMode.LLM)
    assert "lang: " in shown
    assert not {"crossknn_predicted", "crossknn_retrieval_score", "title"} & {
        line.split(":")[0] for line in shown.split("\n")
    }


def test_a_copy_never_ranks_with_another_scorer():
    with pytest.raises(ck.InputError, match="the scorer, a function, cannot be pickled"):
        pickle.dumps(CrossknnRerank(scorer=lambda pairs: overlap(pairs)))
    copied = pickle.loads(pickle.dumps(CrossknnRerank(scorer=overlap, top_n=2)))
    assert copied.scorer is overlap
    assert copied.top_n == 2


def test_a_query_engine_retrieves_and_reranks_with_them(searcher, monkeypatch):
    monkeypatch.setattr(Settings, "_llm", MockLLM())  # the engine opens one, though it asks nothing
    synthesizer = get_response_synthesizer(response_mode=ResponseMode.NO_TEXT)
    engine = RetrieverQueryEngine(
        CrossknnRetriever(searcher, 8, budget=12),
        response_synthesizer=synthesizer,
        node_postprocessors=[CrossknnRerank(scorer=overlap, top_n=2, budget=4)],
    )
    found = engine.query(QUERY).source_nodes
    assert len(found) == 2
    assert "sort" in found[0].text


def test_the_reranker_orders_nodes_as_rerank_does():
    reranker = CrossknnRerank(scorer=overlap, top_n=20, budget=12, keep_retrieval_score=True)
    given = nodes()
    found = reranker.postprocess_nodes(given, query_str=QUERY)
    wanted = ck.rerank(QUERY, [item["text"] for item in TEXTS], 12, scorer=overlap, top_k=20)
    assert [node.node_id for node in found] == [TEXTS[e["corpus_id"]]["id"] for e in wanted]
    assert [node.score for node in found] == [entry["score"] for entry in wanted]
    assert sum("crossknn_predicted" in node.metadata for node in found) == 8
    assert found[0].metadata["crossknn_retrieval_score"] == 1 / (wanted[0]["corpus_id"] + 1)
    assert given[0].metadata == {}  # its input is as it was
    assert reranker.postprocess_nodes([], query_str=QUERY) == []
    with pytest.raises(ck.InputError, match="needs the query"):
        reranker.postprocess_nodes(given)


def test_embeddings_of_the_nodes_choose_what_is_scored():
    given, texts = nodes(), [item["text"] for item in TEXTS]
    for node in given:
        node.node.embedding = embedding(node.text).tolist()
    bundle = QueryBundle(QUERY, embedding=embedding(QUERY).tolist())
    found = CrossknnRerank(scorer=overlap, budget=12).postprocess_nodes(given, bundle)
    options = {"vectors": [*map(embedding, texts)], "query_vector": embedding(QUERY)}
    wanted = ck.rerank(QUERY, texts, 12, scorer=overlap, **options)
    assert [node.node_id for node in found] == [TEXTS[e["corpus_id"]]["id"] for e in wanted]


def test_what_metadata_are_embedded_is_scored():
    read = []

    def scorer(pairs):
        read.extend(text for _, text in pairs)
        return overlap(pairs)

    CrossknnRerank(scorer=scorer).postprocess_nodes(
        nodes(metadata={"lang": "en"}, excluded_embed_metadata_keys=["title"]), query_str=QUERY
    )
    assert all(text.startswith("lang: en") for text in read)
