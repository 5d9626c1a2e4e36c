"""A reranking server on this machine that answers well until it is to fail, in one of many ways."""

from __future__ import annotations

import gzip
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain, repeat

DRIP = 0.03
"""Seconds between two bytes of a slow answer."""

STALL = 20.0
"""Seconds after which a server that stalls lets go."""

RESET = None
"""A part of an answer: the other side gets a reset."""

Fault = Callable[[dict], Iterable[bytes | float | None]]
"""The body of a request -> the parts of the answer: bytes, and seconds to wait between them."""


class Faulty:
    """Answers in Cohere's shape; from request `start` (from 0) on as `fault` says."""

    def __init__(self, fault: Fault, start: int = 0) -> None:
        self.fault, self.start, self.count = fault, start, 0
        self.requests: list[tuple[str, dict, dict]] = []  # path, headers, body
        self._stop, self._lock, owner = threading.Event(), threading.Lock(), self

        class Handler(BaseHTTPRequestHandler):
            protocol_version, disable_nagle_algorithm = "HTTP/1.1", True

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                owner.requests.append((self.path, dict(self.headers), body))
                try:
                    owner._answer(self.connection, body)
                except OSError:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/rerank"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._stop.set()
        self._server.shutdown()
        self._server.socket.close()

    def _answer(self, connection: socket.socket, body: dict) -> None:
        with self._lock:
            number, self.count = self.count, self.count + 1
        if number < self.start:
            connection.sendall(good(body))
            return
        for part in self.fault(body):
            if isinstance(part, bytes):
                connection.sendall(part)
            elif part is RESET:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            elif self._stop.wait(part):
                break
        connection.close()
        raise OSError


def score(query: str, text: str) -> float:
    """What the server answers while it is well."""
    return (sum(map(ord, query + text)) % 97) / 7 - 5


def rows(body: dict) -> list[dict]:
    texts = body.get("documents") or body.get("texts", [])
    return [{"index": i, "relevance_score": score(body["query"], t)} for i, t in enumerate(texts)]


def head(length: int | None, status: str = "200 OK", *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: application/json", *more]
    lines.append("Connection: close")  # as the server does; else the client might use it again
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def answer(data: bytes, status: str = "200 OK", *more: str) -> bytes:
    return head(len(data), status, *more) + data


def good(body: dict) -> bytes:
    return answer(json.dumps({"results": rows(body)}).encode())


def half(body: dict) -> bytes:
    return good(body)[:-50]


def drips(data: bytes, start: int = 0) -> Iterator[bytes | float]:
    """A byte at a time, after a part that comes at once."""
    yield data[:start]
    for at in range(start, len(data)):
        yield data[at : at + 1]
        yield DRIP


@cache
def bomb() -> bytes:
    return answer(gzip.compress(b" " * (1 << 26)) * 16, "200 OK", "Content-Encoding: gzip")


CHUNKED = head(None, "200 OK", "Transfer-Encoding: chunked")
HEADERS, CHUNK = b"X-More: and more\r\n" * 10, b"10000\r\n" + b" " * 0x10000 + b"\r\n"
FAULTS: dict[str, Fault] = {
    "reads and never answers": lambda body: [STALL],
    "closes after reading": lambda body: [],
    "resets after reading": lambda body: [RESET],
    "stops within the status line": lambda body: [b"HTTP/1.1 20", STALL],
    "stops within the body": lambda body: [half(body), STALL],
    "closes within the body": lambda body: [half(body)],
    "drips the body": lambda body: drips(good(body), 80),
    "drips the headers": lambda body: drips(good(body)),
    "sends headers without end": lambda body: chain([b"HTTP/1.1 200 OK\r\n"], repeat(HEADERS)),
    "sends a body without end": lambda body: chain([CHUNKED], repeat(CHUNK)),
    "sends a compressed gigabyte": lambda body: [bomb()],
    "says it is compressed and is not": lambda body: [
        answer(b"[]", "200 OK", "Content-Encoding: gzip")
    ],
    "does not speak HTTP": lambda body: [b"\x16\x03\x01\x02\x00 220 smtp.example ready\r\n\r\n"],
    "sends a broken chunk": lambda body: [CHUNKED + b"xyz\r\nhello\r\n"],
}
BUSY, MOVED = "429 Too Many Requests", "301 Moved Permanently"
DATE = "Retry-After: Fri, 31 Dec 2099 23:59:59 GMT"
ANSWERS = {
    "answers 400": answer(b"no", "400 Bad Request"),
    "answers 401": answer(b"no", "401 Unauthorized"),
    "answers 404": answer(b"no", "404 Not Found"),
    "answers 413": answer(b"no", "413 Content Too Large"),
    "answers 500": answer(b"no", "500 Internal Server Error"),
    "answers 502": answer(b"no", "502 Bad Gateway"),
    "answers 429 and asks for an hour": answer(b"slow down", BUSY, "Retry-After: 3600"),
    "answers 429 until a date": answer(b"slow down", BUSY, DATE),
    "redirects": answer(b"", MOVED, "Location: http://127.0.0.1:9/elsewhere"),
    "answers 200 with nothing": answer(b""),
    "answers HTML": answer(b"<html>Welcome</html>"),
    "answers null": answer(b"null"),
    "nests a million brackets": answer(b"[" * 1_000_000),
    "answers bytes that are no UTF-8": answer(b"\xff\xfe\x00\x80" * 20),
}
FAULTS |= {name: lambda body, data=data: [data] for name, data in ANSWERS.items()}

CHANGES: dict[str, Callable[[list], list]] = {
    "gives too few scores": lambda rows: rows[:-1],
    "gives too many scores": lambda rows: [*rows, {**rows[0], "index": len(rows)}],
    "gives an item twice": lambda rows: [*rows[:-1], rows[0]],
    "gives a negative index": lambda rows: [row | {"index": -1} for row in rows],
}
VALUES = {"null": None, "true": True, "NaN": float("nan"), "400 digits": 10**400, "lists": [1.0]}
CHANGES |= {
    f"gives {name}": lambda rows, value=value: [row | {"relevance_score": value} for row in rows]
    for name, value in VALUES.items()
}
FAULTS |= {
    name: lambda body, change=change: [answer(json.dumps({"results": change(rows(body))}).encode())]
    for name, change in CHANGES.items()
}
