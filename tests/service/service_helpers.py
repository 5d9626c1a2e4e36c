"""A service over small indexes, with a scorer that the tests can watch and break."""

from __future__ import annotations

import threading
from contextlib import contextmanager

from fastapi.testclient import TestClient

import crossknn as ck
from crossknn.service.app import create_app
from crossknn.service.engine import Engine, Settings

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


@contextmanager
def served(indexes, fn, *, keys=(), **settings):
    engine = Engine(indexes, ck.CallableScorer(fn, "words"), Settings(**settings))
    app = create_app(engine, keys=keys)
    with TestClient(app, raise_server_exceptions=False) as client:
        client.engine = engine
        yield client


def ids(answer):
    return [[hit["id"] for hit in found["hits"]] for found in answer.json()["results"]]


def plain(index, fn, queries, **options):
    """What `Searcher.search` finds."""
    found = ck.Searcher(index, fn).search(queries, **options)
    return [[hit.id for hit in hits] for hits in found]
