"""Limits on the service's connections: their number, and how long each may keep it waiting.

If there are too many connections, a new one displaces the one that has waited longest for its
client (to send a head or a body, or to read). So a service that is flooded with idle connections
still answers. Connections whose requests are being answered stay.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from socket import socket
from typing import Any, Literal, TypeAlias

from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from crossknn.service.address import BACKLOG
from crossknn.service.metrics import Metrics

MAX_CONNECTIONS = 500
KEEP_ALIVE = 5  # seconds between two requests of a connection
MAX_HEAD = 16 << 10  # bytes
LOG_SECONDS = 10.0  # in which a message is logged once

Waits: TypeAlias = Literal["head", "body", "answer"]
MAX_SECONDS: dict[Waits, float] = {"head": 10.0, "body": 20.0, "answer": 20.0}
"""Seconds for the head or the body of a request to arrive, and for a part of an answer to be
read."""


class BoundedServer(Server):
    """uvicorn with limited connections; see `MAX_CONNECTIONS` and `MAX_SECONDS`.

    Args:
        app: What it serves.
        metrics: Count the connections, and those that are dropped.
        options: Of `uvicorn.Config`.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics, **options: Any) -> None:
        most = _max_connections()
        connection = partial(Connection, most=most, dropped=metrics.connection_dropped)
        super().__init__(
            Config(
                app,
                http=connection,  # type: ignore[arg-type]
                ws="none",  # an upgraded connection would have none of these limits
                # asyncio accepts so many at once: fewer than there are files left to open.
                backlog=min(100, max(1, most // 4)),
                timeout_keep_alive=KEEP_ALIVE,
                h11_max_incomplete_event_size=MAX_HEAD,
                log_level="warning",
                server_header=False,
                **options,
            )
        )
        metrics.connections.set_function(lambda: len(self.server_state.connections))
        for name in ("asyncio", "uvicorn.error", "crossknn.service.answers"):
            logging.getLogger(name).addFilter(_RARELY)

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """Begin to serve; the system queues more connections than asyncio accepts at once."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)

    async def on_tick(self, counter: int) -> bool:
        """Drop slow connections; uvicorn calls it ten times a second."""
        connections: list[Any] = [*self.server_state.connections]
        for connection in connections:
            connection.check()
        return await super().on_tick(counter)


def _max_connections() -> int:
    """Return how many connections leave half of the files that the process may open for other
    uses."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return MAX_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files < 0 else max(8, min(MAX_CONNECTIONS, files // 2))


class Connection(H11Protocol):
    """A connection that may be displaced by others, and is dropped if its client is too slow."""

    def __init__(
        self, *args: Any, most: int, dropped: Callable[[str], object], **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.most, self.dropped = most, dropped
        self.since = time.monotonic()
        self.state: object = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) <= self.most:
            return
        others: set[Any] = self.connections - {self}
        idle = [each for each in others if each.waits_for() is not None]
        if idle:
            longest = min(idle, key=lambda each: each.since)
            self.connections.discard(longest)  # the loop tells it later that it is gone
            longest.transport.abort()
            self.dropped("displaced")
        else:
            transport.close()
            self.dropped("refused")

    def waits_for(self) -> Waits | None:
        """Return what the client has to do next; None if it is the service's turn."""
        if self.transport.get_write_buffer_size():
            return "answer"
        if self.cycle is None or self.cycle.response_complete:
            return "head"
        return "body" if self.cycle.more_body else None

    def check(self) -> None:
        """Drop the connection if its client has been idle for too long."""
        waits, now = self.waits_for(), time.monotonic()
        state = waits, self.cycle, self.transport.get_write_buffer_size()
        if state != self.state:
            self.state, self.since = state, now
        elif waits is not None and now - self.since > MAX_SECONDS[waits]:
            self.dropped(waits)
            if waits == "answer":
                self.transport.abort()  # what is unread would keep it open
            else:
                self.transport.close()


class _Rarely(logging.Filter):
    """Lets a message through once in `LOG_SECONDS`."""

    def __init__(self) -> None:
        super().__init__()
        self._until: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        message, now = f"{kind} {str(record.msg)[:200]}", time.monotonic()
        if now < self._until.get(message, 0.0):
            return False
        if len(self._until) > 100:
            self._until.clear()
        self._until[message] = now + LOG_SECONDS
        return True


_RARELY = _Rarely()
