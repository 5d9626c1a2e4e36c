"""The real classes of LangChain, with its own conformance tests for retrievers."""

from __future__ import annotations

import asyncio

import pytest
from adapter_helpers import QUERY, TEXTS, overlap

import crossknn as ck

pytest.importorskip("langchain_core")
pytest.importorskip("langchain_tests")

from langchain_core.cross_encoders import BaseCrossEncoder
from langchain_tests.integration_tests import RetrieversIntegrationTests

from crossknn.adapters.langchain import CrossknnRetriever


@pytest.mark.asyncio
@pytest.mark.filterwarnings("ignore:.*is not an async function")
class TestConformance(RetrieversIntegrationTests):
    retriever_constructor = CrossknnRetriever
    retriever_query_example = QUERY
    num_results_arg_name = "k"

    @property
    def retriever_constructor_params(self):
        return {"searcher": ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=4), overlap), "budget": 12}


def test_options_of_a_call_replace_those_of_the_retriever(searcher):
    retriever = CrossknnRetriever(searcher=searcher, k=3, budget=12, filter={"lang": "en"})
    documents = retriever.invoke(QUERY)
    assert {document.metadata["lang"] for document in documents} == {"en"}
    assert documents == asyncio.run(retriever.ainvoke(QUERY))
    assert len(retriever.invoke(QUERY, k=5, filter=None)) == 5
    with pytest.raises(ck.InputError, match="colour"):
        retriever.invoke(QUERY, filter={"colour": "red"})


def test_a_cross_encoder_of_langchain_is_a_scorer(index):
    class Overlap(BaseCrossEncoder):
        def score(self, text_pairs):
            return overlap(text_pairs)

    found = ck.Searcher(index, Overlap().score).search(QUERY, 3, 12)
    wanted = ck.Searcher(index, overlap).search(QUERY, 3, 12)
    assert [hit.id for hit in found[0]] == [hit.id for hit in wanted[0]]
