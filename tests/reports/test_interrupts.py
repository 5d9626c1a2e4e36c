"""Ctrl-C and kills at any moment: one sentence, exit code 130, and what was scored or encoded is kept."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from service_helpers import ask
from tiny_models import jsonl

import crossknn as ck
from crossknn.errors import InputError

WORDS = ("copy", "move", "zip", "sort", "lock", "thread", "file", "list", "queue", "date", "time")
SEARCH = ("search", "docs.index", "--queries", "queries.jsonl", "--budget", "300")
MOMENTS = random.Random(42)
"""Draws when interrupts come: from half a second on, since on a busy machine Python itself takes a
quarter of a second to start."""

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


STARTED = []


@pytest.fixture(autouse=True)
def none_is_left():
    yield
    while STARTED:
        STARTED.pop().kill()


def start(folder, *arguments):
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, *arguments], cwd=folder, text=True, **pipes)
    STARTED.append(process)
    return process


def command(folder, *arguments):
    return start(folder, "-m", "crossknn", *arguments)


def interrupted(process):
    """The exit code and the lines on standard error, but for those of progress."""
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)  # with its standard input open
    lines = process.communicate()[1].splitlines()
    return process.returncode, [line for line in lines if not line.startswith("scoring: ")]


def seconds_of(process):
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check(process, moment):
    """Interrupt a command after some seconds of its own work; it says so in a sentence."""
    while sys.platform == "linux" and seconds_of(process) < moment:
        assert process.poll() is None, "it ended before it could be interrupted"
        time.sleep(0.01)
    if sys.platform != "linux":
        time.sleep(moment)
    assert process.poll() is None, "it ended before it could be interrupted"
    code, lines = interrupted(process)
    assert (code, len(lines)) == (130, 1), lines
    assert lines[0].startswith("crossknn: interrupted; no file is damaged")


@pytest.mark.parametrize("moment", [MOMENTS.uniform(0.5, 2.5) for _ in range(3)])
def test_a_search_is_interrupted_while_it_starts_and_while_it_scores(folder, moment):
    check(command(folder, *SEARCH), moment)


def when_scored(folder, process, more=30):
    """Wait until the process has kept so many scores; returns how many there are."""
    scores = ck.ItemIndex.load(folder / "docs.index").scores
    before = len(scores)
    while (now := len(scores)) < before + more:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.05)
    return now


def test_the_scores_of_an_interrupted_search_are_kept(folder):
    process = command(folder, *SEARCH, "--no-learn")
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
            ask(f"{url}/search", {"query": queries, "budget": 500})

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


N, AT_ONCE, WORK = 400, 16, "work-vectors"
TEXTS = [f"text {i}" for i in range(60)]


@pytest.fixture(autouse=True)
def few_vectors_in_a_file(monkeypatch):
    monkeypatch.setattr("crossknn.index.vectors.AT_ONCE", AT_ONCE)


class Counting:
    """The bundled encoder, which counts the texts that it encodes, and fails after `most`."""

    def __init__(self, most=10**9):
        self.model, self.texts, self.most = ck.DualEncoder(), 0, most
        self.fingerprint, self.dimensions = self.model.fingerprint, self.model.dimensions
        self.encode_queries = self.model.encode_queries

    def encode_items(self, texts, progress=None):
        if self.texts + len(texts) > self.most:
            raise InputError("enough")
        self.texts += len(texts)
        return self.model.encode_items(texts, progress)


BUILD = f"""
import sys
from crossknn.cli.app import run
from crossknn.index import vectors as work
work.AT_ONCE = {AT_ONCE}
sys.exit(run(["index", "build", "docs.jsonl", "docs.index"]))
"""


@pytest.mark.parametrize("by", [signal.SIGINT, signal.SIGKILL])
def test_a_build_goes_on_with_its_vectors(tmp_path, by):
    texts = [f"text number {i}, " + "of quite a few words on topic " * 3 for i in range(N)]
    jsonl(tmp_path / "docs.jsonl", ({"text": text} for text in texts))
    process = start(tmp_path, "-c", BUILD)
    while not [*tmp_path.glob(f"docs.index/{WORK}/*.npz")]:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.01)
    process.send_signal(by)
    message = process.communicate(timeout=60)[1]
    if by == signal.SIGINT:
        assert process.returncode == 130
        assert "interrupted; no file is damaged: run the same command again to resume" in message
    counting = Counting()
    place = tmp_path / "docs.index"
    index = ck.ItemIndex.build(tmp_path / "docs.jsonl", encoder=counting, folder=place)
    assert 0 < counting.texts < N
    assert not [*place.glob("work*")]
    some = np.arange(0, N, 50)
    alone = ck.DualEncoder().encode_items([texts[i] for i in some])
    np.testing.assert_allclose(index.vectors["dense"][some], alone, atol=1e-5)


@pytest.fixture
def place(tmp_path):
    """A folder where a build stopped after some of the texts."""
    with pytest.raises(InputError, match="enough"):
        ck.ItemIndex.build(TEXTS, encoder=Counting(40), folder=tmp_path / "an.index")
    return tmp_path / "an.index"


def encoded(place, texts, encoder=None):
    """How many texts a build in this folder encodes."""
    counting = encoder or Counting()
    ck.ItemIndex.build(texts, encoder=counting, folder=place)
    return counting.texts


def test_it_goes_on_with_other_items(place):
    texts = [*reversed(TEXTS), "new", "new", "text 1"]
    assert encoded(place, texts) == len(TEXTS) + 1 - 2 * AT_ONCE


def test_vectors_of_another_model_are_not_used(place):
    other = Counting()
    other.fingerprint += " another"
    assert encoded(place, TEXTS, other) == len(TEXTS)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-100], lambda data: b"", lambda data: data[:200] + bytes(100) + data[300:]],
)
def test_damaged_vectors_are_made_again(place, damage):
    for path in (place / WORK).iterdir():
        path.write_bytes(damage(path.read_bytes()))
    assert encoded(place, TEXTS) == len(TEXTS)


def test_adding_items_goes_on_with_its_vectors(tmp_path):
    ck.ItemIndex.build(["one", "two"], encoder=ck.DualEncoder()).save(tmp_path / "index")
    items, counting = [{"id": text, "text": text} for text in TEXTS], Counting()
    with pytest.raises(InputError, match="enough"):
        ck.ItemIndex.load(tmp_path / "index", encoder=Counting(40)).add(items)
    ck.ItemIndex.load(tmp_path / "index", encoder=counting).add(items)
    assert counting.texts == len(TEXTS) - 2 * AT_ONCE
    assert len(ck.ItemIndex.load(tmp_path / "index")) == len(TEXTS) + 2
    assert not [*(tmp_path / "index").glob("work*")]


def test_a_link_in_the_place_of_the_vectors_is_refused(tmp_path):
    outside, place = tmp_path / "outside", tmp_path / "an.index"
    for folder in (outside, place):
        folder.mkdir()
    (outside / "mine.txt").write_text("mine")
    os.symlink(outside, place / WORK)
    with pytest.raises(InputError, match=WORK):
        ck.ItemIndex.build(TEXTS, encoder=Counting(), folder=place)
    assert (outside / "mine.txt").read_text() == "mine"
