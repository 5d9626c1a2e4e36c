"""The real classes of LlamaIndex."""

from __future__ import annotations

import asyncio

import pytest
from adapter_helpers import QUERY, overlap

import crossknn as ck


@pytest.fixture(scope="module", autouse=True)
def imported():
    """Where it is used: that takes two seconds."""
    global Settings, MockLLM, RetrieverQueryEngine, ResponseMode, get_response_synthesizer
    global MetadataMode, NodeWithScore, QueryBundle, TextNode, CrossknnRerank, CrossknnRetriever
    pytest.importorskip("llama_index.core")
    from llama_index.core import Settings
    from llama_index.core.llms import MockLLM
    from llama_index.core.query_engine import RetrieverQueryEngine
    from llama_index.core.response_synthesizers import ResponseMode, get_response_synthesizer
    from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode

    from crossknn.adapters.llama_index import CrossknnRerank, CrossknnRetriever


def test_a_reranker_reads_what_the_search_has_scored(searcher):
    read = set()

    def scorer(pairs):
        read.update(text for _, text in pairs)
        return overlap(pairs)

    found = CrossknnRetriever(searcher, 20, budget=12).retrieve(QUERY)
    assert ["crossknn_predicted" in node.metadata for node in found] == [False] * 12 + [True] * 8
    first = CrossknnRerank(scorer=scorer, budget=4)
    second = CrossknnRerank(scorer=scorer, budget={"per_query": 20})
    again = second.postprocess_nodes(
        first.postprocess_nodes(found, query_str=QUERY), query_str=QUERY
    )
    assert read == {hit.text for hit in searcher.search(QUERY, 20, 12)[0]}
    assert not any("crossknn_predicted" in node.metadata for node in again)
    shown = again[0].node.get_content(metadata_mode=MetadataMode.LLM)
    assert "lang: " in shown
    named = {line.split(":")[0] for line in shown.split("\n")}
    assert not {"crossknn_predicted", "title"} & named
    assert "crossknn_" not in again[0].node.get_content(metadata_mode=MetadataMode.EMBED)


def test_it_retrieves_beside_others_and_reranks_what_has_a_query(searcher):
    retriever = CrossknnRetriever(searcher, 3, budget=12)
    nodes = retriever.retrieve(QUERY)
    assert asyncio.run(retriever.aretrieve(QueryBundle(QUERY))) == nodes
    reranker = CrossknnRerank(scorer=overlap)
    assert reranker.postprocess_nodes([], query_str=QUERY) == []
    with pytest.raises(ck.InputError, match="needs the query"):
        reranker.postprocess_nodes(nodes)


def test_what_metadata_are_embedded_is_scored():
    read = []

    def scorer(pairs):
        read.extend(text for _, text in pairs)
        return overlap(pairs)

    metadata = {"lang": "en", "title": "no"}
    node = TextNode(text="a", metadata=metadata, excluded_embed_metadata_keys=["title"])
    CrossknnRerank(scorer=scorer).postprocess_nodes([NodeWithScore(node=node)], query_str=QUERY)
    assert read == ["lang: en\n\na"]


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
