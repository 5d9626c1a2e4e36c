"""A reranking server on this machine that answers well until it is to fail, in one of many ways."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from functools import cache

DRIP = 0.03
"""Seconds between two bytes of a slow answer."""

WAIT = 20.0
"""Seconds after which a server that stalls lets go."""


class Faulty:
    """Answers in Cohere's shape; from request `start` (from 0) on it does `fault(server, connection,
    body)`, which returns whether the connection stays open.

    `busy` requests before that are answered 503, so that the fault comes during a retry.
    """

    def __init__(self, fault: Callable, start: int = 0, busy: int = 0) -> None:
        self.fault, self.start, self.busy = fault, start, busy
        self.count = 0
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/rerank"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        self._socket.close()

    def sleep(self, seconds: float) -> bool:
        """Wait; False when the test is over."""
        return not self._stop.wait(seconds)

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
            with connection, connection.makefile("rb") as file:
                while not self._stop.is_set() and self._answer(connection, file):
                    pass
        except OSError:
            pass

    def _answer(self, connection: socket.socket, file) -> bool:
        """Answer one request; False when the connection is to be closed."""
        early = self.fault in EARLY and self.count >= self.start
        body = {} if early else _read(file)
        if body is None:
            return False
        with self._lock:
            number, self.count = self.count, self.count + 1
        if number < self.start:
            connection.sendall(answer(good(body)))
        elif number < self.start + self.busy and not early:
            connection.sendall(answer(b"busy", "503 Service Unavailable"))
        else:
            return bool(self.fault(self, connection, body))
        return True


def _read(file) -> dict | None:
    """The body of one request; None at the end of the connection."""
    length, line = 0, file.readline()
    if not line:
        return None
    while line.strip():
        if line.lower().startswith(b"content-length"):
            length = int(line.split(b":")[1])
        line = file.readline()
    return json.loads(file.read(length) or b"{}")


def score(query: str, text: str) -> float:
    """What the server answers while it is well."""
    return (sum(map(ord, query + text)) % 97) / 7 - 5


def good(body: dict) -> bytes:
    texts = body.get("documents") or body.get("texts", [])
    rows = [{"index": i, "relevance_score": score(body["query"], t)} for i, t in enumerate(texts)]
    return json.dumps({"results": rows}).encode()


def head(length: int | None, status: str = "200 OK", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *more]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def answer(data: bytes, status: str = "200 OK", *more: str) -> bytes:
    return head(len(data), status, *more) + data


def stay(server: Faulty, connection: socket.socket) -> bool:
    return True


def close(server: Faulty, connection: socket.socket) -> bool:
    return False


def reset(server: Faulty, connection: socket.socket) -> bool:
    """Close so that the other side gets a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def stall(server: Faulty, connection: socket.socket) -> bool:
    """Do nothing until the test is over."""
    server.sleep(WAIT)
    return False


def sends(data: bytes | Callable, end: Callable = stay) -> Callable:
    """Send what `data` makes of the request's body (bytes, or an iterator of them), then `end`."""

    def act(server, connection, body):
        made = data(body) if callable(data) else data
        for part in [made] if isinstance(made, bytes) else made:
            connection.sendall(part)
            if server._stop.is_set():
                return False
        return end(server, connection)

    return act


def drips(data: Callable) -> Callable:
    """Send what `data` makes of the body a byte at a time, after a part that comes at once."""

    def act(server, connection, body):
        start, rest = data(body)
        connection.sendall(start)
        for byte in rest:
            connection.sendall(bytes([byte]))
            if not server.sleep(DRIP):
                return False
        return True

    return act


def slow(seconds: float) -> Callable:
    """A good answer after so many seconds."""

    def reply(server, connection, body):
        if not server.sleep(seconds):
            return False
        connection.sendall(answer(good(body)))
        return True

    return reply


def half(body: dict) -> bytes:
    data = good(body)
    return head(len(data)) + data[: len(data) // 2]


def claims(difference: int) -> Callable:
    """A good answer whose length is said to be another."""
    return lambda body: head(len(good(body)) + difference) + good(body)


def endless(begin: bytes, part: bytes) -> Callable:
    def parts(body) -> Iterator[bytes]:
        yield begin
        while True:
            yield part

    return parts


@cache
def bomb() -> bytes:
    return answer(gzip.compress(b" " * (1 << 26)) * 16, "200 OK", "Content-Encoding: gzip")


CHUNKED = head(None, "200 OK", "Transfer-Encoding: chunked")
FAULTS: dict[str, Callable] = {
    "closes every connection": sends(b"", close),
    "resets every connection": sends(b"", reset),
    "accepts and reads nothing": sends(b"", stall),
    "reads and never answers": sends(b"", stall),
    "closes after reading": sends(b"", close),
    "resets after reading": sends(b"", reset),
    "stops within the status line": sends(b"HTTP/1.1 20", stall),
    "stops after the headers": sends(lambda body: head(len(good(body))), stall),
    "stops within the body": sends(half, stall),
    "closes within the body": sends(half, close),
    "resets within the body": sends(half, reset),
    "drips the body": drips(lambda body: (head(len(good(body))), good(body))),
    "drips the headers": drips(lambda body: (b"", answer(good(body)))),
    "sends headers without end": sends(
        endless(b"HTTP/1.1 200 OK\r\n", b"X-More: and more\r\n" * 10)
    ),
    "sends a body without end": sends(
        endless(CHUNKED, b"10000\r\n" + b" " * 0x10000 + b"\r\n"), close
    ),
    "sends 100 MB": sends(lambda body: [head(100 << 20), *[b" " * (1 << 20)] * 100]),
    "sends a compressed gigabyte": sends(lambda body: bomb()),
    "says it is compressed and is not": sends(
        lambda body: answer(good(body), "200 OK", "Content-Encoding: gzip")
    ),
    "does not speak HTTP": sends(b"\x16\x03\x01\x02\x00 220 smtp.example ready\r\n\r\n", close),
    "gives a length that is too large": sends(claims(10), stall),
    "gives a length that is too small": sends(claims(-10), close),
    "sends a broken chunk": sends(CHUNKED + b"xyz\r\nhello\r\n", close),
}
EARLY = {
    FAULTS[name]
    for name in (
        "closes every connection",
        "resets every connection",
        "accepts and reads nothing",
    )
}
"""Faults that do not even read the request."""

STATUSES = (
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
)
FAULTS |= {f"answers {status}": sends(answer(b'{"error": "no"}', status)) for status in STATUSES}
BUSY, MOVED = "429 Too Many Requests", "301 Moved Permanently"
DATE = "Retry-After: Fri, 31 Dec 2099 23:59:59 GMT"
ELSEWHERE = "Location: http://127.0.0.1:9/elsewhere"
ERROR = b'{"error": {"message": "out of memory"}}'
ANSWERS = {
    "answers 429 and asks for an hour": answer(b"slow down", BUSY, "Retry-After: 3600"),
    "answers 429 until a date": answer(b"slow down", BUSY, DATE),
    "redirects": answer(b"", MOVED, ELSEWHERE),
    "answers 200 with nothing": answer(b""),
    "answers HTML": answer(b"<html>Welcome</html>"),
    "answers null": answer(b"null"),
    "answers an error with 200": answer(ERROR),
    "nests a million brackets": answer(b"[" * 1_000_000),
    "answers bytes that are no UTF-8": answer(b"\xff\xfe\x00\x80" * 20),
}
FAULTS |= {name: sends(data) for name, data in ANSWERS.items()}


def rows(change: Callable) -> Callable:
    """A fault that changes the rows of a good answer."""

    def made(body: dict) -> bytes:
        return answer(json.dumps({"results": change(json.loads(good(body))["results"])}).encode())

    return sends(made)


def each(value: object) -> Callable:
    return rows(lambda rows: [{**row, "relevance_score": value} for row in rows])


def indexed(change: Callable) -> Callable:
    return rows(lambda rows: [{**row, "index": change(row["index"])} for row in rows])


FAULTS |= {
    "gives too few scores": rows(lambda rows: rows[:-1]),
    "gives too many scores": rows(lambda rows: [*rows, {**rows[0], "index": len(rows)}]),
    "gives an item twice": rows(lambda rows: [*rows[:-1], rows[0]]),
    "gives an index beyond the end": indexed(lambda index: index + 1),
    "gives a negative index": indexed(lambda index: -1 - index),
    "gives scores of null": each(None),
    "gives scores as texts": each("0.5"),
    "gives true and false": each(True),
    "gives NaN": each(float("nan")),
    "gives infinity": each(float("inf")),
    "gives a number of 400 digits": each(10**400),
    "gives lists": each([1.0]),
}
