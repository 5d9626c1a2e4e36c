"""Connections that ask for nothing, never end, or are never read: the service goes on."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import pytest
from service_helpers import (
    TEXTS,
    Words,
    ask,
    connect,
    counted,
    free_port,
    read_all,
    running,
    send,
    until,
    wait_for,
)

import crossknn as ck
from crossknn.service import connections

LONG = [{"id": f"d{n}", "text": f"page {n} " + "x" * 100_000} for n in range(80)]


@pytest.fixture(scope="module")
def index():
    return {"docs": ck.ItemIndex.build(TEXTS, lsa=4)}


@pytest.fixture
def most(monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 12)


def test_idle_connections_give_way(index, most):
    """Of sixty idle connections twelve may stay, and `/healthz` is answered beside them."""
    with running(index, Words()) as port, ExitStack() as opened:
        idle = [opened.enter_context(connect(port)) for _ in range(60)]
        for _ in range(5):
            began = time.monotonic()
            assert ask(f"http://127.0.0.1:{port}/healthz") == {"status": "ok"}
            assert time.monotonic() - began < 2
        assert counted(port, 'crossknn_dropped_connections_total{why="displaced"}') >= 48
        assert counted(port, "crossknn_connections") <= 12
        assert read_all(idle[0]) == b""


def test_those_that_send_a_head_or_a_body_slowly_give_way_too(index, most):
    """Nor do connections that have begun a request, and do not go on with it."""
    begun = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    with running(index, Words()) as port, ExitStack() as opened:
        for n in range(40):
            slow = opened.enter_context(connect(port))
            slow.sendall(begun + b"\r\n{" * (n % 2))
        assert ask(f"http://127.0.0.1:{port}/healthz") == {"status": "ok"}
        assert counted(port, "crossknn_connections") <= 12


def test_a_request_under_way_stays(index, most):
    """Searches that are being answered are never dropped for idle connections."""
    words = Words()
    words.gate.clear()
    with running(index, words) as port, ThreadPoolExecutor() as pool, ExitStack() as opened:
        url = f"http://127.0.0.1:{port}"
        body = {"query": "sort the list", "k": 1, "budget": 2}
        searches = [pool.submit(ask, f"{url}/search", body) for _ in range(4)]
        until(lambda: counted(port, "crossknn_live") == 4)
        for _ in range(40):
            opened.enter_context(connect(port))
        assert ask(f"{url}/healthz") == {"status": "ok"}
        words.gate.set()
        assert all(len(search.result()["results"]) == 1 for search in searches)


def test_a_client_that_never_reads_is_dropped_and_counted(monkeypatch):
    """An answer of 8 MB that nobody takes is kept for a stated time, here half a second."""
    monkeypatch.setitem(connections.MAX_SECONDS, "answer", 0.5)
    body = {"query": "page", "k": 80, "budget": 2, "method": "retrieve"}
    dropped = 'crossknn_dropped_connections_total{why="answer"}'
    with running({"docs": ck.ItemIndex.build(LONG, lsa=4)}, Words()) as port:
        for count, close in enumerate(("keep-alive", "close"), 1):
            never = socket.socket()
            never.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with never:
                never.connect(("127.0.0.1", port))
                send(never, body, Connection=close)
                until(lambda wanted=count: counted(port, dropped) == wanted)
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


def test_what_is_no_request_is_logged_rarely(index, caplog):
    """Fifty connections of nonsense are fifty refusals, and one line of log."""
    with running(index, Words()) as port:
        for n in range(50):
            with connect(port) as wrong:
                wrong.sendall(b"\x16\x03\x01 nonsense\r\n\r\n" if n % 2 else b"A: " + b"b" * 70_000)
                answer = read_all(wrong)
                assert not answer or answer.startswith(b"HTTP/1.1 400")
    assert sum("nvalid HTTP" in record.getMessage() for record in caplog.records) <= 1


def test_no_connection_is_upgraded(index):
    """A web socket would have none of these limits: the request is answered as any other."""
    with running(index, Words()) as port, connect(port) as upgrading:
        upgrading.sendall(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert upgrading.recv(65536).startswith(b"HTTP/1.1 200")


HEAD = b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_heads_and_bodies_that_do_not_come_are_hung_up(index, monkeypatch):
    """A head, the second head of a connection, and a body that stop in the middle."""
    for what in ("head", "body"):
        monkeypatch.setitem(connections.MAX_SECONDS, what, 0.2)
    with running(index, Words()) as port:
        for begun in (HEAD, HEAD + b"Content-Length: 100\r\n\r\n{"):
            with connect(port) as slow:
                slow.sendall(begun)
                assert read_all(slow) == b""
        with connect(port) as again:
            again.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert b"200 OK" in again.recv(65536)
            again.sendall(b"GET /healthz HTTP/1.1\r\nHo")
            assert read_all(again) in (b"", b'{"status":"ok"}')


def test_bodies_in_chunks_have_a_limit_too(index):
    """A body that does not say how long it is, and never ends."""
    with running(index, Words()) as port, connect(port) as large:
        large.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        chunk = b"%x\r\n" % (1 << 20) + b" " * (1 << 20) + b"\r\n"
        with suppress(ConnectionError):
            for _ in range(20):
                large.sendall(chunk)
        assert b"413" in large.recv(65536).split(b"\r\n")[0]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="sets a limit of open files")
def test_more_connections_than_the_process_may_have_files(tmp_path, index):
    """600 idle connections and 256 files: the service stopped for ten seconds at a time, and wrote
    tens of thousands of lines."""
    import resource

    index["docs"].save(tmp_path / "docs")
    port = free_port()
    command = [sys.executable, "-m", "crossknn", "serve", "docs", "--port", str(port)]
    with open(tmp_path / "log", "w") as log, ExitStack() as opened:
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stderr=log,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
        )
        opened.callback(process.wait)
        opened.callback(process.terminate)
        url = f"http://127.0.0.1:{port}"
        wait_for(f"{url}/readyz")
        for _ in range(600):
            opened.enter_context(connect(port))
        for _ in range(30):
            began = time.monotonic()
            assert ask(f"{url}/healthz") == {"status": "ok"}
            assert time.monotonic() - began < 2
        assert ask(f"{url}/search", {"query": "sort a list", "k": 1, "budget": 2})["results"]
    assert len((tmp_path / "log").read_text().splitlines()) < 20
