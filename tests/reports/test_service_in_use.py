"""A service in use: connections that ask for nothing, never end or are never read; an address that is
taken; and deadlines and clients that hang up end all that takes long, not scoring alone."""

import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import numpy as np
import pytest
from service_helpers import (
    TEXTS,
    Words,
    ask,
    command,
    connect,
    counted,
    docs,
    read_all,
    running,
    send,
    served,
    until,
    url_of,
)

import crossknn as ck
from crossknn.errors import AddressError, ScorerError
from crossknn.service import connections

HEAD = b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
SLOW = 'crossknn_dropped_connections_total{why="slow"}'
DISPLACED = 'crossknn_dropped_connections_total{why="displaced"}'


@pytest.fixture(scope="module")
def port():
    with running() as port:
        yield port


@pytest.fixture
def most(monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 12)


def check_health(url, times):
    for _ in range(times):
        began = time.monotonic()
        assert ask(f"{url}/healthz") == {"status": "ok"}
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("begun", [b"", HEAD, HEAD + b"Content-Length: 9\r\n\r\n{"])
def test_idle_connections_give_way(most, begun):
    with running() as port, ExitStack() as opened:
        idle = [opened.enter_context(connect(port)) for _ in range(60)]
        for connection in idle:
            with suppress(ConnectionError):  # it has given way already
                connection.sendall(begun)
        check_health(f"http://127.0.0.1:{port}", 5)
        assert counted(port, DISPLACED) >= 48
        assert counted(port, "crossknn_connections") <= 12
        assert read_all(idle[0]) == b""


def test_a_request_under_way_stays(most):
    """Searches that are being answered are never dropped for idle connections."""
    words = Words()
    words.gate.clear()
    with running(fn=words) as port, ThreadPoolExecutor() as pool, ExitStack() as opened:
        url = f"http://127.0.0.1:{port}"
        body = {"query": "sort the list", "k": 1, "budget": 2}
        searches = [pool.submit(ask, f"{url}/search", body) for _ in range(4)]
        until(lambda: counted(port, "crossknn_live") == 4)
        for _ in range(40):
            opened.enter_context(connect(port))
        check_health(url, 1)
        words.gate.set()
        assert all(len(search.result()["results"]) == 1 for search in searches)


def test_a_client_that_never_reads_is_dropped_and_counted(monkeypatch):
    monkeypatch.setattr(connections, "MAX_WAIT", 0.5)
    items = [{"id": f"d{n}", "text": f"page {n} " + "x" * 100_000} for n in range(80)]
    body = {"query": "page", "k": 80, "budget": 2, "method": "retrieve"}
    with running({"docs": ck.ItemIndex.build(items, encoder=None, lsa=0)}) as port:
        for count, close in enumerate(("keep-alive", "close"), 1):
            with socket.socket() as never:
                never.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                never.connect(("127.0.0.1", port))
                send(never, body, Connection=close)
                until(lambda wanted=count: counted(port, SLOW) == wanted)
                assert len(read_all(never)) < 7_000_000
        with connect(port) as slow:  # but takes it bit by bit
            send(slow, body)
            first = slow.recv(1 << 18)
            left = int(re.search(rb"content-length: (\d+)", first)[1]) - len(first)
            while left > 0:
                time.sleep(0.03)
                taken = slow.recv(1 << 18)
                assert taken
                left -= len(taken)


def test_nonsense_is_refused_and_a_web_socket_is_answered_as_any_request(port, caplog):
    for n in range(50):
        with connect(port) as wrong:
            wrong.sendall(b"\x16\x03\x01 nonsense\r\n\r\n" if n % 2 else b"A: " + b"b" * 70_000)
            answer = read_all(wrong)
            assert not answer or answer.startswith(b"HTTP/1.1 400")
    key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    with connect(port) as upgrading:
        upgrading.sendall(HEALTH + b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + key)
        assert upgrading.recv(65536).startswith(b"HTTP/1.1 200")
    assert caplog.records == []


def test_heads_and_bodies_that_do_not_come_are_hung_up(port, monkeypatch):
    monkeypatch.setattr(connections, "MAX_WAIT", 0.2)
    for begun in (HEAD, HEAD + b"Content-Length: 100\r\n\r\n{"):
        with connect(port) as slow:
            slow.sendall(begun)
            assert read_all(slow) == b""
    with connect(port) as again:
        again.sendall(HEALTH + b"\r\n")
        assert b"200 OK" in again.recv(65536)
        again.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert read_all(again) in (b"", b'{"status":"ok"}')


def test_bodies_in_chunks_have_a_limit_too(port):
    with connect(port) as large:
        large.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n" % (1 << 20) + b" " * (1 << 20) + b"\r\n"
        with suppress(ConnectionError):
            for _ in range(20):
                large.sendall(chunk)
        assert b"413" in large.recv(65536).split(b"\r\n")[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    docs()["docs"].save(folder / "docs")
    return folder


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sets a limit of open files")
def test_more_connections_than_the_process_may_have_files(folder):
    """600 idle connections and 256 files: the service stopped for ten seconds at a time, and wrote
    tens of thousands of lines."""
    import resource

    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))  # noqa: E731
    with command(folder, "docs", "--port", "0", preexec_fn=limit) as process:
        url = url_of(process)
        with ExitStack() as opened:
            for _ in range(600):
                opened.enter_context(connect(int(url.rsplit(":", 1)[1])))
            check_health(url, 30)
            body = {"query": "sort a list", "k": 1, "budget": 2}
            assert ask(f"{url}/search", body)["results"]
        process.terminate()
        _, log = process.communicate(timeout=20)
    assert log.count("\n") < 20


@pytest.mark.parametrize(
    ("host", "message"),
    [
        ("localhost", "it is in use: stop what"),  # one of its two families of addresses
        ("203.0.113.7", "give an address of this machine"),  # an address for documentation
        ("no-such-host.invalid", "'no-such-host.invalid'"),
        ("a" * 80, "give an address"),
        ("", "the host is empty"),
        ("127.0.0.1:8000", "give an address"),
        ("::ffff:127.0.0.1", "give an address"),
    ],
)
def test_an_address_that_is_taken_or_of_no_machine(host, message):
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(AddressError, match=message),
        connections.listening(host, other.getsockname()[1]),
    ):
        pass


@pytest.mark.slow
def test_two_services_at_one_port(folder):
    with command(folder, "docs", "--port", "0") as first:
        url = url_of(first)
        with command(folder, "docs", "--port", url.rsplit(":", 1)[1]) as second:
            _, message = second.communicate(timeout=60)
        assert second.returncode == 7
        assert message.startswith("crossknn: the service cannot listen on '127.0.0.1', port")
        assert message.count("\n") == 1
        assert ask(f"{url}/search", {"query": "sort a list", "budget": 5})["n_scored"] == 5


@pytest.mark.slow
def test_an_address_of_ipv6_is_written_for_a_browser(folder):
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with command(folder, "docs", "--host", "::1", "--port", "0") as process:
        assert url_of(process).startswith("http://[::1]:")


QUERIES = [
    f"{verb} the {noun} {n}"
    for n in range(25)
    for verb, noun in (("zip", "file"), ("sort", "list"), ("draw", "page"), ("lock", "folder"))
]
BATCH = {"query": QUERIES, "k": 5, "budget": 10}


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
    answer = quick.post("/search", json={"query": [long] * 100, "k": 1})
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
    searcher = ck.Searcher(ck.ItemIndex.build(TEXTS, lsa=4), Words(), method)
    together = searcher.search(QUERIES[:30], k=k, budget=12, trace=True)
    limits = ck.Budget(per_query=12, deadline=600)
    divided = searcher.search(QUERIES[:30], k=k, budget=limits, trace=True)
    assert [[h.id for h in hits] for hits in divided] == [[h.id for h in hits] for hits in together]
    assert divided.n_scored == together.n_scored
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
