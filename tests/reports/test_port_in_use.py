"""Somebody starts the service where it cannot listen: one sentence, exit code 7, nothing served."""

from __future__ import annotations

import signal
import socket

import pytest
from service_helpers import ask, command, docs, url_of

from crossknn.errors import AddressError
from crossknn.service.address import listening

OTHERS = "203.0.113.7"  # an address for documentation, of no machine


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    docs()["docs"].save(folder / "docs")
    return folder


@pytest.fixture
def taken():
    with socket.create_server(("127.0.0.1", 0)) as other:
        yield other.getsockname()[1]


def check_refused(folder, port):
    with command(folder, "docs", "--port", f"{port}") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 7
    assert said.startswith(f"crossknn: the service cannot listen on 127.0.0.1, port {port}: it is")
    assert said.count("\n") == 1
    assert "serving" not in said


def test_the_port_is_in_use(folder, taken):
    """The port is another process's."""
    check_refused(folder, taken)


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("localhost", "it is in use: stop what"),  # of one of the two families of addresses
        (OTHERS, "no such address: give another --host"),
        ("no-such-host.invalid", "'no-such-host.invalid' cannot be found"),
        ("a" * 80, "cannot be found"),
        ("", "--host is empty"),
        ("127.0.0.1:8000", "cannot be found"),
        ("::ffff:127.0.0.1", "give another --host"),
    ],
)
def test_the_host_is_not_of_this_machine(taken, host, told):
    """The address is another machine's, or none, or another process listens at one of the name's."""
    with pytest.raises(AddressError, match=told), listening(host, taken):
        pass


@pytest.mark.slow
def test_two_services_at_one_port(folder):
    """The second is refused, the first serves on, at the free port that it says it has."""
    with command(folder, "docs", "--port", "0") as first:
        url = url_of(first)
        check_refused(folder, int(url.rsplit(":", 1)[1]))
        assert ask(f"{url}/search", {"query": "sort a list", "budget": 5})["n_scored"] == 5
        first.send_signal(signal.SIGTERM)
        first.communicate(timeout=20)


@pytest.mark.slow
def test_an_address_of_ipv6_is_written_for_a_browser(folder):
    """`--host ::1` is served at http://[::1]:PORT."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with command(folder, "docs", "--host", "::1", "--port", "0") as process:
        assert url_of(process).startswith("http://[::1]:")
