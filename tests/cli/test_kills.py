"""A killed command loses at most the requests under way; the same command goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from faulty_server import Faulty, good, score
from tiny_models import jsonl

import crossknn as ck
from crossknn.cli.app import run
from crossknn.index.stored import StoredMatrix

N, QUERIES = 40, 60
IN_FLIGHT = 4 * 64
"""Pairs of the requests under way: an endpoint's requests at once, of so many items each."""


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    """The options that name it, and every pair that it was asked for."""
    asked = []

    def count(body):
        asked.extend((body["query"], text) for text in body.get("documents") or body["texts"])
        return [0.02, good(body)]

    monkeypatch.chdir(tmp_path)
    items = [{"id": f"d{i}", "text": f"part {i} on topic {i % 5}"} for i in range(N)]
    jsonl(Path("docs.jsonl"), items)
    Path("queries.txt").write_text("".join(f"query {i}\n" for i in range(QUERIES)))
    assert run(["index", "build", "docs.jsonl", "docs.index", "--encoder", "none"]) == 0
    server = Faulty(count)
    yield ["--scorer", server.url, "--endpoint-model", "sums"], asked
    server.close()


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [1, 400, 1500])
def test_a_killed_collection_goes_on(endpoint, capsys, pairs):
    given, asked = endpoint
    command = ["collect", "docs.index", "--queries", "queries.txt", "--out", "m.npz", *given]
    process = subprocess.Popen([sys.executable, "-m", "crossknn", *command])
    deadline = time.monotonic() + 60
    while len(asked) < pairs and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    time.sleep(0.2)  # the endpoint still answers what it was asked
    assert pairs <= len(asked) < QUERIES * N
    before = len(asked)
    for least in (QUERIES * N - before, 0):
        capsys.readouterr()
        assert run([*command, "--json"]) == 0
        calls = json.loads(capsys.readouterr().out)["calls"]
        assert least <= calls <= least + (IN_FLIGHT if least else 0)
    assert len(asked) - len(set(asked)) <= IN_FLIGHT
    texts = ck.ItemIndex.load("docs.index").items.texts
    wanted = [[score(f"query {i}", text) for text in texts] for i in range(QUERIES)]
    np.testing.assert_allclose(StoredMatrix.load("m.npz").scores, wanted, rtol=1e-6)
