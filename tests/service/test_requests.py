"""Bad requests, keys, other routes and the shapes of others: one JSON error each with a sentence."""

from __future__ import annotations

import json

import pytest
from fastapi.testclient import TestClient
from service_helpers import TEXTS, served

import crossknn as ck
from crossknn.service.app import create_app
from crossknn.service.engine import Engine

JSON = {"content-type": "application/json"}


def said(answer, status):
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["status"] == status
    return error["message"]


def test_without_a_k_a_small_index_is_returned_whole(client):
    for k in ({}, {"k": 10}, {"k": 1_000}):
        answer = client.post("/search", json={"query": "a", "index": "faq"} | k)
        assert (answer.status_code, len(answer.json()["results"][0]["hits"])) == (200, 9)


def test_a_filter_that_allows_no_item_is_answered_with_none(client):
    answer = client.post("/search", json={"query": "a", "filter": {"lang": "fr"}})
    assert (answer.status_code, answer.json()["results"][0]["hits"]) == (200, [])


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "either query or queries"),
        ({"query": "a", "queries": ["b"]}, "either query or queries"),
        ({"query": "a", "colour": 1}, "colour"),
        ({"query": 1}, "query"),
        ({"query": ""}, "query"),
        ({"query": "a" * 40_000}, "query"),
        ({"query": "a", "k": "5"}, "k"),
        ({"query": "a", "k": 0}, "k"),
        ({"query": "a", "budget": -1}, "budget"),
        ({"query": "a", "budget": True}, "budget"),
        ({"query": "a", "budget": {"seconds": 5}}, "budget"),
        ({"query": "a", "budget": 10**9}, "up to 10,000"),
        ({"query": "a", "method": "exact"}, "does not offer"),
        ({"query": "a", "method": "kriging(rounds=3)"}, "does not offer"),
        ({"query": "a", "method": "anncur"}, "anchor"),
        ({"query": "a", "method": "/etc/passwd"}, "does not offer"),
        ({"query": "a", "filter": {"colour": "red"}}, "colour"),
        ({"query": "a", "filter": {}}, "filter"),
        ({"query": "a", "filter": ["nobody"]}, "nobody"),
        ({"query": "a", "deadline_ms": -1}, "deadline_ms"),
        ({"query": "a", "deadline_ms": "soon"}, "deadline_ms"),
        ({"query": "a", "deadline_ms": 5}, "deadline_ms must be 20 or more"),
        ({"query": "a\ud800"}, "query"),
        ({"query": "a", "\ud800": 1}, "unicode"),
        ({"queries": ["a"] * 101}, "queries"),
        ({"queries": ["a"] * 100, "k": 101}, "10,100 hits, and an answer holds 10,000"),
        ([], "the body"),
        (None, "the body"),
    ],
)
def test_a_wrong_search_is_refused_in_a_sentence(client, body, told):
    answer = client.post("/search", content=json.dumps(body), headers=JSON)
    assert told in said(answer, 422)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"\xff", b"[" * 100_000, b'{"query": "a", "k": 1e99999}']
)
def test_what_is_no_json_is_refused(client, body):
    answer = client.post("/search", content=body, headers=JSON)
    assert answer.status_code in (400, 422)
    assert answer.json()["error"]["message"]


def test_a_million_documents(client):
    body = b'{"query": "a", "documents": [' + b'"b", ' * 1_000_000 + b'"c"]}'
    answer = client.post("/v2/rerank", content=body, headers=JSON)
    assert "more than 100,000 texts" in said(answer, 413)
    assert client.post("/search", json={"query": "a", "k": 1, "budget": 2}).status_code == 200


def test_other_errors(client):
    assert "8 MiB" in said(client.post("/search", content=b" " * (9 << 20), headers=JSON), 413)
    assert "no index" in said(client.post("/search", json={"query": "a", "index": "../x"}), 404)
    assert said(client.get("/nowhere"), 404)
    assert said(client.get("/search"), 405)
    assert "no item" in said(client.get("/items/nobody"), 404)
    assert said(client.post("/search", content=b"{}", headers={"content-type": "text/plain"}), 415)


def test_keys(indexes, words):
    with served(indexes, words, keys=["first-key", "second-key"]) as client:
        body = {"query": "a", "k": 1, "budget": 2}
        for headers in ({}, {"Authorization": "Bearer third-key"}, {"Authorization": "first-key"}):
            answer = client.post("/search", json=body, headers=headers)
            assert "API key" in said(answer, 401)
            assert answer.headers["www-authenticate"] == "Bearer"
        assert not words.batches
        good = {"Authorization": "Bearer second-key"}
        assert client.post("/search", json=body, headers=good).status_code == 200
        assert said(client.get("/metrics"), 401)
        for path in ("/healthz", "/readyz", "/", "/openapi.json"):
            assert client.get(path).status_code == 200
        assert "access-control-allow-origin" not in client.get("/", headers={"Origin": "x"}).headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8000", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("evil.example", 400),
        ("[", 400),
    ],
)
def test_a_local_service_answers_under_its_own_names(indexes, words, host, status):
    engine = Engine(indexes, ck.CallableScorer(words, "words"))
    with TestClient(create_app(engine, local=True)) as client:
        answer = client.get("/indexes", headers={"Host": host})
    assert answer.status_code == status


@pytest.mark.parametrize(
    ("scorer", "name"),
    [
        (lambda: ck.CrossEncoder(), "crossknn-mini-cross-encoder"),
        (lambda: ck.HttpScorer("http://127.0.0.1:9/a/rerank"), "an endpoint at 127.0.0.1"),
        (
            lambda: ck.HttpScorer("http://127.0.0.1:9/rerank", model="mine"),
            "an endpoint at 127.0.0.1",
        ),
        (lambda: ck.CallableScorer(len, "/home/me/models/mine"), "mine"),
        (lambda: ck.CallableScorer(len, "http://[ is no address"), "http://[ is no address"),
        (lambda: ck.CallableScorer(len, "org/model // [2]"), "org/model // [2]"),
    ],
)
def test_the_page_names_the_scorer_without_its_path(indexes, scorer, name):
    engine = Engine(indexes, scorer())
    try:
        assert engine.scorer_name == name
    finally:
        engine.close()


def test_items_and_indexes(client):
    known = client.get("/indexes").json()
    assert known["indexes"] == [{"name": "docs", "items": 40}, {"name": "faq", "items": 9}]
    assert "exact" not in known["methods"]
    assert known["menu"] == ["auto", "rerank", "retrieve"]
    assert known["scorer"] == "words"
    assert [*known["examples"]] == ["docs", "faq"]
    found = client.get("/items/zip file").json()
    assert found == {
        "id": "zip file",
        "title": "",
        "text": TEXTS[0]["text"].strip(),
        "extra": {"lang": "de", "year": 2000},
    }
