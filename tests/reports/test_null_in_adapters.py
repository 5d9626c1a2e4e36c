"""None for an optional argument of an adapter is its default, as in a pipeline's YAML."""

import pytest

import crossknn as ck

TEXTS = ["zip a file", "sort a list", "lock a thread"]
QUERY = "sort the list"


def overlap(pairs):
    return [len({*q.split()} & {*t.split()}) for q, t in pairs]


@pytest.fixture(scope="module")
def searcher():
    """Made with a method that is None."""
    return ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=2), overlap, None)


def test_langchain(searcher):
    """Of the retriever, of `invoke`, and of the reranker."""
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document

    from crossknn.adapters import langchain as adapter

    null = {"k": None, "budget": None, "filter": None}
    assert len(adapter.CrossknnRetriever(searcher=searcher, **null).invoke(QUERY, **null)) == 3
    reranker = adapter.CrossknnReranker(scorer=None, top_n=None, budget=None)
    assert len(reranker.compress_documents([*map(Document, TEXTS)], QUERY)) == 3


def test_llama_index(searcher):
    """Of the retriever and of the postprocessor."""
    pytest.importorskip("llama_index.core")
    from llama_index.core.schema import NodeWithScore, TextNode

    from crossknn.adapters import llama_index as adapter

    retriever = adapter.CrossknnRetriever(searcher, None, None, None)
    assert len(retriever.retrieve(QUERY)) == 3
    reranker = adapter.CrossknnRerank(scorer=None, top_n=None, budget=None)
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    assert len(reranker.postprocess_nodes(nodes, query_str=QUERY)) == 3


def test_haystack(searcher):
    """A saved pipeline has `null` for all of them."""
    pytest.importorskip("haystack")
    from haystack import Document

    from crossknn.adapters import haystack as adapter

    null = dict.fromkeys(("scorer", "method", "top_k", "budget", "filters"))
    retriever = adapter.CrossknnRetriever(searcher.index, **null)
    assert len(retriever.run(QUERY, filters=None, top_k=None)["documents"]) == 3
    ranker = adapter.CrossknnRanker(None, None, None)
    documents = [Document(content=text) for text in TEXTS]
    assert len(ranker.run(QUERY, documents, None, None)["documents"]) == 3


def test_pyterrier(searcher):
    """Of the retriever and of the reranker."""
    pytest.importorskip("pyterrier")
    import pandas as pd

    from crossknn.adapters import pyterrier as adapter

    topics = pd.DataFrame({"qid": ["1"], "query": [QUERY]})
    found = adapter.CrossknnRetriever(searcher, None, None, None)(topics)
    assert len(adapter.CrossknnReranker(None, None, None)(found)) == 3


@pytest.mark.torch
def test_mteb():
    """Of the search model; documents whose text or title is null are empty ones."""
    pytest.importorskip("mteb")
    from crossknn.adapters import mteb as adapter

    model = adapter.CrossknnSearch(overlap, method=None, budget=None)
    null = [{"id": "a", "text": None, "title": float("nan")}, {"id": "b", "title": None}]
    model.index([{"id": text, "text": text} for text in TEXTS] + null)
    found = model.search([{"id": "q", "text": QUERY, "instruction": None}], top_k=9)["q"]
    assert len(found) == 5
    assert next(iter(found)) == "sort a list"
