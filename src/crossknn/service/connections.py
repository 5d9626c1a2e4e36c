"""The connections of the service: how many there are, and how long each may keep it waiting.

A connection that waits for its client (for a head, for a body, or to be read) gives way when
another one comes and there are as many as may be, the longest waiting first. So a service that is
flooded with idle connections still answers. Those whose request is being answered stay.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from functools import partial
from http import HTTPStatus
from socket import socket
from typing import Any, Literal, TypeAlias

from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from crossknn.service.metrics import Metrics

MOST_CONNECTIONS = 500
BACKLOG = 2048  # connections that wait to be taken, in the system
TAKEN_AT_ONCE = 100  # connections, before any of them is looked at
IDLE_SECONDS = 5  # between two requests of a connection
HEAD_SECONDS = 10.0  # in which the head of a request has to come
BODY_SECONDS = 20.0  # and its body
READ_SECONDS = 20.0  # in which a client has to take `LEAST_READ` of an answer, or the rest of it
LEAST_READ = 64 << 10  # bytes
MOST_HEAD = 16 << 10  # bytes
LOG_SECONDS = 10.0  # in which a sentence is logged once
_LOOK = 0.5  # seconds between two looks at all connections
_NOISY = ("asyncio", "uvicorn.error", "crossknn.service.app")

Waits: TypeAlias = Literal["head", "body", "answer"]


def bounded(app: ASGIApp, metrics: Metrics, **given: Any) -> Config:
    """The configuration of a `BoundedServer` of `app`."""
    for name in _NOISY:
        logger = logging.getLogger(name)
        if not any(isinstance(known, Rarely) for known in logger.filters):
            logger.addFilter(Rarely())
    most = _descriptors()
    return Config(
        app,
        http=partial(Connection, guard=Guard(metrics, most)),  # type: ignore[arg-type]
        ws="none",  # an upgraded connection would have none of these limits
        backlog=min(TAKEN_AT_ONCE, max(1, most // 4)),  # asyncio listens again with this one
        timeout_keep_alive=IDLE_SECONDS,
        h11_max_incomplete_event_size=MOST_HEAD,
        log_level="warning",
        server_header=False,
        **given,
    )


class BoundedServer(Server):
    """A server on sockets that the system keeps `BACKLOG` connections for."""

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to serve."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)


def _descriptors() -> int:
    """Connections that leave half of the files that the process may open to all else."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return MOST_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, MOST_CONNECTIONS if files < 0 else min(MOST_CONNECTIONS, files // 2))


class Connection(H11Protocol):
    """A connection that its `guard` admits, watches and drops."""

    def __init__(self, *args: Any, guard: Guard, **options: Any) -> None:
        super().__init__(*args, **options)
        self.guard, self.since, self.unread = guard, time.monotonic(), 0
        self.state: object = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.guard.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.guard.forget(self)
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.guard.served(self)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        self.refuse(HTTPStatus.BAD_REQUEST, "this is no HTTP request, or its head is too large")

    def waits_for(self) -> Waits | None:
        """What its client has to do next; None where it is the service's turn."""
        if self.transport.get_write_buffer_size():
            return "answer"
        if self.cycle is None or self.cycle.response_complete:
            return "head"
        return "body" if self.cycle.more_body else None

    def refuse(self, status: HTTPStatus, message: str) -> None:
        """Answer with an error, and hang up."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            said = {"error": {"message": message, "status": status}}
            body = json.dumps(said, separators=(",", ":")).encode()
            head = (
                f"HTTP/1.1 {status} {status.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()


class Guard:
    """All connections of a server, those first that were admitted or answered first."""

    def __init__(self, metrics: Metrics, most: int) -> None:
        self.most, self._dropped = most, metrics.dropped
        self._connections: dict[Connection, None] = {}
        metrics.connections.set_function(lambda: len(self._connections))
        self._looks = False

    def admit(self, new: Connection) -> None:
        """Take a connection, in the place of one that waits for its client if need be."""
        if len(self._connections) >= self.most:
            waiting = (known for known in self._connections if known.waits_for() is not None)
            if (longest := next(waiting, None)) is None:
                self._dropped("refused")
                new.refuse(HTTPStatus.SERVICE_UNAVAILABLE, "there are too many connections")
                return
            self._dropped("displaced")
            self.forget(longest)
            longest.transport.abort()
        self._connections[new] = None
        if not self._looks:
            self._looks = True
            new.loop.call_later(_LOOK, self._look, new.loop)

    def served(self, connection: Connection) -> None:
        """Move a connection to the end: its client has asked and was answered."""
        if connection in self._connections:
            self.forget(connection)
            self._connections[connection] = None

    def forget(self, connection: Connection) -> None:
        """A connection is gone."""
        self._connections.pop(connection, None)

    def _look(self, loop: Any) -> None:
        """Drop the connections whose clients keep them waiting for too long."""
        now = time.monotonic()
        for connection in [*self._connections]:
            waits, left = connection.waits_for(), connection.transport.get_write_buffer_size()
            state = waits, connection.cycle
            read = left <= connection.unread - LEAST_READ or left > connection.unread
            if state != connection.state or (waits == "answer" and read):
                connection.state, connection.since, connection.unread = state, now, left
            elif waits is not None and now - connection.since > _LIMITS[waits]():
                self._drop(connection, waits)
        self._looks = bool(self._connections)
        if self._looks:
            loop.call_later(_LOOK, self._look, loop)

    def _drop(self, connection: Connection, waits: Waits) -> None:
        self._dropped(waits)
        if waits == "body":
            said = f"the body did not come within {BODY_SECONDS:g} s"
            connection.refuse(HTTPStatus.REQUEST_TIMEOUT, said)
        elif waits == "head":
            connection.transport.close()
        else:
            connection.transport.abort()  # what is unread would keep it open


_LIMITS: Mapping[Waits, Any] = {
    "head": lambda: HEAD_SECONDS,
    "body": lambda: BODY_SECONDS,
    "answer": lambda: READ_SECONDS,
}


class Rarely(logging.Filter):
    """Lets a sentence through once in `LOG_SECONDS`, and says how often it was left out."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        said = f"{kind} {str(record.msg)[:200]}".partition("\n")[0]
        now, (until, count) = time.monotonic(), self._known.get(said, (0.0, 0))
        if now < until:
            self._known[said] = until, count + 1
            return False
        if len(self._known) > 100:
            self._known.clear()
        self._known[said] = now + LOG_SECONDS, 0
        if count:
            record.msg = f"{record.msg} ({count:,} more of these since)"
        return True
