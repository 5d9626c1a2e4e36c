"""Connections that ask for nothing, never end, or are never read: the service goes on."""

from __future__ import annotations

import os
import re
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from service_helpers import (
    Words,
    ask,
    command,
    connect,
    counted,
    docs,
    read_all,
    running,
    send,
    until,
    url_of,
)

import crossknn as ck
from crossknn.service import connections

HEAD = b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
DROPPED = "crossknn_dropped_connections_total"


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
    """Of sixty connections that do nothing, or do not go on with a head or a body, twelve may
    stay, and `/healthz` is answered beside them."""
    with running() as port, ExitStack() as opened:
        idle = [opened.enter_context(connect(port)) for _ in range(60)]
        for connection in idle:
            with suppress(ConnectionError):  # it has given way already
                connection.sendall(begun)
        check_health(f"http://127.0.0.1:{port}", 5)
        assert counted(port, f'{DROPPED}{{why="displaced"}}') >= 48
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
    """An answer of 8 MB that nobody takes is kept for a stated time, here half a second."""
    monkeypatch.setitem(connections.MAX_SECONDS, "answer", 0.5)
    items = [{"id": f"d{n}", "text": f"page {n} " + "x" * 100_000} for n in range(80)]
    body = {"query": "page", "k": 80, "budget": 2, "method": "retrieve"}
    with running({"docs": ck.ItemIndex.build(items, encoder=None, lsa=0)}) as port:
        for count, close in enumerate(("keep-alive", "close"), 1):
            with socket.socket() as never:
                never.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                never.connect(("127.0.0.1", port))
                send(never, body, Connection=close)
                until(lambda wanted=count: counted(port, f'{DROPPED}{{why="answer"}}') == wanted)
                assert len(read_all(never)) < 7_000_000
        with connect(port) as slow:  # but takes it bit by bit
            send(slow, body)
            first = slow.recv(1 << 18)
            left = int(re.search(rb"content-length: (\d+)", first)[1]) - len(first)
            while left > 0:
                time.sleep(0.03)
                part = slow.recv(1 << 18)
                assert part
                left -= len(part)


def test_what_is_no_request_is_logged_rarely(port, caplog):
    """Fifty connections of nonsense are fifty refusals, and one line of log."""
    for n in range(50):
        with connect(port) as wrong:
            wrong.sendall(b"\x16\x03\x01 nonsense\r\n\r\n" if n % 2 else b"A: " + b"b" * 70_000)
            answer = read_all(wrong)
            assert not answer or answer.startswith(b"HTTP/1.1 400")
    assert sum("nvalid HTTP" in record.getMessage() for record in caplog.records) <= 1


def test_no_connection_is_upgraded(port):
    """A web socket would have none of these limits: the request is answered as any other."""
    key = b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    with connect(port) as upgrading:
        upgrading.sendall(HEALTH + b"Connection: Upgrade\r\nUpgrade: websocket\r\n" + key)
        assert upgrading.recv(65536).startswith(b"HTTP/1.1 200")


def test_heads_and_bodies_that_do_not_come_are_hung_up(port, monkeypatch):
    """A head, a body, and the second head of a connection that stop in the middle."""
    for what in ("head", "body"):
        monkeypatch.setitem(connections.MAX_SECONDS, what, 0.2)
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
    """A body that does not say how long it is, and never ends."""
    with connect(port) as large:
        large.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n" % (1 << 20) + b" " * (1 << 20) + b"\r\n"
        with suppress(ConnectionError):
            for _ in range(20):
                large.sendall(chunk)
        assert b"413" in large.recv(65536).split(b"\r\n")[0]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sets a limit of open files")
def test_more_connections_than_the_process_may_have_files(tmp_path):
    """600 idle connections and 256 files: the service stopped for ten seconds at a time, and wrote
    tens of thousands of lines."""
    import resource

    docs()["docs"].save(tmp_path / "docs")
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))  # noqa: E731
    with command(tmp_path, "docs", "--port", "0", preexec_fn=limit) as process:
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
