"""Somebody sends a wrong request: the answer names the field and what it must be, in plain words."""

from __future__ import annotations

import json

import pytest
from service_helpers import refusal, served

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def client():
    with served() as client:
        yield client


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"budget": "many"}, 'budget must be a whole number or an object, not "many"'),
        ({"budget": 0}, "budget must be 1 or more"),
        ({"budget": {"per_query": "x"}}, 'budget.per_query must be a whole number, not "x"'),
        ({"budget": {"seconds": 5}}, "budget.seconds is not known here"),
        ({"budget": {"target_recall": 2}}, "budget.target_recall must be 1 or less"),
        ({"filter": 5}, "filter must be an object or a list, not 5"),
        ({"filter": [""]}, "filter.0 is empty"),
        ({"filter": ["a", 3]}, "filter.1 must be a text, not 3"),
        ({"k": "5"}, 'k must be a whole number, not "5"'),
        ({"k": 0}, "k must be 1 or more"),
        ({"k": 10**6}, "k must be 1,000 or less"),
        ({"explain": "yes"}, 'explain must be true or false, not "yes"'),
        ({"deadline_ms": 5}, "deadline_ms must be 20 or more"),
        ({"deadline_ms": 1e300}, "deadline_ms must be 3,600,000 or less"),
        ({"colour": 1}, "colour is not known here"),
        ({"": 1}, '"" is not known here'),
        ({"a\n\x1b[31m": 1}, '"a\\n\\u001b[31m" is not known here'),
        ({"x" * 9000: 1}, f'"{"x" * 80}" is not known here'),
        ({"queries": ["b"]}, "the body: give either query or queries"),
    ],
)
def test_search(client, given, told):
    """A wrong field of a search."""
    answer = client.post("/search", json={"query": "a"} | given)
    assert refusal(answer, 422) == told
    assert told.startswith(answer.json()["error"]["field"])


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"budget": 10**9}, "up to 10,000"),
        ({"method": "exact"}, "does not offer"),
        ({"method": "kriging(rank=3)"}, "does not offer"),
        ({"method": "anncur"}, "anchor"),
        ({"filter": {"colour": "red"}}, "colour"),
        ({"filter": {}}, "filter"),
        ({"filter": ["nobody"]}, "nobody"),
        ({"query": "a" * 40_000}, "query"),
        ({"query": "a\ud800"}, "query"),
        ({"\ud800": 1}, "unicode"),
        ({"query": None, "queries": ["a"] * 101}, "queries"),
        ({"query": None, "queries": ["a"] * 100, "k": 101}, "10,100 hits, and an answer holds"),
    ],
)
def test_more_than_the_service_gives(client, given, told):
    """A search for too much, or by what is not there."""
    body = json.dumps({"query": "a"} | given)
    assert told in refusal(client.post("/search", content=body, headers=JSON), 422)


VECTORS = [{"text": name, "embedding": [0.5] * d} for name, d in (("a", 2), ("b", 3))]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"documents": [5]}, "documents.0 must be a text or an object, not 5"),
        ({"documents": ["a", {"title": "b"}]}, "documents.1.text is missing"),
        ({"documents": [{"text": 5}]}, "documents.0.text must be a text, not 5"),
        (
            {"documents": [{"text": "a", "embedding": ["b"]}]},
            'documents.0.embedding.0 must be a number, not "b"',
        ),
        ({"documents": []}, "documents is empty"),
        ({"texts": ["a"] * 1001}, "texts may have at most 1,000 entries"),
        ({"texts": ["a"], "truncation_direction": "up"}, "must be 'Right' or 'right'"),
        ({}, "the body: give either documents or texts"),
        ({"documents": ["a"], "texts": ["a"]}, "either documents or texts"),
        ({"documents": [VECTORS[0], "b"]}, "document 1 has no 'embedding'"),
        ({"documents": [{"text": "a", "embedding": []}]}, "embedding"),
        ({"documents": [{"text": "a", "embedding": [1e300]}]}, "infinity"),
        ({"documents": VECTORS}, "embedding"),
        ({"documents": ["a"], "relevant_spans": {}}, "relevant_spans"),
        ({"documents": ["a"], "budget": 10**9}, "up to 10,000"),
        ({"documents": ["a"], "top_n": 0}, "top_n"),
        ({"documents": ["a"], "query": ""}, "query"),
    ],
)
def test_rerank(client, given, told):
    """A wrong field of documents to be ordered."""
    for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
        assert told in refusal(client.post(path, json={"query": "a"} | given), 422)


@pytest.mark.parametrize(
    ("body", "headers", "status", "told"),
    [
        (b"", JSON, 422, "the body is missing"),
        (b"[]", JSON, 422, "the body must be an object, not []"),
        (b'{"query": ', JSON, 400, "the body is not JSON: Expecting value"),
        (b'{"query": "a", "k": NaN}', JSON, 422, "k must be a whole number, not NaN"),
        (b'{"query": "a", "query": "b"}', JSON, 422, "the body has 'query' twice in one object"),
        (b'{"query": "a", "filter": {"not": {"x": 1}, "not": {"y": 1}}}', JSON, 422, "'not' twice"),
        (b'{"query": "a"}', {"Content-Type": "text/plain"}, 415, "application/json"),
        (b" " * (9 << 20), JSON, 413, "8 MiB"),
        (b'{"query": "a", "index": "../x"}', JSON, 404, "no index"),
    ],
)
def test_what_is_no_request(client, body, headers, status, told):
    """A body that is empty, cut, too long, of another index, or sent as something else."""
    assert told in refusal(client.post("/search", content=body, headers=headers), status)


def test_no_message_has_words_of_the_library_that_checks(client):
    """No message speaks of models, unions or constrained integers."""
    wrong = [None, "x", -1, 2.5, True, [], [None], {}, {"x": None}, [[]], {"not": []}]
    fields = "query", "queries", "index", "k", "budget", "method", "filter", "explain", "stream"
    for field in (*fields, "deadline_ms"):
        for value in wrong:
            body = json.dumps({"query": "a", field: value})
            answer = client.post("/search", content=body, headers=JSON)
            if answer.status_code >= 400:
                said = answer.json()["error"]["message"]
                for word in ("Body", "constrained", "Input should", "dict[", "model", "Extra"):
                    assert word not in said, said


def test_rounds_are_not_kept_back_by_proxies(client):
    """Server-sent events say that they are neither to be cached nor buffered (nginx)."""
    for body, headers in (({"stream": True}, {}), ({}, {"Accept": "text/event-stream"})):
        answer = client.post("/search", json={"query": "a"} | body, headers=headers)
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-cache"
        assert answer.headers["x-accel-buffering"] == "no"
