"""Output and input of any encoding, and into a pipe: whole lines, no noise when a reader leaves."""

import json
import os
import subprocess
import sys

import pytest
from tiny_models import jsonl

import crossknn as ck

TEXT = "→ ★ “the naïve arrow” shows the way, and these are eight words more of it"
ENCODINGS = {
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "C.UTF-8": {"LC_ALL": "C"},
}
METHOD = ("--method", "rerank(retriever=bm25)", "--budget", "3")
COMMANDS = {
    "build": ("index", "build", "docs.jsonl", "built.index", "--encoder", "none"),
    "info": ("index", "info", "→.index"),
    "verify": ("index", "verify", "→.index"),
    "search": ("search", "→.index", "→ arrow", *METHOD, "--explain"),
    "hit": ("search", "→.index", "arrow", *METHOD, "-k", "1"),
    "typed": ("search", "→.index", "“naïve” →", *METHOD, "--json"),
    "standard input": ("search", "→.index", "-", *METHOD, "--json"),
    "collect": ("collect", "→.index", "--queries", "queries.jsonl", "--max-calls", "9"),
    "compare": ("compare", "→.index", "--queries", "queries.jsonl", "--budgets", "3", "-k", "1", "--methods", "rerank(retriever=bm25)"),
    "help": ("search", "--help"),
}  # fmt: skip
ONE_AFTER_ANOTHER = """
import json, os, sys
from crossknn.cli.app import run
for command in json.loads(sys.argv[1]):
    print("=====")
    assert run([os.fsdecode(word.encode()) for word in command]) == 0, command
"""
"""Words are decoded as Python decodes those of a command line."""


def python(folder, *arguments, encoding="C.UTF-8", data=None):
    known = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=known | ENCODINGS[encoding],
        input=data,
        capture_output=True,
        timeout=120,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("scripts")
    items = [{"id": f"→{i}", "title": "★", "text": f"{TEXT} {i}"} for i in range(6)]
    jsonl(where / "docs.jsonl", items)
    jsonl(where / "queries.jsonl", [{"id": "★", "text": "→ arrow"}])
    ck.ItemIndex.build(where / "docs.jsonl").save(where / "→.index")
    return where


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_command_reads_utf8_and_shows_what_its_stream_can_show(folder, encoding):
    done = python(
        *(folder, "-c", ONE_AFTER_ANOTHER, json.dumps([*COMMANDS.values()])),
        encoding=encoding,
        data="\ufeff→ ★ arrow\n".encode(),
    )
    assert done.returncode == 0, done.stderr
    codec = {"cp1252": "cp1252", "C.UTF-8": "utf-8"}.get(encoding, "ascii")
    assert "Traceback" not in done.stderr.decode(codec)
    _, *printed = done.stdout.decode(codec).split("=====\n")
    shown = dict(zip(COMMANDS, printed, strict=True))
    arrow = "→" if encoding == "C.UTF-8" else "->"
    assert f"{arrow}1  round 1" in shown["hit"]
    assert ("naive" if codec == "ascii" else "naïve") in shown["hit"]
    for name, query in (("typed", "“naïve” →"), ("standard input", "→ ★ arrow")):
        assert json.loads(shown[name])["results"][0]["query"] == query


def test_bars_fall_back_to_ascii(folder):
    shown = python(folder, "-m", "crossknn", "demo", encoding="C").stdout.decode("ascii")
    assert "###." in shown
    assert "the [shot] buzzed past his ear" in shown


def test_standard_input_of_another_encoding_is_refused(folder):
    command = ("-m", "crossknn", "search", "→.index", "-")
    done = python(folder, *command, data="café".encode("latin-1"))
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"crossknn: standard input is not UTF-8")


LONG = "a text of many words that no terminal has the room to show in a single line " * 4
SEARCH = "search docs.index words --method rerank(retriever=bm25) --budget 5"
PIPED = [
    SEARCH,
    f"{SEARCH} --json",
    "index info docs.index",
    "index build docs.jsonl other.index --encoder none",
    "compare docs.index --queries queries.jsonl --budgets 5 -k 1 --methods rerank(retriever=bm25)",
    "--help",
]


@pytest.fixture(scope="module")
def long_lines(tmp_path_factory):
    where = tmp_path_factory.mktemp("pipes")
    jsonl(where / "docs.jsonl", ({"id": f"item-{i}", "text": f"{i} {LONG}"} for i in range(20)))
    jsonl(where / "queries.jsonl", [{"id": "q", "text": "words"}])
    ck.ItemIndex.build(where / "docs.jsonl").save(where / "docs.index")
    return where


def start(long_lines, command, **how):
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | how
    return subprocess.Popen(
        [sys.executable, "-m", "crossknn", *command.split()], cwd=long_lines, **how
    )


@pytest.mark.parametrize("command", PIPED)
def test_a_reader_that_leaves_ends_a_command_quietly(long_lines, command):
    """As `crossknn ... | head -1` does, which has often left by the time that all is printed."""
    process = start(long_lines, command)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=120) == 0, errors
    notes = ("next: ", "page: ", "not finished: ")
    assert [line for line in errors.splitlines() if not line.startswith(notes)] == []


def test_a_reader_of_both_streams_leaves(long_lines):
    reading, writing = os.pipe()
    process = start(long_lines, SEARCH, stdout=writing, stderr=writing)
    os.close(writing)
    os.close(reading)
    assert process.wait(timeout=120) == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_closed_stream_is_as_good_as_an_empty_one(long_lines, number):
    process = start(long_lines, SEARCH, preexec_fn=lambda: os.close(number))
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


def test_a_full_disk_is_said(long_lines):
    with open("/dev/full", "wb") as full:
        process = start(long_lines, SEARCH, stdout=full)
        errors = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert errors == "crossknn: no space is left to write the output\n"


def test_lines_in_a_pipe_are_whole(long_lines):
    process = start(long_lines, SEARCH, env=os.environ | {"COLUMNS": "40"})
    lines = process.communicate(timeout=120)[0].splitlines()
    assert sum(line.strip().endswith(LONG.strip()) for line in lines) == 10
    assert not any(line.endswith("…") for line in lines)
