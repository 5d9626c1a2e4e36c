"""Ctrl-C at any moment: one sentence, exit code 130, and what was scored so far is kept."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request

import pytest
from tiny_models import jsonl

import crossknn as ck

WORDS = ("copy", "move", "zip", "sort", "lock", "thread", "file", "list", "queue", "date", "time")
SEARCH = ("search", "docs.index", "--queries", "queries.jsonl", "--budget", "300")
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    PORT = free.getsockname()[1]
MOMENTS = random.Random(42)
"""Draws when interrupts come; those of the slow test come from the same, later."""

IN_PYTHON = """
import crossknn as ck
index = ck.ItemIndex.load("docs.index")
scorer = ck.StoredScorer(ck.CrossEncoder(threads=2), index.scores)
try:
    {call}
except KeyboardInterrupt:
    raise SystemExit(130)
"""
CALLS = {
    "search": "ck.Searcher(index, scorer).search('queries.jsonl', budget=300)",
    "rerank": "[ck.rerank(q, index.items.texts, 200, scorer=scorer) for q in index.items.texts]",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("interrupted")
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=60)) for _ in range(300)]
    jsonl(where / "docs.jsonl", ({"text": text} for text in texts))
    jsonl(where / "queries.jsonl", ({"id": str(i), "text": texts[i][:40]} for i in range(300)))
    ck.ItemIndex.build(texts).save(where / "docs.index")
    return where


def start(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def interrupted(process):
    """The exit code and what was said on standard error."""
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)  # with its standard input open
    return process.returncode, process.communicate()[1]


def check(folder, *command, moment):
    process = start(folder, "-m", "crossknn", *command)
    time.sleep(moment)
    assert process.poll() is None, "it ended before it could be interrupted"
    code, said = interrupted(process)
    assert code == 130, said
    lines = [line for line in said.splitlines() if not line.startswith("scoring: ")]
    assert len(lines) == 1, said
    assert lines[0].startswith("crossknn: interrupted; no file is damaged"), said


@pytest.mark.parametrize("moment", [MOMENTS.uniform(0.2, 2.5) for _ in range(3)])
def test_a_search_is_interrupted_while_it_starts_and_while_it_scores(folder, moment):
    check(folder, *SEARCH, moment=moment)


@pytest.mark.slow
def test_a_search_is_interrupted_fifty_times(folder):
    for _ in range(50):
        check(folder, *SEARCH, moment=MOMENTS.uniform(0.1, 4))


@pytest.mark.slow
def test_collecting_is_interrupted_ten_times(folder):
    for _ in range(10):
        command = ("collect", "docs.index", "--queries", "queries.jsonl")
        check(folder, *command, moment=MOMENTS.uniform(0.1, 3))


def when_scored(folder, process, more=30):
    """Wait until the process has kept so many scores; returns how many there are."""
    scores = ck.ItemIndex.load(folder / "docs.index").scores
    before = len(scores)
    while (now := len(scores)) < before + more:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    return now


def test_the_scores_of_an_interrupted_search_are_kept(folder):
    process = start(folder, "-m", "crossknn", *SEARCH, "--no-learn", "--seed", "1")
    kept = when_scored(folder, process)
    assert interrupted(process)[0] == 130
    assert len(ck.ItemIndex.load(folder / "docs.index").scores) >= kept


@pytest.mark.parametrize("call", CALLS)
def test_python_ends_by_itself_while_threads_of_the_model_run(folder, call):
    process = start(folder, "-c", IN_PYTHON.format(call=CALLS[call]))
    when_scored(folder, process)
    code, said = interrupted(process)
    assert (code, said) == (130, "")


def test_a_service_is_interrupted_while_it_searches(folder):
    process = start(folder, "-m", "crossknn", "serve", "docs.index", "--port", str(PORT))
    while not answers("/healthz"):
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    body = {"queries": ["zip files", "sort dates", "lock threads"], "budget": {"per_query": 500}}
    asking = threading.Thread(target=answers, args=("/search", body))
    asking.start()
    when_scored(folder, process)
    code, said = interrupted(process)
    asking.join()
    assert code == 130, said
    assert len(said.strip().splitlines()) == 2, said  # that it serves, and that it was interrupted


def test_an_impatient_user_of_a_service(folder):
    """Ctrl-C twice ended a service with a traceback."""
    process = start(folder, "-m", "crossknn", "serve", "docs.index", "--port", "0")
    assert process.stderr.readline().startswith("serving")
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    time.sleep(0.15)
    code, said = interrupted(process)
    assert code == 130, said
    assert len(said.strip().splitlines()) == 1, said


def greeted(folder):
    """An MCP server that has answered its client's greeting."""
    process = start(folder, "-m", "crossknn", "mcp", "docs.index")
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello |= {"clientInfo": {"name": "a test", "version": "1"}}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    process.stdin.write(json.dumps(asked) + "\n")
    process.stdin.flush()
    assert "serverInfo" in process.stdout.readline()
    return process


def test_mcp_is_interrupted_while_it_waits_for_its_client(folder):
    process = greeted(folder)
    code, said = interrupted(process)
    assert code == 130, said
    assert len(said.strip().splitlines()) == 1, said


def test_the_client_of_mcp_goes(folder):
    """It has gone before it could be answered: 100 lines of traceback before."""
    process = greeted(folder)
    process.stdout.close()
    process.stdin.write('{"jsonrpc": "2.0", "id": 2, "method": "ping"}\n')
    process.stdin.flush()
    time.sleep(0.5)
    process.stdin.close()
    code, said = process.wait(timeout=60), process.stderr.read()
    assert (code, said) == (0, "")


def answers(path, body=None):
    """Whether the service answers."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data)
    request.add_header("content-type", "application/json")
    try:
        return urllib.request.urlopen(request, timeout=30).status == 200
    except OSError:
        return False
