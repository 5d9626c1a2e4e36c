"""Open the sockets of a service before it reports that it is serving."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from crossknn.errors import AddressError

BACKLOG = 2048  # connections that the system keeps until they are accepted
_WHY = {
    errno.EADDRINUSE: "it is in use: stop what listens there, or give another --port",
    errno.EADDRNOTAVAIL: "this machine has no such address: give another --host",
    errno.EINVAL: "it is no address to listen on: give another --host",
    errno.EACCES: "ports below 1024 need rights that this user lacks: give another --port",
    errno.EPERM: "this user may not: give another --port",
}
_NO_SUCH_FAMILY = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}  # such as IPv6


@contextmanager
def listening(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Open sockets on all addresses of a host name; with port 0 all get the same free port.

    Raises `AddressError` if the name is unknown, or none of its addresses can be used.
    """
    sockets = list[socket.socket]()
    missing: OSError | None = None
    with ExitStack() as opened:
        try:
            for family, (address, _, *more) in _addresses(host, port):
                try:
                    new = socket.create_server(
                        (address, port, *more), family=family, backlog=BACKLOG
                    )
                except OSError as error:
                    if error.errno not in _NO_SUCH_FAMILY:
                        raise
                    missing = error
                    continue
                sockets.append(opened.enter_context(new))
                port = new.getsockname()[1]
            if missing is not None and not sockets:
                raise missing
        except OSError as error:
            why = _WHY.get(error.errno or 0) or error.strerror or str(error)
            message = f"the service cannot listen on {host}, port {port}: {why}"
            raise AddressError(message) from error
        yield sockets


def url(host: str, sockets: list[socket.socket]) -> str:
    """Return the address for a browser."""
    return f"http://{f'[{host}]' if ':' in host else host}:{sockets[0].getsockname()[1]}"


def _addresses(host: str, port: int) -> list[tuple[int, tuple[object, ...]]]:
    """Return (family, address) for each address of a name."""
    if not host.strip():
        raise AddressError("--host is empty: give an address, such as 127.0.0.1 or 0.0.0.0")
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is no name of a machine"
        raise AddressError(f"the host {host!r:.80} cannot be found: {why}") from error
    return [*dict.fromkeys((family, address) for family, _, _, _, address in entries)]
