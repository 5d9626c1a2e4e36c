"""Ctrl-C at any moment: one sentence, exit code 130, and what was scored so far is kept."""

import json
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
from service_helpers import ask
from tiny_models import jsonl

import crossknn as ck

WORDS = ("copy", "move", "zip", "sort", "lock", "thread", "file", "list", "queue", "date", "time")
SEARCH = ("search", "docs.index", "--queries", "queries.jsonl", "--budget", "300")
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
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, *arguments], cwd=folder, text=True, **pipes)


def command(folder, *arguments):
    return start(folder, "-m", "crossknn", *arguments)


def interrupted(process):
    """The exit code and the lines on standard error, but for those of progress."""
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)  # with its standard input open
    lines = process.communicate()[1].splitlines()
    return process.returncode, [line for line in lines if not line.startswith("scoring: ")]


def check(process, moment):
    """Interrupt a command, which says so in a sentence."""
    time.sleep(moment)
    assert process.poll() is None, "it ended before it could be interrupted"
    code, lines = interrupted(process)
    assert (code, len(lines)) == (130, 1), lines
    assert lines[0].startswith("crossknn: interrupted; no file is damaged")


@pytest.mark.parametrize("moment", [MOMENTS.uniform(0.2, 2.5) for _ in range(3)])
def test_a_search_is_interrupted_while_it_starts_and_while_it_scores(folder, moment):
    check(command(folder, *SEARCH), moment)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "times"),
    [(SEARCH, 50), (("collect", "docs.index", "--queries", "queries.jsonl"), 10)],
)
def test_a_command_is_interrupted_many_times(folder, arguments, times):
    for _ in range(times):
        check(command(folder, *arguments), MOMENTS.uniform(0.1, 3))


def when_scored(folder, process, more=30):
    """Wait until the process has kept so many scores; returns how many there are."""
    scores = ck.ItemIndex.load(folder / "docs.index").scores
    before = len(scores)
    while (now := len(scores)) < before + more:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    return now


def test_the_scores_of_an_interrupted_search_are_kept(folder):
    process = command(folder, *SEARCH, "--no-learn", "--seed", "1")
    kept = when_scored(folder, process)
    assert interrupted(process)[0] == 130
    assert len(ck.ItemIndex.load(folder / "docs.index").scores) >= kept


@pytest.mark.parametrize("call", CALLS)
def test_python_ends_by_itself_while_threads_of_the_model_run(folder, call):
    process = start(folder, "-c", IN_PYTHON.format(call=CALLS[call]))
    when_scored(folder, process)
    assert interrupted(process) == (130, [])


@pytest.mark.parametrize("impatient", [False, True])
def test_a_service_is_interrupted_while_it_searches(folder, impatient):
    """Ctrl-C twice ended a service with a traceback."""
    process = command(folder, "serve", "docs.index", "--port", "0")
    url = re.search(r"http://\S+", process.stderr.readline())[0]
    queries = [f"{text} {impatient}" for text in ("zip files", "sort dates", "lock threads")]

    def search():
        with suppress(OSError):
            ask(f"{url}/search", {"queries": queries, "budget": {"per_query": 500}})

    asking = threading.Thread(target=search)
    asking.start()
    when_scored(folder, process)
    if impatient:
        process.send_signal(signal.SIGINT)
        time.sleep(0.15)
    code, lines = interrupted(process)
    asking.join()
    assert (code, len(lines)) == (130, 1), lines


@pytest.fixture
def mcp_server(folder):
    """An MCP server that has answered its client's greeting."""
    process = command(folder, "mcp", "docs.index")
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello |= {"clientInfo": {"name": "a test", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    assert "serverInfo" in process.stdout.readline()
    return process


def test_mcp_is_interrupted_while_it_waits_for_its_client(mcp_server):
    code, lines = interrupted(mcp_server)
    assert (code, len(lines)) == (130, 1), lines


def test_the_client_of_mcp_goes(mcp_server):
    """It has gone before it could be answered: 100 lines of traceback before."""
    mcp_server.stdout.close()
    mcp_server.stdin.write('{"jsonrpc": "2.0", "id": 2, "method": "ping"}\n')
    mcp_server.stdin.flush()
    time.sleep(0.5)
    mcp_server.stdin.close()
    assert (mcp_server.wait(timeout=60), mcp_server.stderr.read()) == (0, "")
