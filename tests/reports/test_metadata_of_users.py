"""Adapters leave users' metadata as they are: what they add begins with `crossknn_`."""

import importlib
from itertools import product

import pandas as pd
import pytest
from adapter_helpers import Haystack, LangChain, LlamaIndex, overlap

import crossknn as ck

QUERY = "sort the list"
OWN = {
    "score": "mine",
    "predicted": "yes",
    "title": "own title",
    "relevance_score": 7,
    "retrieval_score": 8,
    "iteration": 9,
    "rank": 3,
}
ITEMS = [
    {"id": text, "text": text} | OWN for text in ("zip a file", "sort a list", "lock a thread")
]


@pytest.fixture
def terrier():
    pytest.importorskip("pyterrier")
    return importlib.import_module("crossknn.adapters.pyterrier")


@pytest.fixture(scope="module")
def searcher():
    return ck.Searcher(ck.ItemIndex.build(ITEMS, lsa=2), overlap)


@pytest.mark.parametrize("framework", [LangChain, LlamaIndex, Haystack])
def test_what_documents_have_is_left_as_it_is(framework, searcher):
    """Two of three are scored; a second reranker reads what the first has written."""
    called = framework()
    texts = [item | {"own": OWN} for item in ITEMS]
    for documents in (
        called.retrieve(searcher, budget=2),
        called.rerank(overlap, budget=2, texts=texts),
    ):
        for document in documents:
            assert {name: document.metadata[name] for name in OWN} == OWN
            more = {*document.metadata} - {*OWN, "of"}
            assert all(name.startswith("crossknn_") for name in more)
        predicted = [document.metadata.get("crossknn_predicted", False) for document in documents]
        assert predicted == [False, False, True]
    marked = [item | {"own": OWN | {"crossknn_predicted": True}} for item in ITEMS]
    again = called.rerank(overlap, texts=marked)
    assert not any("crossknn_predicted" in document.metadata for document in again)


def langchain_reranker():
    documents = pytest.importorskip("langchain_core.documents")
    from crossknn.adapters.langchain import CrossknnReranker

    rerank = CrossknnReranker(scorer=overlap).compress_documents
    return lambda given: rerank(given, QUERY), documents.Document("sort a list"), []


def llama_index_reranker():
    schema = pytest.importorskip("llama_index.core.schema")
    from crossknn.adapters.llama_index import CrossknnRerank

    rerank = CrossknnRerank(scorer=overlap).postprocess_nodes
    bare = [schema.TextNode(text="a text"), schema.Document(text="a text")]
    document = schema.NodeWithScore(node=schema.TextNode(text="sort a list"))
    return lambda given: rerank(given, query_str=QUERY), document, bare


def haystack_reranker():
    haystack = pytest.importorskip("haystack")
    from crossknn.adapters.haystack import CrossknnRanker

    ranker = CrossknnRanker(overlap)
    document = haystack.Document(content="sort a list")
    return lambda given: ranker.run(QUERY, given)["documents"], document, []


@pytest.mark.parametrize("make", [langchain_reranker, llama_index_reranker, haystack_reranker])
def test_what_is_no_list_of_documents(make):
    rerank, document, others = make()
    assert len(rerank(document for _ in range(3))) == 3
    with pytest.raises(ck.InputError, match="is no list: give a list of"):
        rerank(document)
    needed = type(document).__name__
    for wrong in ["a text", {"page_content": "a"}, None, 5, *others]:
        message = f"entry 1 is a {type(wrong).__name__}: give a list of {needed}"
        with pytest.raises(ck.InputError, match=message):
            rerank([document, wrong])


def test_pyterrier(searcher, terrier):
    topics = pd.DataFrame({"qid": ["1"], "query": [QUERY], "iteration": [9], "predicted": ["yes"]})
    found = terrier.CrossknnRetriever(searcher, budget=2)(topics)
    assert found["iteration"].tolist() == [9] * 3
    assert found["crossknn_iteration"].notna().all()
    ranked = terrier.CrossknnReranker(overlap, budget=2)(found)
    assert ranked["predicted"].tolist() == ["yes"] * 3
    assert ranked["crossknn_predicted"].tolist() == [False, False, True]


LACKING = [*product(("qid", "text", "query"), (float("nan"), None)), ("text", 5), ("query", 5)]


@pytest.mark.parametrize(("column", "value"), LACKING)
def test_pyterrier_a_row_that_lacks_a_value_is_named(terrier, searcher, column, value):
    rows = {"qid": ["7", "7"], "query": [QUERY] * 2, "docno": ["a", "b"], "text": ["x", "y"]}
    frame = pd.DataFrame(rows | {"score": [2.0, 1.0]}).astype({column: object})
    frame.loc[1, column] = value
    with pytest.raises(ck.InputError, match=f"the {column} of row 1 is {value}: "):
        terrier.CrossknnReranker(overlap)(frame)
    if column != "text":
        with pytest.raises(ck.InputError, match=f"the {column} of row 1 is {value}: "):
            terrier.CrossknnRetriever(searcher)(frame[["qid", "query"]])


def test_pyterrier_one_qid_with_two_queries(terrier):
    rows = {"qid": ["1", "1"], "query": ["a", "b"], "docno": ["x", "y"], "text": ["a", "b"]}
    with pytest.raises(ck.InputError, match="the qid '1' has several queries"):
        terrier.CrossknnReranker(overlap)(pd.DataFrame(rows | {"score": [2.0, 1.0]}))


DOCUMENTS = [{"id": f"d{n}", "text": item["text"]} for n, item in enumerate(ITEMS)]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("corpus", "queries", "ranked", "said"),
    [
        (DOCUMENTS, [{"id": "q", "text": "a"}], {"q": ["d0", "d9"]}, "'d9', to be ranked for 'q'"),
        ([{"id": 3, "text": "a"}], [], None, "the id 3 is no text"),
        (DOCUMENTS, [{"id": 4, "text": "a"}], None, "the id 4 is no text"),
        (DOCUMENTS, [{"id": "q", "text": "a"}] * 2, None, "the id 'q' is no text, or is given"),
        (DOCUMENTS, [{"id": "q"}], None, "query 'q' is None: give a text"),
        (DOCUMENTS * 2, [{"id": "q", "text": "a"}], None, "the id 'd0' is no text, or is given"),
    ],
)
def test_mteb_ids_that_cannot_be(corpus, queries, ranked, said):
    pytest.importorskip("mteb")
    from crossknn.adapters import mteb as adapter

    def evaluate():
        model = adapter.CrossknnSearch(overlap)
        model.index(corpus)
        model.search(queries, top_k=3, top_ranked=ranked)

    with pytest.raises(ck.InputError, match=said):
        evaluate()
