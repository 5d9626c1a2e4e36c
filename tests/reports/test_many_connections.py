"""Connections that ask for nothing, never end, or are never read: the service goes on. And a
service that cannot listen: one sentence, exit code 7, nothing served."""

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
from crossknn.errors import AddressError
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
