"""What takes long besides scoring: a deadline and a client that hangs up end it, too."""

import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest
from service_helpers import TEXTS, Words, ask, connect, counted, running, send, served, until

import crossknn as ck
from crossknn.errors import ScorerError

QUERIES = [
    f"{verb} the {noun} {n}"
    for n in range(25)
    for verb, noun in (("zip", "file"), ("sort", "list"), ("draw", "page"), ("lock", "folder"))
]
BATCH = {"queries": QUERIES, "k": 5, "budget": 10}


class Slow:
    """An encoder that takes 0.03 s for a query, so 3 s for all of them, and counts the queries."""

    def __init__(self, each=0.03):
        self.each, self.count = each, 0

    def __call__(self, texts):
        self.count += len(texts)
        time.sleep(self.each * len(texts))
        rows = [[len(t), *map(t.count, "abcdeilnorst")] for t in texts]
        return np.array(rows, np.float32)


def slow_index(encode):
    vectors = Slow(0)([item["text"] for item in TEXTS])
    return ck.ItemIndex.build(TEXTS, vectors=vectors, query_vectors=encode)


@pytest.fixture(scope="module")
def quick():
    with served({"docs": ck.ItemIndex.build(TEXTS, lsa=4)}, Words()) as client:
        yield client


@contextmanager
def at_most(seconds):
    began = time.monotonic()
    yield
    assert time.monotonic() - began < seconds


@pytest.mark.parametrize("method", ["auto", "rerank", "retrieve", "axn", "explained"])
def test_a_batch_whose_queries_take_long_to_encode(method):
    """With half a second for 100 queries it took 3 s, and again as long for a degraded answer; so
    did the first stage's ranks, which `explain` asks for."""
    encode = Slow()
    what = {"explain": True} if method == "explained" else {"method": method}
    with served({"docs": slow_index(encode)}, Words()) as client, at_most(1.5):
        answer = client.post("/search", json=BATCH | what | {"deadline_ms": 500}).json()
    assert (answer["degraded"], answer["stopped_by"]) == (True, "deadline")
    assert 0 < encode.count < len(QUERIES)
    answered = [bool(one["hits"]) for one in answer["results"]]
    late = ["the deadline passed" in (one["error"] or "") for one in answer["results"]]
    assert any(answered)
    assert all(hits or error for hits, error in zip(answered, late, strict=True))


def test_a_dead_scorer_does_not_repeat_the_first_stage():
    words, encode = Words(), Slow(0)

    def down(pairs):
        raise ScorerError("no power")

    words.fault = down
    with served({"docs": slow_index(encode)}, words) as client:
        answer = client.post("/search", json=BATCH).json()
    assert encode.count == len(QUERIES)
    assert (answer["degraded"], answer["stopped_by"]) == (True, "scorer")
    assert all(len(one["hits"]) == 5 and one["error"] == "no power" for one in answer["results"])


def test_a_search_ends_when_its_client_hangs_up_during_the_first_stage():
    with running({"docs": slow_index(Slow(0.05))}, Words()) as port:
        with connect(port) as connection:
            send(connection, BATCH)
            until(lambda: counted(port, "crossknn_live") == 1)
            time.sleep(0.2)
        with at_most(1.5):
            until(lambda: counted(port, "crossknn_live") == 0)
        assert ask(f"http://127.0.0.1:{port}/healthz")


def test_a_thousand_long_documents(quick):
    """Reading their words took longer than the deadline, of which it now takes a quarter at most."""
    document = " ".join(f"word{n}" for n in range(1000))
    documents = [f"{n} {document}"[:7000] for n in range(1000)]
    body = {"query": "word7", "documents": documents, "deadline_ms": 1000, "budget": 10}
    with at_most(1.8):
        assert len(quick.post("/rerank", json=body).json()["results"]) == 1000


def test_the_text_of_all_queries_has_a_limit(quick):
    long = "word " * 6000
    answer = quick.post("/search", json={"queries": [long] * 100, "k": 1})
    assert answer.status_code == 413
    assert "3,000,000 characters" in answer.json()["error"]["message"]
    assert quick.post("/search", json={"query": long, "k": 1, "budget": 1}).status_code == 200


def test_the_library_looks_at_the_clock_too():
    searcher, cancel = ck.Searcher(slow_index(Slow()), Words()), threading.Event()
    with at_most(2.2):  # 3 s for all queries
        found = searcher.search(QUERIES, k=3, budget=ck.Budget(per_query=5, deadline=1.0))
    assert (found.stopped_by, found.n_scored > 0, any(found.errors)) == ("deadline", True, True)
    threading.Timer(0.3, cancel.set).start()
    with at_most(1.5):
        assert searcher.search(QUERIES, k=3, budget=5, cancel=cancel).stopped_by == "cancelled"


@pytest.mark.parametrize("method", ["auto", "rerank", "retrieve", "axn", "tour"])
@pytest.mark.parametrize("k", [5, 30])
def test_with_time_enough_the_answers_are_the_same(method, k):
    searcher, rounds = ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=4), Words(), method), []
    together = searcher.search(QUERIES[:30], k=k, budget=12, trace=True)
    limits = ck.Budget(per_query=12, deadline=600)
    each = lambda number, picks: rounds.append((number, sum(map(len, picks))))  # noqa: E731
    divided = searcher.search(QUERIES[:30], k=k, budget=limits, trace=True, on_round=each)
    assert [[h.id for h in hits] for hits in divided] == [[h.id for h in hits] for hits in together]
    assert divided.n_scored == together.n_scored == sum(count for _, count in rounds)
    assert [number for number, _ in rounds] == list(range(1, len(rounds) + 1))
    assert not any(divided.errors)
    for mine, theirs in zip(divided.trace, together.trace, strict=True):
        assert [(h.id, h.round) for h in mine] == [(h.id, h.round) for h in theirs]


def test_a_filter_of_many_values_ends_in_time():
    """900 lists of 1,000 years took 5 s: the values of a filter are bounded together."""
    items = [text | {"id": str(n), "year": n} for n, text in enumerate(TEXTS * 50)]
    with served({"docs": ck.ItemIndex.build(items)}, Words()) as client:
        body = {"query": "lock a page", "k": 1, "budget": 2, "deadline_ms": 1000}
        many = {"any": [{"year": [*range(1000)]}] * 900}
        answer = client.post("/search", json=body | {"filter": many})
        assert answer.status_code == 422
        assert "100,000 values" in answer.json()["error"]["message"]
        most = {"any": [{"year": [*range(10_000)]}] * 10}
        with at_most(1.5):
            assert client.post("/search", json=body | {"filter": most}).status_code == 200


def test_a_body_that_takes_longer_than_the_deadline(quick):
    """It was told that the service had too many requests, though it had no other."""
    documents = [{"text": "a", "embedding": [0.5] * 1000}] * 900
    body = {"query": "a", "documents": documents, "deadline_ms": 20}
    answer = quick.post("/rerank", json=body)
    assert answer.status_code == 429
    assert "of the 0.02 s that the request may take" in answer.json()["error"]["message"]
