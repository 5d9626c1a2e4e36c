"""The address of a service: its sockets are opened before it says that it serves."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from crossknn.errors import AddressError
from crossknn.service.connections import BACKLOG

_WHY = {
    errno.EADDRINUSE: "it is in use: stop what listens there, or give another --port",
    errno.EADDRNOTAVAIL: "this machine has no such address: give another --host",
    errno.EINVAL: "it is no address to listen on: give another --host",
    errno.EACCES: "ports below 1024 need rights that this user lacks: give another --port",
    errno.EPERM: "this user may not: give another --port",
}
_OF_ONE_FAMILY = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}  # a machine may have no IPv6


@contextmanager
def bound_to(host: str, port: int) -> Iterator[list[socket.socket]]:
    """Sockets bound to all addresses of a host name; with port 0 all have the same free port.

    Raises `AddressError`: the name is unknown, or none of its addresses can be had.
    """
    with ExitStack() as opened:
        sockets = _bind(host, port)
        for each in sockets:
            opened.callback(each.close)
        yield sockets


def _bind(host: str, port: int) -> list[socket.socket]:
    bound = list[socket.socket]()
    failure: OSError | None = None
    try:
        for family, *address in _addresses(host, port):
            try:
                bound.append(_bound(family, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in _OF_ONE_FAMILY:
                    raise
                failure = error
            else:
                port = bound[0].getsockname()[1]
        if not bound and failure is not None:
            raise failure
    except OSError as error:
        for each in bound:
            each.close()
        raise _refused(host, port, error) from error
    return bound


def listen(sockets: Sequence[socket.socket]) -> None:
    """Take connections; `AddressError` where another process has been faster."""
    for bound in sockets:
        try:
            bound.listen(BACKLOG)
        except OSError as error:
            host, port = bound.getsockname()[:2]
            raise _refused(host, port, error) from error


def url(host: str, sockets: Sequence[socket.socket]) -> str:
    """The address for a browser."""
    return f"http://{f'[{host}]' if ':' in host else host}:{sockets[0].getsockname()[1]}"


def _addresses(host: str, port: int) -> list[tuple[int, ...]]:
    """(family, host, port, ...) of a name."""
    if not host.strip():
        raise AddressError("--host is empty: give an address, such as 127.0.0.1 or 0.0.0.0")
    flags = socket.AI_PASSIVE
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is no name of a machine"
        raise AddressError(f"the host {host!r:.80} cannot be found: {why}") from error
    return [*dict.fromkeys((family, *address) for family, _, _, _, address in found)]


def _bound(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            with suppress(OSError, AttributeError):
                made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def _refused(host: str, port: int, error: OSError) -> AddressError:
    why = _WHY.get(error.errno or 0) or error.strerror or str(error)
    return AddressError(f"the service cannot listen on {host}, port {port}: {why}")
