"""Damaged requests to the service: each must be answered, or refused in a sentence, and disturb no other.

`campaign.py` runs them; a trial is a body, drawn by its number. It is a valid one of a route, of which values are
replaced, moved, repeated or left out, or bytes changed, up to four times. Every tenth time an ordinary search must
find what it found before the first.
"""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fastapi.testclient import TestClient

import crossknn as ck
from crossknn.service.app import create_app
from crossknn.service.engine import Engine

TEXTS = [
    {"id": f"d{n}", "title": f"<b>{n}", "text": f"part {n} on {topic}", "year": 2000 + n}
    for n, topic in enumerate(["archives", "threads", "files"] * 20)
]
ORDINARY = {"query": "archives on part 5", "k": 5, "budget": 20}
VALID: list[tuple[str, dict[str, Any]]] = [
    ("/search", ORDINARY | {"filter": {"year": {"gte": 2010}}, "explain": True, "deadline_ms": 900}),
    ("/search", {"query": ["threads", "files"], "budget": 15, "index": "docs", "method": "axn"}),
    ("/search", {"query": "files", "k": 2, "filter": ["d2", "d5"], "budget": 9}),
    ("/v2/rerank", {"query": "files", "documents": ["one file", "two"] * 4, "top_n": 3, "budget": 5, "model": "m"}),
    (
        "/v1/rerank",
        {"query": "files", "documents": [{"text": f"{n}", "title": "t", "embedding": [n, 1.5, -2.0]} for n in range(9)], "budget": 4},
    ),
    ("/rerank", {"query": "files", "texts": ["one", "two", "three"], "raw_scores": True, "return_text": True}),
]  # fmt: skip
HOSTILE: list[Any] = [
    *(None, True, -1, 0, 1, 41, 10**9, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf"), "", " ", "x" * 40_000),
    *("\x00", "\ud800", "\u202e", "a\nb", "<script>alert(1)</script>", "../../etc/passwd", "'; DROP TABLE scores; --"),
    *("axn(rounds=10**9)", "kriging(", "__import__('os')", "2024-01-01", [], {}, [[]], [None], {"": {}}, {"any": []}),
    *({"not": {"not": {"not": {}}}}, {"year": {"gte": "new"}}, {"year": [1, "a", None]}, ["d1", "d1"], ["nobody"]),
]  # fmt: skip


@cache
def service() -> tuple[TestClient, list[logging.LogRecord]]:
    """The service in this process, and what it logs as an error."""
    folder = Path(tempfile.mkdtemp()) / "docs"
    ck.ItemIndex.build(TEXTS, lsa=4).save(folder)
    scorer = ck.CallableScorer(
        lambda pairs: [len({*q} & {*t}) + len(t) / 99 for q, t in pairs], "letters"
    )
    app = create_app(Engine({"docs": ck.ItemIndex.load(folder)}, scorer))
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign]
    logging.getLogger("crossknn.service").addHandler(handler)
    return TestClient(app, raise_server_exceptions=False), logged


def ordinary() -> str:
    """What an ordinary search finds."""
    return str(service()[0].post("/search", json=ORDINARY).json()["results"])


undisturbed = cache(ordinary)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to all values within."""
    yield path
    parts = dict(enumerate(value)) if isinstance(value, list) else value
    for key, inner in parts.items() if isinstance(parts, dict) else ():
        yield from places(inner, (*path, key))


def damaged(body: Any, rng: np.random.Generator) -> Any:
    """The body with one change."""
    whole = {"body": json.loads(json.dumps(body))}
    found = list(places(whole))[1:]
    *way, last = found[int(rng.integers(len(found)))]
    at: Any = whole
    for key in way:
        at = at[key]
    match int(rng.integers(6)):
        case 0 if way:
            del at[last]
        case 1:
            at[last] = [at[last]] * int(rng.choice([1, 2, 1100]))
        case 2 if isinstance(at[last], dict):
            at[last][f"unknown {rng.integers(9)}"] = HOSTILE[int(rng.integers(len(HOSTILE)))]
        case 3:
            other = found[int(rng.integers(len(found)))]
            moved: Any = whole
            for key in other:
                moved = moved[key]
            at[last] = json.loads(json.dumps(moved))
        case _:
            at[last] = HOSTILE[int(rng.integers(len(HOSTILE)))]
    return whole["body"]


def cut(data: bytes, rng: np.random.Generator) -> bytes:
    """The bytes with one change."""
    at = int(rng.integers(len(data)))
    noise = rng.bytes(int(rng.integers(1, 20)))
    begun = data[:at] + noise
    ways = data[:at], begun + data[at:], begun + data[len(begun) :], data * 2, b"[" * 5000 + data
    return ways[int(rng.integers(len(ways)))]


def trial(number: int) -> dict[str, Any]:
    """A body, and what became of it."""
    rng = np.random.default_rng([7, number])
    (path, body), (client, logged) = VALID[number % len(VALID)], service()
    before = undisturbed()
    for _ in range(int(rng.integers(1, 4))):
        body = damaged(body, rng)
    data = json.dumps(body).encode()
    if rng.random() < 0.2:
        data = cut(data, rng)
    logged.clear()
    answer = client.post(path, content=data, headers={"content-type": "application/json"})
    verdict = "answered" if answer.status_code < 300 else "refused"
    told, status = answer.json(), answer.status_code
    if (verdict == "refused" and not (400 <= status < 500 and told["error"]["message"])) or logged:
        verdict = "failed"
    elif number % 10 == 0 and ordinary() != before:
        verdict = "disturbed another"
    error = told["error"]["message"] if status >= 400 else ""
    return {"path": path, "status": status, "verdict": verdict, "error": error}
