"""What takes long besides scoring: a deadline and a client that hangs up end it, too."""

from __future__ import annotations

import json
import socket
import threading
import time

import numpy as np
import pytest
from service_helpers import TEXTS, Words, ask, running, served

import crossknn as ck
from crossknn.errors import ScorerError

QUERIES = [
    f"{verb} the {noun} {n}"
    for n in range(25)
    for verb, noun in (("zip", "file"), ("sort", "list"), ("draw", "page"), ("lock", "folder"))
]
EACH = 0.03  # seconds in which a query is encoded: 3 s for all of them


class Slow:
    """An encoder that takes its time, and counts the queries."""

    def __init__(self, each=EACH):
        self.each, self.count = each, 0

    def __call__(self, texts):
        self.count += len(texts)
        time.sleep(self.each * len(texts))
        rows = [[len(t), *map(t.count, "abcdeilnorst")] for t in texts]
        return np.array(rows, np.float32)


def slow_index(encode):
    vectors = Slow(0)([item["text"] for item in TEXTS])
    return ck.ItemIndex.build(TEXTS, vectors=vectors, query_vectors=encode)


@pytest.mark.parametrize("method", ["auto", "rerank", "retrieve", "axn"])
def test_a_batch_whose_queries_take_long_to_encode(method):
    """With half a second for 100 queries it took 3 s, and again as long for a degraded answer."""
    encode = Slow()
    with served({"docs": slow_index(encode)}, Words()) as client:
        body = {"queries": QUERIES, "k": 5, "budget": 10, "method": method, "deadline_ms": 500}
        began = time.monotonic()
        answer = client.post("/search", json=body)
        took = time.monotonic() - began
    assert answer.status_code == 200
    found = answer.json()
    assert took < 1.5  # 6 s before
    assert (found["degraded"], found["stopped_by"]) == (True, "deadline")
    assert 0 < encode.count < len(QUERIES)
    answered = [bool(one["hits"]) for one in found["results"]]
    late = ["the time was up" in (one["error"] or "") for one in found["results"]]
    assert any(answered)
    assert all(hits or said for hits, said in zip(answered, late, strict=True))


def test_explanations_end_in_time_too():
    """The first stage's ranks, which `explain` asks for, were looked up after the deadline."""
    with served({"docs": slow_index(Slow())}, Words()) as client:
        body = {"queries": QUERIES, "k": 5, "budget": 10, "explain": True, "deadline_ms": 500}
        began = time.monotonic()
        assert client.post("/search", json=body).status_code == 200
        assert time.monotonic() - began < 1.5


def test_a_dead_scorer_does_not_repeat_the_first_stage():
    """Queries were encoded a second time for the degraded answer."""
    words, encode = Words(), Slow(0)

    def down(pairs):
        raise ScorerError("no power")

    words.fault = down
    with served({"docs": slow_index(encode)}, words) as client:
        body = {"queries": QUERIES, "k": 5, "budget": 10}
        found = client.post("/search", json=body).json()
    assert encode.count == len(QUERIES)
    assert (found["degraded"], found["stopped_by"]) == (True, "scorer")
    assert all(len(one["hits"]) == 5 and one["error"] == "no power" for one in found["results"])


def test_a_search_ends_when_its_client_hangs_up_during_the_first_stage():
    """It went on for all queries, and answered nobody."""
    with running({"docs": slow_index(Slow(0.05))}, Words()) as port:
        url = f"http://127.0.0.1:{port}"
        data = json.dumps({"queries": QUERIES, "k": 5, "budget": 10}).encode()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            head = f"POST /search HTTP/1.1\r\nHost: here\r\nContent-Length: {len(data)}\r\n"
            connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + data)
            while not live(port):
                time.sleep(0.01)
            time.sleep(0.2)
        gone = time.monotonic()
        while live(port):
            time.sleep(0.01)
        assert time.monotonic() - gone < 1.5  # 5 s before
        assert ask(f"{url}/healthz")


def live(port):
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        parts = []
        while part := connection.recv(65536):
            parts.append(part)
    return b"crossknn_live 1.0" in b"".join(parts)


def test_a_thousand_long_documents():
    """Reading their words took longer than the deadline, of which it now takes a quarter at most."""
    document = " ".join(f"word{n}" for n in range(1000))
    documents = [f"{n} {document}"[:7000] for n in range(1000)]
    with served({"docs": ck.ItemIndex.build(TEXTS, lsa=4)}, Words()) as client:
        body = {"query": "word7", "documents": documents, "deadline_ms": 1000, "budget": 10}
        began = time.monotonic()
        answer = client.post("/rerank", json=body)
        took = time.monotonic() - began
    assert answer.status_code == 200
    assert len(answer.json()["results"]) == 1000
    assert took < 1.8


def test_the_text_of_all_queries_has_a_limit():
    """100 queries of the greatest length are refused; each alone is not."""
    with served({"docs": ck.ItemIndex.build(TEXTS, lsa=4)}, Words()) as client:
        long = "word " * 6000
        answer = client.post("/search", json={"queries": [long] * 100, "k": 1})
        assert answer.status_code == 413
        assert "3,000,000 characters" in answer.json()["error"]["message"]
        assert client.post("/search", json={"query": long, "k": 1, "budget": 1}).status_code == 200


def test_the_library_looks_at_the_clock_too():
    """`Searcher.search` of 100 queries with a deadline, and one that is cancelled."""
    searcher = ck.Searcher(slow_index(Slow()), Words())
    began = time.monotonic()
    found = searcher.search(QUERIES, k=3, budget=ck.Budget(per_query=5, deadline=1.0))
    assert time.monotonic() - began < 2.2  # 3 s for all queries
    assert (found.stopped_by, found.n_scored > 0) == ("deadline", True)
    assert any(found.errors)
    cancel = threading.Event()
    threading.Timer(0.3, cancel.set).start()
    began = time.monotonic()
    assert searcher.search(QUERIES, k=3, budget=5, cancel=cancel).stopped_by == "cancelled"
    assert time.monotonic() - began < 1.5


@pytest.mark.parametrize("method", ["auto", "rerank", "retrieve", "axn", "tour"])
@pytest.mark.parametrize("k", [5, 30])
def test_with_time_enough_the_answers_are_the_same(method, k):
    """Queries that are searched a few at a time find what they find all together."""
    searcher, rounds = ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=4), Words(), method), []
    together = searcher.search(QUERIES[:30], k=k, budget=12, trace=True)
    divided = searcher.search(
        QUERIES[:30],
        k=k,
        budget=ck.Budget(per_query=12, deadline=600),
        trace=True,
        on_round=lambda number, picks: rounds.append((number, sum(map(len, picks)))),
    )
    assert [[h.id for h in hits] for hits in divided] == [[h.id for h in hits] for hits in together]
    assert divided.n_scored == together.n_scored == sum(count for _, count in rounds)
    assert [number for number, _ in rounds] == list(range(1, len(rounds) + 1))
    assert not any(divided.errors)
    for mine, theirs in zip(divided.trace, together.trace, strict=True):
        assert [(h.id, h.round) for h in mine] == [(h.id, h.round) for h in theirs]


def test_a_filter_of_many_values_ends_in_time():
    """900 lists of 1,000 years took 5 s: the values of a filter are bounded together."""
    many = {"any": [{"year": [*range(1000)]}] * 900}
    most = {"any": [{"year": [*range(10_000)]}] * 10}
    items = [text | {"year": n} for n, text in enumerate(TEXTS * 50)]
    items = [item | {"id": str(n)} for n, item in enumerate(items)]
    with served({"docs": ck.ItemIndex.build(items)}, Words()) as client:
        body = {"query": "lock a page", "k": 1, "budget": 2, "deadline_ms": 1000}
        answer = client.post("/search", json=body | {"filter": many})
        assert answer.status_code == 422
        assert "900,000 values" in answer.json()["error"]["message"]
        began = time.monotonic()
        assert client.post("/search", json=body | {"filter": most}).status_code == 200
        assert time.monotonic() - began < 1.5


def test_a_body_that_takes_longer_than_the_deadline():
    """It was told that the service had too many requests, though it had no other."""
    with served({"docs": ck.ItemIndex.build(TEXTS, lsa=4)}, Words()) as client:
        documents = [{"text": "a", "embedding": [0.5] * 1000}] * 900
        body = {"query": "a", "documents": documents, "deadline_ms": 20}
        answer = client.post("/rerank", json=body)
        assert answer.status_code == 429
        assert "of the 0.02 s that the request may take" in answer.json()["error"]["message"]
