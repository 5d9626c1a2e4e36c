"""A reranking server on this machine that answers well until it is to fail, in one of many ways."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
import time
from collections.abc import Callable

DRIP = 0.03
"""Seconds between two bytes of a slow answer."""

WAIT = 20.0
"""Seconds after which a server that stalls lets go."""


class Faulty:
    """Answers in Cohere's shape; from request `start` (from 0) on it does `fault(connection, body)`.

    `busy` requests before that are answered 503, so that the fault comes during a retry.
    """

    def __init__(self, fault: Callable, start: int = 0, busy: int = 0) -> None:
        self.fault, self.start, self.busy = fault, start, busy
        self.count = 0
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/rerank"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            while not self._stop.is_set() and self._answer(connection):
                pass
        except OSError:
            pass
        finally:
            connection.close()

    def _answer(self, connection: socket.socket) -> bool:
        """Answer one request; False when the connection is to be closed."""
        early = getattr(self.fault, "early", False)
        with self._lock:
            if early and self.count >= self.start:
                self.count += 1
                number = self.count - 1
            else:
                number = None
        if number is not None:
            return bool(self.fault(self, connection, {}))
        body = _read(connection)
        if body is None:
            return False
        with self._lock:
            number = self.count
            self.count += 1
        if number < self.start:
            send(connection, good(body))
        elif number < self.start + self.busy:
            send(connection, b"busy", "503 Service Unavailable")
        else:
            return bool(self.fault(self, connection, body))
        return True

    def stall(self) -> bool:
        """Do nothing until the test is over."""
        self._stop.wait(WAIT)
        return False

    def sleep(self, seconds: float) -> bool:
        """Wait; False when the test is over."""
        return not self._stop.wait(seconds)


def _read(connection: socket.socket) -> dict | None:
    """The body of one request; None at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        chunk = connection.recv(65536)
        if not chunk:
            return None
        data += chunk
    head, _, rest = data.partition(b"\r\n\r\n")
    lengths = [
        line.split(b":")[1]
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    ]
    length = int(lengths[0]) if lengths else 0
    while len(rest) < length:
        chunk = connection.recv(65536)
        if not chunk:
            return None
        rest += chunk
    return json.loads(rest) if rest else {}


def score(query: str, text: str) -> float:
    """What the server answers while it is well."""
    return (sum(map(ord, query + text)) % 97) / 7 - 5


def good(body: dict) -> bytes:
    texts = body.get("documents") or body.get("texts", [])
    rows = [{"index": i, "relevance_score": score(body["query"], t)} for i, t in enumerate(texts)]
    return json.dumps({"results": rows}).encode()


def head(length: int | str | None, status: str = "200 OK", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *more]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def send(connection: socket.socket, data: bytes, status: str = "200 OK", *more: str) -> None:
    connection.sendall(head(len(data), status, *more) + data)


def _reset(connection: socket.socket) -> None:
    """Close so that the other side gets a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


FAULTS: dict[str, Callable] = {}


def fault(name: str, *, early: bool = False) -> Callable:
    """Register a fault; `early` ones do not even read the request."""

    def register(function: Callable) -> Callable:
        function.early = early
        FAULTS[name] = function
        return function

    return register


def answers(name: str, data: bytes | Callable, status: str = "200 OK", *more: str) -> None:
    """A fault that is an answer."""

    @fault(name)
    def reply(server, connection, body):
        found = data(body) if callable(data) else data
        send(connection, found, status, *more)
        return True


@fault("closes every connection", early=True)
def _(server, connection, body):
    return False


@fault("resets every connection", early=True)
def _(server, connection, body):
    _reset(connection)
    return False


@fault("accepts and reads nothing", early=True)
def _(server, connection, body):
    return server.stall()


@fault("reads and never answers")
def _(server, connection, body):
    return server.stall()


@fault("closes after reading")
def _(server, connection, body):
    return False


@fault("resets after reading")
def _(server, connection, body):
    _reset(connection)
    return False


@fault("stops within the status line")
def _(server, connection, body):
    connection.sendall(b"HTTP/1.1 20")
    return server.stall()


@fault("stops after the headers")
def _(server, connection, body):
    connection.sendall(head(len(good(body))))
    return server.stall()


@fault("stops within the body")
def _(server, connection, body):
    data = good(body)
    connection.sendall(head(len(data)) + data[: len(data) // 2])
    return server.stall()


@fault("closes within the body")
def _(server, connection, body):
    data = good(body)
    connection.sendall(head(len(data)) + data[: len(data) // 2])
    return False


@fault("resets within the body")
def _(server, connection, body):
    data = good(body)
    connection.sendall(head(len(data)) + data[: len(data) // 2])
    _reset(connection)
    return False


def _drip(server, connection, data: bytes) -> bool:
    for byte in data:
        connection.sendall(bytes([byte]))
        if not server.sleep(DRIP):
            return False
    return True


@fault("drips the body")
def _(server, connection, body):
    data = good(body)
    connection.sendall(head(len(data)))
    return _drip(server, connection, data)


@fault("drips the headers")
def _(server, connection, body):
    data = good(body)
    return _drip(server, connection, head(len(data)) + data)


@fault("sends headers without end")
def _(server, connection, body):
    connection.sendall(b"HTTP/1.1 200 OK\r\n")
    while server.sleep(0.001):
        connection.sendall(b"X-More: and more\r\n" * 10)
    return False


@fault("sends a body without end")
def _(server, connection, body):
    connection.sendall(head(None, "200 OK", "Transfer-Encoding: chunked"))
    while server.sleep(0.0):
        connection.sendall(b"10000\r\n" + b" " * 0x10000 + b"\r\n")
    return False


@fault("sends 100 MB")
def _(server, connection, body):
    connection.sendall(head(100 << 20))
    for _ in range(100):
        connection.sendall(b" " * (1 << 20))
    return True


@fault("sends a compressed gigabyte")
def _(server, connection, body):
    send(connection, _bomb(), "200 OK", "Content-Encoding: gzip")
    return True


_BOMB: list[bytes] = []


def _bomb() -> bytes:
    if not _BOMB:
        _BOMB.append(gzip.compress(b" " * (1 << 26)) * 16)
    return _BOMB[0]


@fault("says it is compressed and is not")
def _(server, connection, body):
    send(connection, good(body), "200 OK", "Content-Encoding: gzip")
    return True


@fault("does not speak HTTP")
def _(server, connection, body):
    connection.sendall(b"\x16\x03\x01\x02\x00 220 smtp.example ready\r\n\r\n")
    return False


@fault("gives a length that is too large")
def _(server, connection, body):
    data = good(body)
    connection.sendall(head(len(data) + 10) + data)
    return server.stall()


@fault("gives a length that is too small")
def _(server, connection, body):
    data = good(body)
    connection.sendall(head(len(data) - 10) + data)
    return False


@fault("sends a broken chunk")
def _(server, connection, body):
    connection.sendall(head(None, "200 OK", "Transfer-Encoding: chunked") + b"xyz\r\nhello\r\n")
    return False


for _status in (
    "400 Bad Request",
    "401 Unauthorized",
    "403 Forbidden",
    "404 Not Found",
    "408 Request Timeout",
    "413 Content Too Large",
    "422 Unprocessable Content",
    "429 Too Many Requests",
    "500 Internal Server Error",
    "501 Not Implemented",
    "502 Bad Gateway",
    "503 Service Unavailable",
    "504 Gateway Timeout",
):
    answers(f"answers {_status}", b'{"error": "no"}', _status)
answers(
    "answers 429 and asks for an hour", b"slow down", "429 Too Many Requests", "Retry-After: 3600"
)
answers(
    "answers 429 until a date",
    b"slow down",
    "429 Too Many Requests",
    "Retry-After: Fri, 31 Dec 2099 23:59:59 GMT",
)
answers("redirects", b"", "301 Moved Permanently", "Location: http://127.0.0.1:9/elsewhere")
answers("answers 200 with nothing", b"")
answers("answers HTML", b"<html>Welcome</html>")
answers("answers null", b"null")
answers("answers an error with 200", b'{"error": {"message": "out of memory"}}')
answers("nests a million brackets", b"[" * 1_000_000)
answers("answers bytes that are no UTF-8", b"\xff\xfe\x00\x80" * 20)


def _rows(change: Callable) -> Callable:
    def made(body: dict) -> bytes:
        rows = json.loads(good(body))["results"]
        return json.dumps({"results": change(rows)}).encode()

    return made


def _each(value: object) -> Callable:
    return _rows(lambda rows: [{**row, "relevance_score": value} for row in rows])


answers("gives too few scores", _rows(lambda rows: rows[:-1]))
answers("gives too many scores", _rows(lambda rows: [*rows, {**rows[0], "index": len(rows)}]))
answers("gives an item twice", _rows(lambda rows: [*rows[:-1], rows[0]]))
answers(
    "gives an index beyond the end",
    _rows(lambda rows: [{**r, "index": r["index"] + 1} for r in rows]),
)
answers(
    "gives a negative index", _rows(lambda rows: [{**r, "index": -1 - r["index"]} for r in rows])
)
answers("gives scores of null", _each(None))
answers("gives scores as texts", _each("0.5"))
answers("gives true and false", _each(True))
answers("gives NaN", _each(float("nan")))
answers("gives infinity", _each(float("inf")))
answers("gives a number of 400 digits", _each(10**400))
answers("gives lists", _each([1.0]))


def slow(seconds: float) -> Callable:
    """A good answer after so many seconds."""

    def reply(server, connection, body):
        if not server.sleep(seconds):
            return False
        send(connection, good(body))
        return True

    return reply


def pause() -> None:
    """Let threads that were left behind end."""
    time.sleep(0.05)
