"""Somebody starts the service where it cannot listen: one sentence, exit code 7, nothing served."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys

import pytest
from service_helpers import TEXTS, ask, wait_for

import crossknn as ck
from crossknn.errors import AddressError
from crossknn.service.address import listening

OTHERS = "203.0.113.7"  # an address for documentation, of no machine


@pytest.fixture
def serve(tmp_path):
    ck.ItemIndex.build(TEXTS, lsa=4).save(tmp_path / "docs")
    started = []

    def start(*options):
        command = [sys.executable, "-m", "crossknn", "serve", "docs", *options]
        process = subprocess.Popen(
            command,
            cwd=tmp_path,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"COLUMNS": "300"},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def taken():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def refused(process, told):
    _, said = process.communicate(timeout=60)
    [line] = said.strip().splitlines()
    assert process.returncode == 7
    assert line.startswith("crossknn: ")
    assert told in line
    assert "serving" not in line


def test_the_port_is_in_use(serve, taken):
    """The port is another process's."""
    refused(serve("--port", f"{taken}"), f"127.0.0.1, port {taken}: it is in use: stop what")


def test_the_port_of_localhost_is_in_use(taken):
    """A name that stands for addresses of two families is refused for the one that is taken."""
    with pytest.raises(AddressError, match=f"port {taken}: it is in use"):
        listening("localhost", taken).__enter__()


@pytest.mark.parametrize(
    ("host", "told"),
    [
        (OTHERS, "no such address: give another --host"),
        ("no-such-host.invalid", "'no-such-host.invalid' cannot be found"),
        ("a" * 80, "cannot be found"),
        ("", "--host is empty"),
        ("127.0.0.1:8000", "cannot be found"),
        ("::ffff:127.0.0.1", "give another --host"),
    ],
)
def test_the_host_is_not_of_this_machine(host, told):
    """The address is another machine's, or none."""
    with pytest.raises(AddressError, match=told), listening(host, 0):
        pass


@pytest.mark.slow
def test_two_services_at_one_port(serve):
    """The second is refused, the first serves on, at the free port that it says it has."""
    first = serve("--port", "0")
    url = re.search(r"http://\S+", first.stderr.readline())[0]
    assert wait_for(f"{url}/readyz")["status"] == "ready"
    refused(serve("--port", url.rsplit(":", 1)[1]), "it is in use")
    assert ask(f"{url}/search", {"query": "sort a list", "budget": 5})["n_scored"] == 5
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=20)


@pytest.mark.slow
def test_an_address_of_ipv6_is_written_for_a_browser(serve):
    """`--host ::1` is served at http://[::1]:PORT."""
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    url = re.search(r"http://\S+", serve("--host", "::1", "--port", "0").stderr.readline())[0]
    assert url.startswith("http://[::1]:")
    assert wait_for(f"{url}/readyz")["status"] == "ready"
