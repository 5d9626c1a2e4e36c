"""Reranking of given documents, asked by the clients of others."""

import numpy as np
import pytest
from service_helpers import QUERIES, TEXTS, Words, refusal, running

import crossknn as ck
from crossknn.errors import ScorerError

DOCUMENTS = [item["text"] for item in TEXTS]
MANY = [f"{text} ({n})" for n in range(25) for text in DOCUMENTS]


def order(documents, query=QUERIES[0]):
    scores = Words()([(query, text) for text in documents])
    return np.argsort(-np.array(scores), kind="stable").tolist()


@pytest.fixture(scope="module")
def port():
    with running(keys=["a-good-key"]) as port:
        yield port


@pytest.fixture
def cohere_client(port):
    import cohere  # a second to import

    return cohere.ClientV2("a-good-key", base_url=f"http://127.0.0.1:{port}")


def test_the_client_of_cohere(cohere_client):
    answer = cohere_client.rerank(model="rerank-v3.5", query=QUERIES[0], documents=DOCUMENTS)
    assert [hit.index for hit in answer.results] == order(DOCUMENTS)
    scores = [hit.relevance_score for hit in answer.results]
    assert scores == sorted(scores, reverse=True)
    assert 0 < scores[-1] < scores[0] < 1
    assert not any(hit.predicted for hit in answer.results)
    assert (answer.meta.calls, answer.meta.degraded) == (40, False)
    few = cohere_client.rerank(model="", query=QUERIES[0], documents=DOCUMENTS, top_n=3)
    assert [hit.index for hit in few.results] == order(DOCUMENTS)[:3]


def test_more_documents_than_calls(cohere_client):
    answer = cohere_client.rerank(model="any", query=QUERIES[0], documents=MANY)
    assert answer.meta.calls == 100
    assert sorted(hit.index for hit in answer.results) == list(range(1000))
    assert [hit.predicted for hit in answer.results] == [False] * 100 + [True] * 900
    alone = ck.rerank(QUERIES[0], MANY, 100, scorer=Words())
    best = [hit.index for hit in answer.results[:10]]
    assert best == [entry["corpus_id"] for entry in alone[:10]]
    more = {"request_options": {"additional_body_parameters": {"budget": 30}}}
    fewer = cohere_client.rerank(model="", query=QUERIES[1], documents=MANY, **more)
    assert fewer.meta.calls == 30


@pytest.mark.parametrize("api", ["cohere", "tei"])
def test_our_own_client_of_such_endpoints(port, api):
    options = {"probabilities": api == "cohere", "concurrency": 2, "api_key": "a-good-key"}
    scorer = ck.HttpScorer(f"http://127.0.0.1:{port}", api=api, **options)
    answer = ck.rerank(QUERIES[0], DOCUMENTS, scorer=scorer)
    assert [entry["corpus_id"] for entry in answer] == order(DOCUMENTS)
    scores = sorted(Words()([(QUERIES[0], text) for text in DOCUMENTS]), reverse=True)
    assert [entry["score"] for entry in answer] == pytest.approx(scores, abs=1e-3)


def test_the_shapes(shared_client):
    client = shared_client
    body = {"query": QUERIES[0], "documents": ["a page", {"title": "sort", "text": "the list"}]}
    jina = client.post("/v1/rerank", json=body | {"top_n": 1, "model": "jina-x"}).json()
    assert jina["results"][0]["document"] == {"text": "sort\nthe list"}
    assert (jina["model"], jina["object"]) == ("jina-x", "rerank")
    assert "document" not in client.post("/v2/rerank", json=body).json()["results"][0]
    infinity = client.post("/rerank", json=body | {"return_documents": True, "raw_scores": True})
    (first, _) = infinity.json()["results"]
    assert (first["index"], first["document"]) == (1, "sort\nthe list")
    assert first["relevance_score"] == pytest.approx(3.13)
    given = {"query": QUERIES[0], "texts": DOCUMENTS[:8], "raw_scores": True, "truncate": True}
    tei = client.post("/rerank", json=given | {"return_text": True, "budget": 3}).json()
    assert [entry["predicted"] for entry in tei] == [False] * 3 + [True] * 5
    for entry in tei[:3]:
        assert entry["text"] == DOCUMENTS[entry["index"]]
        assert entry["score"] == pytest.approx(Words()([(QUERIES[0], entry["text"])])[0])


def test_what_cannot_be_scored_is_last_and_nothing_at_all_is_an_error(client, words):
    def fault(pairs):
        if any(text == DOCUMENTS[6] for _, text in pairs):
            raise ValueError("this pair again")

    words.fault = fault
    body = {"query": QUERIES[0], "documents": DOCUMENTS}
    answer = client.post("/v2/rerank", json=body).json()
    assert answer["meta"]["degraded"]
    assert [hit["index"] for hit in answer["results"] if hit["predicted"]] == [6]

    def down(pairs):
        raise ScorerError("the endpoint is down")

    words.fault = down
    assert "the endpoint is down" in refusal(client.post("/v2/rerank", json=body), 503)
