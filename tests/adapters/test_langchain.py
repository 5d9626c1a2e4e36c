"""The real classes of LangChain, with its own conformance tests for retrievers."""

from __future__ import annotations

import asyncio

import pytest
from adapter_helpers import TEXTS, overlap

import crossknn as ck

pytest.importorskip("langchain_core")
pytest.importorskip("langchain_tests")

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_core.documents import Document
from langchain_tests.integration_tests import RetrieversIntegrationTests

from crossknn.adapters.langchain import CrossknnReranker, CrossknnRetriever

QUERY = "sort the list"


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:.*is not an async function")
class TestConformance(RetrieversIntegrationTests):
    retriever_constructor = CrossknnRetriever
    retriever_query_example = QUERY
    num_results_arg_name = "k"

    @property
    def retriever_constructor_params(self):
        return {"searcher": ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=4), overlap), "budget": 12}


def test_the_retriever_finds_what_a_search_finds(searcher):
    retriever = CrossknnRetriever(searcher=searcher, k=3, budget=12, filter={"lang": "en"})
    wanted = searcher.search(QUERY, 3, 12, filter={"lang": "en"})[0]
    found = retriever.invoke(QUERY)
    assert [document.id for document in found] == [hit.id for hit in wanted]
    assert found[0].page_content == wanted[0].text
    assert found[0].metadata["crossknn_score"] == wanted[0].score
    assert {document.metadata["lang"] for document in found} == {"en"}
    assert found == asyncio.run(retriever.ainvoke(QUERY))
    assert len(retriever.invoke(QUERY, k=5, filter=None)) == 5
    with pytest.raises(ck.InputError, match="colour"):
        retriever.invoke(QUERY, filter={"colour": "red"})


def test_the_reranker_orders_documents_as_rerank_does():
    documents = [
        Document(item["text"], id=item["id"], metadata={"of": item["id"]}) for item in TEXTS
    ]
    scorer = ck.CallableScorer(overlap)
    reranker = CrossknnReranker(scorer=scorer, top_n=4, budget=12)
    found = reranker.compress_documents(documents, QUERY)
    wanted = ck.rerank(QUERY, [d.page_content for d in documents], 12, scorer=scorer, top_k=4)
    assert [d.id for d in found] == [TEXTS[entry["corpus_id"]]["id"] for entry in wanted]
    assert [d.metadata["crossknn_score"] for d in found] == [entry["score"] for entry in wanted]
    assert all(d.metadata["of"] == d.id for d in found)
    assert "crossknn_score" not in documents[0].metadata  # its input is as it was
    whole = CrossknnReranker(scorer=scorer, budget=12).compress_documents(documents, QUERY)
    assert sum("crossknn_predicted" in d.metadata for d in whole) == len(documents) - 12
    assert reranker.compress_documents([], QUERY) == []
    again = CrossknnReranker(scorer=scorer).compress_documents(whole, QUERY)
    assert not any("crossknn_predicted" in d.metadata for d in again)  # now all were scored


def test_a_cross_encoder_of_langchain_is_a_scorer(index):
    class Overlap(BaseCrossEncoder):
        def score(self, text_pairs):
            return overlap(text_pairs)

    found = ck.Searcher(index, Overlap().score).search(QUERY, 3, 12)
    wanted = ck.Searcher(index, overlap).search(QUERY, 3, 12)
    assert [hit.id for hit in found[0]] == [hit.id for hit in wanted[0]]
