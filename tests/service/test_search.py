"""POST /search: what it finds, how requests share batches, and what happens when pairs fail."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient
from service_helpers import (
    QUERIES,
    TEXTS,
    Words,
    connect,
    counted,
    ids,
    plain,
    running,
    send,
    served,
    until,
)
from starlette.exceptions import HTTPException

import crossknn as ck
from crossknn.errors import ScorerError
from crossknn.scorers.streaming import NothingScoredError
from crossknn.service import engine
from crossknn.service.app import create_app
from crossknn.service.shapes import SearchBody


@pytest.mark.parametrize("method", ["auto", "rerank", "retrieve", "axn"])
def test_items_are_those_of_the_searcher(client, indexes, method):
    body = {"query": QUERIES, "k": 5, "budget": 12, "method": method, "index": "docs"}
    answer = client.post("/search", json=body)
    assert answer.status_code == 200
    assert not answer.json()["degraded"]
    assert ids(answer) == plain(indexes["docs"], Words(), QUERIES, k=5, budget=12, method=method)


def test_two_scorers_one_after_the_other(indexes):
    small = ck.CallableScorer(
        lambda pairs: [len({*q.split()} & {*t.split()}) for q, t in pairs], "s"
    )
    large = ck.CallableScorer(words := Words(), "l")
    served_by = engine.Engine(indexes, [small, large], budget=[20, 6])
    with TestClient(create_app(served_by, keys=())) as client:
        body = {"query": QUERIES[0], "k": 8, "index": "docs"}
        answer = client.post("/search", json=body).json()
        assert (answer["n_calls"], answer["cheaper"][0]["n_calls"]) == (6, 20)
        assert [hit["rung"] for hit in answer["results"][0]["hits"][:6]] == [2] * 6
        assert sum(map(len, words.batches)) == 6
        fewer = client.post("/search", json=body | {"budget": [10, 4], "explain": True}).json()
        assert (fewer["budget"], fewer["cheaper"][0]["budget"]) == (4, 10)
        wrong = client.post("/search", json=body | {"budget": [10, 4, 3]})
        assert wrong.status_code == 422
        assert "3 budgets for 2 scorers" in wrong.text
        assert client.get("/indexes").json()["budget"] == 6
        given = {"query": "sort the list", "documents": [t["text"] for t in TEXTS], "top_n": 3}
        assert client.post("/v1/rerank", json=given).json()["meta"]["calls"] == 6


def test_a_target_recall_needs_anchors_and_nothing_else(indexes):
    docs, scorer = indexes["docs"], ck.CallableScorer(Words(), "words")
    body = {"query": QUERIES[0], "k": 2, "budget": 15, "target_recall": 0.1}
    with served({"docs": docs}, Words()) as client:
        refused = client.post("/search", json=body)
        assert refused.status_code == 422
        assert "on three anchor queries or more" in refused.text
        ck.collect_anchors(docs, scorer, [f"{text['text']}?" for text in TEXTS[:6]])
        answer = client.post("/search", json=body).json()
    assert answer["stopped_by"] == "target"
    assert answer["n_scored"] < 15


def test_filters_budgets_and_explanations(client, indexes):
    body = {
        "query": QUERIES[0],
        "k": 3,
        "budget": 9,
        "filter": {"lang": "en", "year": {"gte": 2010}},
        "explain": True,
    }
    answer = client.post("/search", json=body)
    found = answer.json()["results"][0]
    assert all(hit["extra"]["lang"] == "en" for hit in found["hits"])
    assert len(found["trace"]) == 9
    first = plain(
        indexes["docs"], Words(), QUERIES[0], k=15, method="retrieve", filter=body["filter"]
    )
    assert [first[0].index(hit["id"]) + 1 for hit in found["hits"]] == [
        hit["first_rank"] for hit in found["hits"]
    ]
    both = [TEXTS[3]["id"], TEXTS[8]["id"]]
    named = client.post("/search", json={"query": "x", "k": 2, "filter": both})
    assert sorted(ids(named)[0]) == sorted(both)


def test_requests_share_batches_and_find_the_same(client, words, indexes):
    words.gate.clear()  # so that all of them wait at once
    bodies = [{"query": query, "k": 5, "budget": 12} for query in QUERIES]
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(client.post, "/search", json=body) for body in bodies]
        until(lambda: len(client.engine.shared._calls) == len(QUERIES))
        words.gate.set()
        found = [answer.result() for answer in answers]
    assert [ids(answer)[0] for answer in found] == plain(
        indexes["docs"], Words(), QUERIES, k=5, budget=12
    )
    together = [len({query for query, _ in batch}) for batch in words.batches]
    assert max(together) > 1
    apart = Words()
    for query in QUERIES:
        plain(indexes["docs"], apart, query, k=5, budget=12)
    assert len(words.batches) < len(apart.batches)
    assert 'crossknn_batches_total{of="several"}' in client.get("/metrics").text


def test_without_its_store_the_service_goes_on(tmp_path, words, caplog):
    ck.ItemIndex.build(TEXTS, lsa=4).save(tmp_path / "docs")
    index = ck.ItemIndex.load(tmp_path / "docs")
    body = {"query": QUERIES[0], "k": 5, "budget": 12}
    with served({"docs": index}, words) as client:
        first = client.post("/search", json=body).json()
        index.scores.close()
        path = index.scores.path
        path.write_bytes(b"x" * path.stat().st_size)
        answer = client.post("/search", json=body)
    assert answer.status_code == 200
    assert (answer.json()["degraded"], answer.json()["n_calls"]) == (False, 12)
    assert answer.json()["results"] == first["results"]
    assert caplog.text.count("are damaged") == 1


def test_a_pair_that_fails_is_left_out(client, words, indexes):
    bad = TEXTS[6]["text"]

    def fault(pairs):
        if any(text == bad for _, text in pairs):
            raise ValueError("this pair again")

    words.fault = fault
    answer = client.post("/search", json={"query": QUERIES[0], "k": 40, "budget": 40})
    found = answer.json()
    assert (found["degraded"], found["n_failed"], len(found["results"][0]["hits"])) == (True, 1, 39)
    assert "crossknn_degraded_total 1.0" in client.get("/metrics").text


def test_only_the_query_at_fault_hears_of_it(client, words, indexes):
    def fault(pairs):
        if any(query == "poison" for query, _ in pairs):
            raise NothingScoredError("poison cannot be scored")

    words.fault = fault
    words.gate.clear()
    with ThreadPoolExecutor() as pool:
        queries = [QUERIES[0], "poison", QUERIES[1]]
        bodies = [{"query": query, "k": 5, "budget": 12} for query in queries]
        answers = [pool.submit(client.post, "/search", json=body) for body in bodies]
        until(lambda: len(client.engine.shared._calls) == 3)
        words.gate.set()
        good, bad, other = [answer.result() for answer in answers]
    assert [good.json()["degraded"], other.json()["degraded"]] == [False, False]
    assert ids(good) + ids(other) == plain(indexes["docs"], Words(), QUERIES[:2], k=5, budget=12)
    assert "poison cannot be scored" in bad.json()["error"]


def test_a_dead_scorer_leaves_the_first_stage(client, words, indexes, caplog):
    def fault(pairs):
        raise ScorerError("the endpoint is down")

    words.fault = fault
    body = {"query": QUERIES[0], "k": 5, "budget": 12}
    answer = client.post("/search", json=body)
    assert answer.status_code == 200
    assert answer.json()["degraded"]
    assert answer.json()["stopped_by"] == "scorer"
    assert "the endpoint is down" in answer.json()["error"]
    assert ids(answer) == plain(indexes["docs"], Words(), QUERIES[0], k=5, method="retrieve")
    assert client.get("/readyz").json()["scorer"] == "failing"  # the log says why
    assert "the scorer fails: the endpoint is down" in caplog.text
    words.fault = lambda pairs: None
    assert not client.post("/search", json=body).json()["degraded"]
    assert client.get("/readyz").json()["scorer"] == "ok"


def test_deadlines_count_from_the_arrival(indexes, words):
    def slow(pairs):
        time.sleep(0.05)

    words.fault = slow
    with served(indexes, words) as client:
        client.post("/search", json={"query": "warm", "k": 1, "budget": 1})
        began = time.monotonic()
        answer = client.post(
            "/search", json={"query": QUERIES[0], "k": 5, "budget": 40, "deadline_ms": 500}
        )
        assert time.monotonic() - began < 0.8
    assert answer.json()["stopped_by"] == "deadline"
    assert answer.json()["degraded"]
    assert 0 < answer.json()["n_scored"] < 40
    assert ids(answer)[0]


def test_a_full_service_says_when_to_come_again(indexes, words, monkeypatch):
    monkeypatch.setattr(engine, "MAX_REQUESTS", 1)
    with served(indexes, words) as client, ThreadPoolExecutor() as pool:
        words.gate.clear()
        first = pool.submit(client.post, "/search", json={"query": "x", "k": 1, "budget": 2})
        until(lambda: client.engine._live)
        refused = client.post("/search", json={"query": "y"})
        words.gate.set()
        assert first.result().status_code == 200
    assert refused.status_code == 429
    assert int(refused.headers["retry-after"]) > 0
    assert "try again later" in refused.json()["error"]["message"]


def test_a_search_ends_when_its_client_goes(indexes, words):
    ended = threading.Event()

    def fault(pairs):
        assert ended.wait(10)

    words.fault = fault
    body = {"query": QUERIES[0], "k": 1, "budget": 40}
    with running(indexes, words) as port:
        with connect(port) as connection:
            send(connection, body)
            until(lambda: counted(port, "crossknn_live") == 1)
        # The search hears of it while the scorer still has its pairs.
        until(lambda: counted(port, "crossknn_live") == 0)
        assert not ended.is_set()
        ended.set()
        assert counted(port, 'crossknn_searches_total{by="cancelled"}') == 1
        assert counted(port, "crossknn_degraded_total") == 0


def test_stopping_searches_are_answered_with_the_best_so_far(indexes, words):
    def fault(pairs):
        if len(words.batches) > 1:
            client.engine.stop()

    words.fault = fault
    with served(indexes, words) as client:
        answer = client.post("/search", json={"query": QUERIES[0], "k": 3, "budget": 40})
        assert client.get("/readyz").status_code == 503
        assert client.post("/search", json={"query": QUERIES[0]}).status_code == 429
    assert answer.json()["stopped_by"] == "cancelled"
    assert answer.json()["degraded"]
    assert 0 < answer.json()["n_scored"] < 40
    assert len(ids(answer)[0]) == 3


def test_requests_that_waited_are_refused_earlier_if_searches_without_calls_take_long(
    indexes, words, monkeypatch
):
    late = {"query": "y", "deadline_ms": 1000}
    with served(indexes, words) as client:
        mine = client.engine
        waited = lambda: mine._in_time(SearchBody(**late), time.monotonic() - 0.6)  # noqa: E731
        assert waited().deadline > 0.2
        searcher = mine.searcher
        monkeypatch.setattr(mine, "searcher", lambda name: (time.sleep(0.45), searcher(name))[1])
        body = {"query": "x", "method": "retrieve", "k": 1}
        assert client.post("/search", json=body).status_code == 200
        with pytest.raises(HTTPException, match="before its search could begin"):
            waited()
        monkeypatch.undo()
        cheap = {"budget": 1, "k": 1}
        for number in range(20):  # the service is fast again
            assert client.post("/search", json=cheap | {"query": f"x{number}"}).json()["n_calls"]
        assert waited().deadline > 0.2


def test_who_waited_too_long_for_a_thread_hears_it(indexes, words, monkeypatch):
    monkeypatch.setattr(engine, "AT_ONCE", 1)
    monkeypatch.setattr(engine, "available_threads", lambda: 1)
    with served(indexes, words) as client, ThreadPoolExecutor() as pool:
        words.gate.clear()
        first = pool.submit(client.post, "/search", json={"query": "x", "k": 1, "budget": 2})
        until(lambda: client.engine.shared._calls)
        body = {"query": "y", "deadline_ms": 50, "k": 1}
        late = [
            pool.submit(client.post, path, json=asked)
            for path, asked in (
                ("/search", body),
                ("/v2/rerank", {"query": "y", "documents": ["z"], "deadline_ms": 50}),
            )
        ]
        time.sleep(0.2)
        words.gate.set()
        assert first.result().status_code == 200
        plain, ranked = (answer.result() for answer in late)
    assert plain.status_code == ranked.status_code == 429
    assert int(plain.headers["retry-after"]) > 0
