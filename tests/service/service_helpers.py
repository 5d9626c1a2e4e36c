"""A service over small indexes, with a scorer that the tests can watch and break."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

from fastapi.testclient import TestClient

import crossknn as ck
from crossknn.service.app import create_app
from crossknn.service.connections import BoundedServer, listening
from crossknn.service.engine import Engine

TEXTS = [
    {
        "id": f"{verb} {noun}",
        "text": f"how to {verb} a {noun} {'very ' * (n % 3)}fast",
        "lang": "en" if n % 2 else "de",
        "year": 2000 + n,
    }
    for n, (verb, noun) in enumerate(
        (verb, noun)
        for verb in ("zip", "sort", "copy", "lock", "read", "send", "draw", "hash")
        for noun in ("file", "list", "folder", "thread", "page")
    )
]
QUERIES = ["sort the list", "lock one thread", "draw a page", "read the folder"]


class Words:
    """Scores by common words; `batches` are those it was given, `fault` may raise for one."""

    def __init__(self):
        self.batches, self.fault, self.gate = [], lambda pairs: None, threading.Event()
        self.gate.set()

    def __call__(self, pairs):
        self.gate.wait(10)
        self.batches.append(list(pairs))
        self.fault(pairs)
        return [len({*q.split()} & {*t.split()}) + len(t) / 100 for q, t in pairs]


def docs():
    return {"docs": ck.ItemIndex.build(TEXTS, lsa=4)}


@contextmanager
def served(indexes=None, fn=None, *, keys=(), **settings):
    """A client of the application."""
    engine = Engine(indexes or docs(), ck.CallableScorer(fn or Words(), "words"), **settings)
    app = create_app(engine, keys=keys)
    with TestClient(app, raise_server_exceptions=False) as client:
        client.engine = engine
        yield client


@contextmanager
def running(indexes=None, fn=None, *, keys=(), **settings):
    """The port of a service that a thread runs."""
    engine = Engine(indexes or docs(), ck.CallableScorer(fn or Words(), "words"), **settings)
    server = BoundedServer(create_app(engine, keys=keys), engine)
    with listening("127.0.0.1", 0) as sockets:
        thread = threading.Thread(target=server.run, args=(sockets,))
        thread.start()
        port = sockets[0].getsockname()[1]
        wait_for(f"http://127.0.0.1:{port}/readyz")
        yield port
        server.should_exit = True
        thread.join(10)
        assert not thread.is_alive()


@contextmanager
def command(folder, *options, **process_options):
    """A process of `crossknn serve` in a folder of indexes."""
    arguments = [sys.executable, "-m", "crossknn", "serve", *options]
    process_options |= {"cwd": folder, "env": os.environ | {"COLUMNS": "300"}}
    with subprocess.Popen(
        arguments, stderr=subprocess.PIPE, text=True, **process_options
    ) as process:
        yield process
        process.kill()


def url_of(process):
    """The address that a process says it serves at, when it does."""
    url = re.search(r"http://\S+", process.stderr.readline())[0]
    assert wait_for(f"{url}/readyz")["status"] == "ready"
    return url


def ask(url, body=None, key=None):
    headers = {"Content-Type": "application/json"} | (
        {"Authorization": f"Bearer {key}"} if key else {}
    )
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=20) as answer:
        return json.loads(answer.read())


def wait_for(url):
    for _ in range(1200):
        try:
            return ask(url)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise TimeoutError(url)


def until(condition):
    """Wait for something that happens elsewhere."""
    end = time.monotonic() + 15
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def connect(port):
    return socket.create_connection(("127.0.0.1", port), timeout=10)


def send(connection, body, path="/search", **headers):
    """Write a request, and read no answer."""
    data = json.dumps(body).encode()
    given = {"Host": "localhost", "Content-Length": len(data), "Content-Type": "application/json"}
    head = "".join(f"{name}: {value}\r\n" for name, value in (given | headers).items())
    connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data)


def read_all(connection):
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def counted(port, what):
    """A number of /metrics, asked by a connection of its own."""
    with connect(port) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        found = re.search(rf"^{re.escape(what)} (\S+)$".encode(), read_all(connection), re.M)
    return float(found[1]) if found else 0.0


def ids(answer):
    return [[hit["id"] for hit in found["hits"]] for found in answer.json()["results"]]


def plain(index, fn, queries, **options):
    """What `Searcher.search` finds."""
    found = ck.Searcher(index, fn).search(queries, **options)
    return [[hit.id for hit in hits] for hits in found]


def refusal(answer, status):
    """The sentence of an error."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error = answer.json()["error"]
    assert error["status"] == status
    return error["message"]
