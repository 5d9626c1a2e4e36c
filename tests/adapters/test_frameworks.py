"""The real classes of LangChain, LlamaIndex, Haystack and PyTerrier answer as our own functions."""

from __future__ import annotations

import pytest
from adapter_helpers import FRAMEWORKS, QUERY, TEXTS, embedding, overlap

import crossknn as ck


@pytest.fixture(params=FRAMEWORKS)
def framework(request):
    return request.param()


def reranked(budget, **options):
    """Ids and scores by `ck.rerank`."""
    answers = ck.rerank(QUERY, [item["text"] for item in TEXTS], budget, scorer=overlap, **options)
    return [(TEXTS[entry["corpus_id"]]["id"], entry["score"]) for entry in answers]


def ids_and_scores(documents):
    return [(document.id, document.score) for document in documents]


def test_the_retriever_answers_as_a_search(framework, searcher):
    documents = framework.retrieve(searcher, 5, 12, {"lang": "en"})
    hits = searcher.search(QUERY, 5, 12, filter={"lang": "en"})[0]
    assert ids_and_scores(documents) == [(hit.id, hit.final_score) for hit in hits]
    assert [document.text for document in documents] == [hit.text for hit in hits]


def test_the_reranker_orders_documents_as_rerank_does(framework):
    documents = framework.rerank(overlap, budget=12)
    assert ids_and_scores(documents) == reranked(12)
    assert all(document.metadata["of"] == document.id for document in documents)
    predicted = ["crossknn_predicted" in document.metadata for document in documents]
    assert predicted == [False] * 12 + [True] * (len(TEXTS) - 12)
    assert ids_and_scores(framework.rerank(overlap, 4, 12)) == reranked(12, top_k=4)
    assert framework.rerank(overlap, texts=TEXTS[:1])[0].id == TEXTS[0]["id"]


def test_embeddings_of_documents_choose_what_is_scored(framework):
    if not framework.takes_vectors:
        pytest.skip("its documents have no embeddings")
    vectors = [embedding(item["text"]) for item in TEXTS]
    wanted = reranked(12, vectors=vectors, query_vector=embedding(QUERY))
    assert ids_and_scores(framework.rerank(overlap, budget=12, vectors=True)) == wanted
    assert wanted != reranked(12)


def test_none_is_the_default_of_every_argument_and_k_may_be_larger_than_the_index(framework):
    """As a pipeline's YAML says it, or a searcher whose method is None."""
    searcher = ck.Searcher(ck.ItemIndex.build(TEXTS[:3], lsa=2), overlap, None)
    assert len(framework.retrieve(searcher, None, None, None)) == 3
    assert len(framework.retrieve(searcher, 50)) == 3
    assert len(framework.rerank(None, None, None, texts=TEXTS[:3])) == 3
    assert len(framework.rerank(overlap, 50, 2, texts=TEXTS[:3])) == 3
