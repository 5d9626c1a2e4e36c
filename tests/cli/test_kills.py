"""A killed command loses at most the requests under way; the same command goes on."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

import crossknn as ck
from crossknn.cli.app import run
from crossknn.index.stored import StoredMatrix

N, QUERIES = 40, 60
IN_FLIGHT = 4 * 64
"""Pairs of the requests under way: an endpoint's requests at once, of so many items each."""


class Counting(BaseHTTPRequestHandler):
    """Scores by the length of the texts, slowly, and writes down every pair it was asked for."""

    asked: list[tuple[str, str]]

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        documents = asked.get("documents") or asked.get("texts")
        self.asked += [(asked["query"], text) for text in documents]
        time.sleep(0.02)
        results = [
            {"index": i, "relevance_score": float(len(asked["query"]) * len(text))}
            for i, text in enumerate(documents)
        ]
        body = json.dumps({"results": results}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError, ConnectionResetError):  # the client was killed
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Counting.asked = []
    items = [{"id": f"d{i}", "text": f"part {i} on topic {i % 5}"} for i in range(N)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    (tmp_path / "queries.txt").write_text("".join(f"query {i}\n" for i in range(QUERIES)))
    assert run(["index", "build", "docs.jsonl", "docs.index", "--encoder", "none"]) == 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Counting)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/rerank"
    yield ["--scorer", url, "--model", "length"]
    server.shutdown()


def killed(command: list[str], pairs: int) -> int:
    """Run the command, kill it after so many pairs; how many it had asked for."""
    process = subprocess.Popen([sys.executable, "-m", "crossknn", *command])
    deadline = time.monotonic() + 60
    while len(Counting.asked) < pairs and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=30)
    time.sleep(0.2)  # the endpoint still answers what it was asked
    assert pairs <= len(Counting.asked) < QUERIES * N
    return len(Counting.asked)


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [1, 400, 1500])
def test_a_killed_collection_goes_on(endpoint, capsys, pairs):
    command = ["collect", "docs.index", "--queries", "queries.txt", "--out", "m.npz", *endpoint]
    before = killed(command, pairs)
    capsys.readouterr()
    assert run([*command, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert QUERIES * N - before <= made["calls"] <= QUERIES * N - before + IN_FLIGHT
    assert len(Counting.asked) - len(set(Counting.asked)) <= IN_FLIGHT
    scores = StoredMatrix.load("m.npz").scores
    texts = ck.ItemIndex.load("docs.index").items.texts
    assert scores.tolist() == [[len(f"query {i}") * len(t) for t in texts] for i in range(QUERIES)]
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 0


@pytest.mark.slow
def test_a_killed_fit_goes_on(endpoint, capsys):
    command = ["fit", "docs.index", "als", "--queries", "queries.txt", "--per", "30", *endpoint]
    before = killed(command, 500)
    capsys.readouterr()
    assert run([*command, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["cost"]["calls"] == 30 * QUERIES
    assert 30 * QUERIES - before <= made["calls"] <= 30 * QUERIES - before + IN_FLIGHT
