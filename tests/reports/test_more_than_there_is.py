"""A k above the number of items or documents: every adapter returns all there are."""

import pytest

import crossknn as ck

TEXTS = ["zip a file", "sort a list", "lock a thread"]
QUERY = "sort the list"


def overlap(pairs):
    return [len({*q.split()} & {*t.split()}) for q, t in pairs]


@pytest.fixture(scope="module")
def searcher():
    return ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=2), overlap)


def test_rerank():
    """`top_k` above the number of documents."""
    assert len(ck.rerank(QUERY, TEXTS, 2, scorer=overlap, top_k=99)) == 3


def test_langchain(searcher):
    """`CrossknnRetriever(k=50)`, `invoke(k=50)`, and a reranker's `top_n`."""
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document

    from crossknn.adapters import langchain as adapter

    assert len(adapter.CrossknnRetriever(searcher=searcher, k=50).invoke(QUERY)) == 3
    assert len(adapter.CrossknnRetriever(searcher=searcher).invoke(QUERY, k=50)) == 3
    documents = [*map(Document, TEXTS)]
    reranker = adapter.CrossknnReranker(scorer=overlap, top_n=50, budget=2)
    assert len(reranker.compress_documents(documents, QUERY)) == 3


def test_llama_index(searcher):
    """`similarity_top_k=50`, and a postprocessor's `top_n`."""
    pytest.importorskip("llama_index.core")
    from llama_index.core.schema import NodeWithScore, TextNode

    from crossknn.adapters import llama_index as adapter

    assert len(adapter.CrossknnRetriever(searcher, similarity_top_k=50).retrieve(QUERY)) == 3
    nodes = [NodeWithScore(node=TextNode(text=text)) for text in TEXTS]
    reranker = adapter.CrossknnRerank(scorer=overlap, top_n=50, budget=2)
    assert len(reranker.postprocess_nodes(nodes, query_str=QUERY)) == 3


def test_haystack(searcher):
    """`top_k=50` of the component and of the call, and of the ranker."""
    pytest.importorskip("haystack")
    from haystack import Document

    from crossknn.adapters import haystack as adapter

    retriever = adapter.CrossknnRetriever(searcher.index, overlap, top_k=50)
    assert len(retriever.run(QUERY)["documents"]) == 3
    assert len(retriever.run(QUERY, top_k=1000)["documents"]) == 3
    ranker = adapter.CrossknnRanker(overlap, top_k=50, budget=2)
    assert len(ranker.run(QUERY, [Document(content=text) for text in TEXTS])["documents"]) == 3


def test_pyterrier(searcher):
    """`num_results=50`, and a cut of 50 behind it."""
    pytest.importorskip("pyterrier")
    import pandas as pd

    from crossknn.adapters import pyterrier as adapter

    topics = pd.DataFrame({"qid": ["1", "2"], "query": [QUERY, "zip"]})
    retriever = adapter.CrossknnRetriever(searcher, 50)
    assert len(retriever(topics)) == len((retriever % 50)(topics)) == 6


def test_items_that_are_all_deleted():
    """The last item is deleted: the message says so, where it said "k is 0"."""
    index = ck.ItemIndex.build([{"id": str(i), "text": text} for i, text in enumerate(TEXTS)])
    index.delete(["0", "1", "2"])
    for options in {}, {"k": 1}, {"min_score": 0.0}, {"filter": []}, {"method": "rerank"}:
        with pytest.raises(ck.InputError, match="every item of the index is deleted: add items"):
            ck.Searcher(index, overlap).search(QUERY, **options)


@pytest.mark.torch
def test_mteb(searcher):
    """MTEB asks for 1,000 documents of any corpus."""
    pytest.importorskip("mteb")
    from crossknn.adapters import mteb as adapter

    model = adapter.CrossknnSearch(overlap)
    model.index([{"id": text, "text": text} for text in TEXTS])
    assert len(model.search([{"id": "q", "text": QUERY}], top_k=1000)["q"]) == 3
