"""The service's sockets and connections, and how long a client may keep a connection waiting.

If there are too many connections, a new connection displaces the connection that has waited longest
for its client (to send a head or a body, or to read), so that a service flooded with idle
connections still answers. Connections whose requests are being answered stay.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

from prometheus_client import Counter
from starlette.types import ASGIApp
from uvicorn import Config, Server
from uvicorn.protocols.http.h11_impl import H11Protocol

from crossknn.errors import AddressError
from crossknn.service.engine import Engine

MAX_CONNECTIONS = 500
MAX_WAIT = 20.0  # seconds for a head or a body to arrive, or for 64 KiB of an answer to be read
BACKLOG = 2048  # connections that the system keeps until they are accepted
_ADVICE = {
    errno.EADDRINUSE: "it is in use: stop what listens there, or give another --port",
    errno.EACCES: "ports below 1024 need rights that this user lacks: give another --port",
}
_ABSENT = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}  # errors: no such address here


@contextmanager
def listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Open sockets on all addresses of a host name; with port 0 all get the same free port."""
    sockets, failure = list[socket.socket](), OSError(errno.EADDRNOTAVAIL, "")
    with ExitStack() as opened:
        try:
            if not host.strip():
                raise OSError("the host is empty")
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            for family, address in dict.fromkeys((entry[0], entry[4]) for entry in entries):
                try:
                    server = socket.create_server((address[0], port, *address[2:]), family=family)
                except OSError as error:
                    if error.errno not in _ABSENT:
                        raise
                    failure = error
                else:
                    sockets.append(opened.enter_context(server))
                    port = server.getsockname()[1]
            if not sockets:
                raise failure
        except (OSError, UnicodeError) as error:
            why = _ADVICE.get(getattr(error, "errno", None) or 0)
            if why is None:
                reason = getattr(error, "strerror", None) or error
                why = f"{reason}: give an address of this machine with --host"
            message = f"the service cannot listen on {host!r:.80}, port {port}: {why}"
            raise AddressError(message) from error
        yield sockets


def url_of(host: str, sockets: list[socket.socket]) -> str:
    """Return the address for a browser."""
    return f"http://{f'[{host}]' if ':' in host else host}:{sockets[0].getsockname()[1]}"


class BoundedServer(Server):
    """uvicorn with limited connections. At a signal, running searches end with the best hits so
    far and are answered."""

    def __init__(self, app: ASGIApp, engine: Engine) -> None:
        self.engine, most = engine, _max_connections()
        dropped = engine.metrics.dropped
        super().__init__(
            Config(
                app,
                http=partial(Connection, most=most, dropped=dropped),  # type: ignore[arg-type]
                ws="none",  # an upgraded connection would have none of these limits
                # asyncio accepts so many at once: fewer than there are files left to open.
                backlog=min(100, max(1, most // 4)),
                # Anybody can cause uvicorn's warnings, one for each connection.
                log_level="error",
                server_header=False,
                timeout_graceful_shutdown=int(engine.deadline) + 2,
            )
        )
        engine.metrics.connections.set_function(lambda: len(self.server_state.connections))

    def handle_exit(self, sig: int, frame: Any) -> None:
        """Stop the searches; after a second signal, interrupted requests are not logged."""
        if self.should_exit:
            logging.getLogger("uvicorn.error").disabled = True
        self.engine.stop()
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve; set how many connections the system queues until asyncio accepts them."""
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
    """Return the maximum number of connections: half of the files that the process may open."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows has no such limit
        return MAX_CONNECTIONS
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if files < 0 else max(8, min(MAX_CONNECTIONS, files // 2))


class Connection(H11Protocol):
    """A connection that new ones may displace, and that is dropped if its client is too slow."""

    def __init__(self, *args: Any, most: int, dropped: Counter, **options: Any) -> None:
        super().__init__(*args, **options)
        self.most, self.dropped = most, dropped
        self.since, self.state = time.monotonic(), tuple[Any, ...]()

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most:
            connections: set[Any] = self.connections
            waiting = [each for each in connections if each.waits_for_client()]
            min(waiting, key=lambda each: each.since).drop("displaced")

    def waits_for_client(self) -> bool:
        """Whether the client has to send a head or a body, or to read."""
        between = self.cycle is None or self.cycle.response_complete
        return bool(self.transport.get_write_buffer_size()) or between or self.cycle.more_body

    def check(self) -> None:
        """Drop the connection if its client has been idle for too long."""
        waits, now = self.waits_for_client(), time.monotonic()
        state = waits, self.cycle, self.transport.get_write_buffer_size()
        if state != self.state:
            self.state, self.since = state, now
        elif waits and now - self.since > MAX_WAIT:
            self.drop("slow")

    def drop(self, why: str) -> None:
        """Close the connection at once, although its client may not have read everything."""
        self.connections.discard(self)  # the loop reports later that it is gone
        self.transport.abort()
        self.dropped.labels(why).inc()
