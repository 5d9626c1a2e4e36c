"""`crossknn scores` and `crossknn-lab analyze` through the command line, and asking an endpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from commands import run

from crossknn.index.stored import StoredMatrix, read_arrays

N = 40
TOPICS = ("archives", "threads", "files", "strings", "queues")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    items = [{"id": f"d{i}", "text": f"part {i} on {TOPICS[i % 5]}"} for i in range(N)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    queries = [{"id": f"q{i}", "text": f"about {t}"} for i, t in enumerate(TOPICS)]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(q) + "\n" for q in queries))
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    assert run(["index", "docs.jsonl", "docs.index", "--encoder", "none"]) == 0
    return tmp_path


def output(capsys, *arguments: str) -> list[dict]:
    capsys.readouterr()
    code = run(list(arguments))
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return [json.loads(line) for line in printed.out.splitlines()]


class Rerank(BaseHTTPRequestHandler):
    """Scores by length of the texts, slowly, and writes down every pair it was asked for."""

    asked: list[tuple[str, str]]

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        documents = asked.get("documents") or asked.get("texts")
        self.asked += [(asked["query"], text) for text in documents]
        time.sleep(0.02)
        results = [
            {"index": i, "relevance_score": float(len(asked["query"]) * len(t) + i % 2)}
            for i, t in enumerate(documents)
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
def endpoint():
    Rerank.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Rerank)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/rerank"
    server.shutdown()


def test_a_matrix_is_made_replayed_and_analyzed(folder, capsys):
    make = ("scores", "docs.index", "--queries", "queries.jsonl", "--out", "m.npz", "--json")
    (made,) = output(capsys, *make, "--qrels", "qrels.tsv", "--anchors", "3", "--item-item", "4")
    assert (made["queries"], made["anchors"], made["item_queries"]) == (5, 3, 4)
    assert (made["items"], made["dtype"], made["complete"]) == (N, "float16", True)
    assert made["calls"] == 9 * N
    arrays = read_arrays(folder / "m.npz")
    assert arrays["labels"].tolist() == [-1, 1, -1, -1, -1]
    (again,) = output(capsys, *make)
    assert (again["calls"], again["anchors"], again["item_queries"]) == (0, 2, 4)
    rows = output(
        capsys,
        *("replay", "m.npz", "--methods", "exact, rerank(retriever=bm25), itemcur, fixeditem"),
        *("--budgets", "10", "-k", "5"),
    )
    assert [row["n_queries"] for row in rows] == [3] * 4
    assert rows[0]["recall"] == 1

    (found,) = output(
        capsys, "analyze", "m.npz", "--out", "figures", "--k-q", "2,3", "--k-i", "3,9", "--json"
    )
    assert (found["matrix"], found["n_queries"], found["n_items"]) == ("m", 5, N)
    assert 1 <= found["effective_rank"] <= found["rank"] <= 5
    report = json.loads((folder / "figures" / "analysis.json").read_text())
    cells = report["matrices"]["m"]["grid"]
    assert [(c["k_q"], c["k_i"]) for c in cells] == [(2, 3), (2, 9), (3, 3), (3, 9)]
    assert report["options"]["retrieved"] == 10
    for name in ("recall", "error", "histogram", "singular-values"):
        assert (folder / "figures" / f"{name}.png").read_bytes()[:4] == b"\x89PNG"


def test_several_at_a_time_make_the_same_matrix(folder):
    make = [*SCORES[:2], *QUERIES, "--item-item", "3"]
    assert run([*make, "--out", "one.npz", "--workers", "1"]) == 0
    assert run([*make, "--out", "three.npz", "--workers", "3"]) == 0
    one, three = read_arrays("one.npz"), read_arrays("three.npz")
    assert one.keys() == three.keys()
    for key in one:
        np.testing.assert_array_equal(one[key], three[key])


def test_text_output_can_be_read(folder, capsys):
    make = ["scores", "docs.index", "--queries", "queries.jsonl", "--out", "m.npz"]
    assert run([*make, "--max-calls", "50"]) == 0
    shown = capsys.readouterr().out
    assert "not finished: 50 cross-encoder calls" in shown
    assert not (folder / "m.npz").exists()
    assert run(make) == 0
    shown = capsys.readouterr().out
    assert "m.npz: 5 queries (2 of them anchors) and 0 items in a query's place, x 40" in shown
    assert f"{5 * N - 50} cross-encoder calls" in shown
    two = [
        "analyze",
        "m.npz",
        "m.npz",
        "--out",
        "f",
        "--k-q",
        "2",
        "--k-i",
        "5",
        "--oracle",
        "--raw",
    ]
    assert run([*two, "--names", "[CLS]-CE, [EMB]-CE"]) == 0
    shown = capsys.readouterr().out
    assert "eff. rank" in shown
    assert "[CLS]-CE" in shown
    assert "[EMB]-CE" in shown


def test_aligning_with_an_endpoint_goes_on_if_its_model_is_named(folder, endpoint, capsys):
    asking = ("align", "docs.index", "--queries", "queries.jsonl", "--per", "8", "--json")
    named = (*asking, "--scorer", endpoint, "--model", "m")
    (first,) = output(capsys, *named, "--max-calls", "25")
    (made,) = output(capsys, *named)
    assert (first["calls"], made["calls"], made["reused"]) == (25, 15, 25)
    assert len(Rerank.asked) == len(set(Rerank.asked)) == 40
    for other in (
        (*asking, "--scorer", endpoint),
        (*named[:-1], "another"),
        (*asking, "--model", "m"),
    ):
        assert run(list(other)) == 2
    assert len(Rerank.asked) == 40


def test_a_killed_run_goes_on_and_no_pair_is_paid_twice(folder, endpoint, capsys):
    queries = "".join(f"query number {i}\n" for i in range(60))
    (folder / "many.txt").write_text(queries)
    make = ["scores", "docs.index", "--queries", "many.txt", "--out", "m.npz", "--scorer", endpoint]
    make += ["--model", "length"]
    process = subprocess.Popen(
        [sys.executable, "-m", "crossknn", *make], stderr=subprocess.PIPE, env={**os.environ}
    )
    deadline = time.monotonic() + 60
    while len(Rerank.asked) < 400 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    killed = len(Rerank.asked)
    assert 400 <= killed < 60 * N
    assert not (folder / "m.npz").exists()
    assert (folder / "m.npz.partial").is_dir()
    (made,) = output(capsys, *make, "--dtype", "float32", "--json")
    # A request that was under way when the process was killed is lost with its answer.
    assert 60 * N - killed <= made["calls"] <= 60 * N - killed + 2 * N
    assert len(Rerank.asked) - len(set(Rerank.asked)) <= 2 * N
    data = StoredMatrix.load(folder / "m.npz")
    assert data.scores.shape == (60, N)
    assert (data.scores > 0).all()
    assert not (folder / "m.npz.partial").exists()
    (again,) = output(capsys, *make, "--json")
    assert again["calls"] == 0


SCORES = ["scores", "docs.index", "--out", "m.npz"]
QUERIES = ["--queries", "queries.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (SCORES, 2, "nothing to score: give --queries FILE, --item-item N, or both"),
        ([*SCORES, "--item-item", "0"], 2, "item-item is 0; it must be 1 or more"),
        ([*SCORES, "--item-item", "41"], 2, "item-item is 41, but the index has 40 items"),
        ([*SCORES, "--item-item", "3", "--anchors", "1"], 2, "--anchors belongs to queries"),
        ([*SCORES, "--item-item", "3", "--qrels", "qrels.tsv"], 2, "--qrels belongs to queries"),
        ([*SCORES, *QUERIES, "--anchors", "5"], 2, "anchors is 5, with 5 queries"),
        ([*SCORES, *QUERIES, "--max-calls", "0"], 2, "max-calls is 0"),
        ([*SCORES, *QUERIES, "--workers", "0"], 2, "workers is 0; it must be 1 or more"),
        ([*SCORES, *QUERIES, "--dtype", "int8"], 2, "dtype is 'int8'; it must be float16 or"),
        ([*SCORES, *QUERIES, "--model", "m"], 2, "give it with --scorer URL"),
        ([*SCORES, *QUERIES, "--scorer", "http://h/x"], 2, "name its model with --model NAME"),
        ([*SCORES, "--queries", "empty.txt"], 2, "empty.txt"),
        ([*SCORES, "--queries", "absent.txt"], 2, "absent.txt"),
        ([*SCORES, *QUERIES, "--qrels", "other.tsv"], 2, "no query is judged in the qrels"),
        (["scores", "absent", "--out", "m.npz", *QUERIES], 6, "there is no index absent"),
        (["scores", "docs.index", "--out", "m.txt", *QUERIES], 2, "must end in .npz"),
        (["scores", "docs.index", "--out", "a/m.npz", *QUERIES], 2, "there is no folder a"),
        (
            ["scores", "docs.index", "--out", "own.npz", *QUERIES],
            2,
            "own.npz holds scores of a cross-encoder that it",
        ),
        (["scores", "docs.index", "--out", "bad.npz", *QUERIES], 2, "is not a readable .npz file"),
        (["analyze", "absent.npz", "--out", "f"], 2, "there is no file absent.npz"),
        (["analyze", "own.npz", "--out", "a/f"], 2, "there is no folder a"),
        (["analyze", "own.npz", "--out", "bad.npz"], 2, "bad.npz is a file; give a folder"),
        (["analyze", "own.npz", "own.npz", "--out", "f"], 2, "own.npz is given twice"),
        (["analyze", "own.npz", "--out", "f", "--names", "a,b"], 2, "give 1, separated by"),
        (["analyze", "own.npz", "--out", "f", "--k-q", "0"], 2, "k-q has 0; it must be 1"),
        (["analyze", "own.npz", "--out", "f", "--k-q", "6"], 2, "must be 1 to 5 of the 6 queries"),
        (["analyze", "own.npz", "--out", "f", "--retrieved", "0"], 2, "retrieved is 0"),
        (["analyze", "one.npz", "--out", "f"], 2, "one query is not enough"),
    ],
)
def test_wrong_input_is_answered_in_a_sentence(folder, capsys, arguments, code, words):
    (folder / "empty.txt").write_text("")
    (folder / "other.tsv").write_text("query-id\tcorpus-id\tscore\nq9\td1\t1\n")
    (folder / "bad.npz").write_bytes(b"not a zip")
    np.savez(folder / "own.npz", scores=np.random.default_rng(0).normal(size=(6, 20)))
    np.savez(folder / "one.npz", scores=np.ones((1, 20)))
    before = sorted(p.name for p in folder.iterdir())
    capsys.readouterr()
    assert run(arguments) == code
    said = capsys.readouterr()
    assert words in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""
    assert sorted(p.name for p in folder.iterdir()) == before


def test_a_missing_plots_extra(folder, capsys, monkeypatch):
    import importlib.util

    monkeypatch.setattr("crossknn.cli.options.find_spec", lambda name: None)
    assert importlib.util.find_spec("matplotlib") is not None
    np.savez(folder / "own.npz", scores=np.random.default_rng(0).normal(size=(6, 20)))
    capsys.readouterr()
    assert run(["analyze", "own.npz", "--out", "f"]) == 5
    assert "pip install 'crossknn[plots]'" in capsys.readouterr().err
    assert not (folder / "f").exists()
