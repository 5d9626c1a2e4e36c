"""Keys, items, other routes and the command; wrong bodies are in `reports/test_service_bodies.py`."""

import signal
import urllib.error

import pytest
from fastapi.testclient import TestClient
from service_helpers import QUERIES, TEXTS, ask, command, plain, refusal, served, url_of

import crossknn as ck
from crossknn.service.app import create_app
from crossknn.service.engine import Engine


def test_without_a_k_a_small_index_is_returned_whole(shared_client):
    for k in ({}, {"k": 10}, {"k": 1_000}):
        answer = shared_client.post("/search", json={"query": "a", "index": "faq"} | k)
        assert (answer.status_code, len(answer.json()["results"][0]["hits"])) == (200, 9)


def test_a_filter_that_allows_no_item_is_answered_with_none(shared_client):
    answer = shared_client.post("/search", json={"query": "a", "filter": {"lang": "fr"}})
    assert (answer.status_code, answer.json()["results"][0]["hits"]) == (200, [])


def test_keys(indexes, words):
    with served(indexes, words, keys=["first-key", "second-key"]) as client:
        body = {"query": "a", "k": 1, "budget": 2}
        for headers in ({}, {"Authorization": "Bearer third-key"}, {"Authorization": "first-key"}):
            answer = client.post("/search", json=body, headers=headers)
            assert "API key" in refusal(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
        assert not words.batches
        good = {"Authorization": "Bearer second-key"}
        assert client.post("/search", json=body, headers=good).status_code == 200
        assert refusal(client.get("/metrics"), 401)
        for path in ("/healthz", "/readyz", "/", "/openapi.json"):
            assert client.get(path).status_code == 200
        assert "access-control-allow-origin" not in client.get("/", headers={"Origin": "x"}).headers


def test_a_local_service_answers_under_its_own_names(indexes, words):
    hosts = {"localhost:8000": 200, "127.0.0.1": 200, "[::1]:80": 200, "evil.example": 400}
    with TestClient(
        create_app(Engine(indexes, ck.CallableScorer(words, "words")), local=True)
    ) as client:
        for host, status in (hosts | {"[": 400}).items():
            assert client.get("/indexes", headers={"Host": host}).status_code == status


@pytest.mark.parametrize(
    ("scorer", "name"),
    [
        (lambda: ck.HttpScorer("http://127.0.0.1:9/a/rerank"), "an endpoint at 127.0.0.1"),
        (lambda: ck.CallableScorer(len, "/home/me/models/mine"), "mine"),
        (lambda: ck.CallableScorer(len, "org/model // [2]"), "org/model // [2]"),
    ],
)
def test_the_page_names_the_scorer_without_its_path(indexes, scorer, name):
    engine = Engine(indexes, scorer())
    assert engine.described()["scorer"] == name
    engine.close()


def test_items_and_indexes(shared_client):
    known = shared_client.get("/indexes").json()
    example = {"example": "how to zip a file fast"}
    assert known["indexes"] == [
        {"name": "docs", "items": 40} | example,
        {"name": "faq", "items": 9} | example,
    ]
    assert "exact" not in known["methods"]
    assert (known["menu"], known["scorer"]) == (["auto", "rerank", "retrieve"], "words")
    assert shared_client.get("/items/zip file").json() == {
        "id": "zip file",
        "title": "",
        "text": TEXTS[0]["text"].strip(),
        "extra": {"lang": "de", "year": 2000},
    }
    for path, status in (("/nowhere", 404), ("/search", 405), ("/items/nobody", 404)):
        assert refusal(shared_client.get(path), status)


@pytest.mark.slow
def test_the_command_serves_until_it_is_told_to_stop(indexes, tmp_path):
    (tmp_path / "keys.txt").write_text("a-good-key\n")
    options = ["docs", "faq", "--keys", "keys.txt", "--port", "0", "--deadline", "5s"]
    with command(tmp_path, *options) as process:
        url = url_of(process)
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(f"{url}/search", {"query": "a"})
        found = ask(f"{url}/search", {"query": QUERIES[0], "k": 3, "budget": 9}, "a-good-key")
        assert [hit["id"] for hit in found["results"][0]["hits"]] == plain(
            indexes["docs"], ck.CrossEncoder(), QUERIES[0], k=3, budget=9
        )[0]
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=10)
    assert "Traceback" not in said
    assert len(ck.ItemIndex.load(tmp_path / "docs").scores) == 9  # kept, for whoever comes next
