"""Output and input of any encoding, and into a pipe: whole lines, no noise when a reader leaves."""

import io
import json
import os
import subprocess
import sys
from contextlib import suppress

import pytest
from tiny_models import jsonl

import crossknn as ck
from crossknn.cli import output
from crossknn.cli.app import run

TEXT = "→ ★ “the naïve arrow” shows the way, and these are eight words more of it"
C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
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


def streams(monkeypatch, encoding, data=b""):
    """Standard input and output of this encoding; returns what is written on the second."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, write_through=True))
    return written


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("scripts")
    items = [{"id": f"→{i}", "title": "★", "text": f"{TEXT} {i}"} for i in range(6)]
    jsonl(where / "docs.jsonl", items)
    jsonl(where / "queries.jsonl", [{"id": "★", "text": "→ arrow"}])
    ck.ItemIndex.build(where / "docs.jsonl").save(where / "→.index")
    return where


def in_c_locale(folder, data):
    """What all commands print in a process of its own, whose words and file names are ASCII too."""
    line = [sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps([*COMMANDS.values()])]
    more = {"cwd": folder, "env": os.environ | C_LOCALE, "input": data, "timeout": 120}
    done = subprocess.run(line, capture_output=True, **more)
    assert (done.returncode, b"Traceback" in done.stderr) == (0, False), done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["ascii", "cp1252", "utf-8"])
def test_every_command_reads_utf8_and_shows_what_its_stream_can_show(folder, codec, monkeypatch):
    data = "\ufeff→ ★ arrow\n".encode()
    if codec == "ascii":
        printed = in_c_locale(folder, data)
    else:
        monkeypatch.chdir(folder)
        written = streams(monkeypatch, codec, data)
        for command in COMMANDS.values():
            print("=====")
            assert run([*command]) == 0, command
        printed = written.getvalue()
    _, *parts = printed.decode(codec).split("=====\n")
    shown = dict(zip(COMMANDS, parts, strict=True))
    arrow = "→" if codec == "utf-8" else "->"
    assert f"{arrow}2  round 1" in shown["hit"]
    assert ("naive" if codec == "ascii" else "naïve") in shown["hit"]
    for name, query in (("typed", "“naïve” →"), ("standard input", "→ ★ arrow")):
        assert json.loads(shown[name])["results"][0]["query"] == query


def test_bars_fall_back_to_ascii(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written = streams(monkeypatch, "ascii")
    assert run(["demo"]) == 0
    shown = written.getvalue().decode("ascii")
    assert "###." in shown
    assert "a nice [line] of shoes" in shown


def test_standard_input_of_another_encoding_is_refused(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    written = streams(monkeypatch, "utf-8", "café".encode("latin-1"))
    assert run(["search", "→.index", "-"]) == 2
    assert written.getvalue() == b""
    assert capsys.readouterr().err.startswith("crossknn: standard input is not UTF-8")


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


def assert_quiet(errors):
    notes = ("next: ", "page: ", "not finished: ")
    assert [line for line in errors.splitlines() if not line.startswith(notes)] == []


@pytest.mark.parametrize("command", PIPED)
def test_a_reader_that_leaves_ends_a_command_quietly(long_lines, command, monkeypatch, capsys):
    """As `crossknn ... | head -1` does, which has often left by the time that all is printed."""
    monkeypatch.setattr(output.out, "quiet", False)  # Rich is, once a reader has left
    monkeypatch.chdir(long_lines)
    reading, writing = os.pipe()
    os.close(reading)
    with suppress(BrokenPipeError), open(writing, "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert run(command.split()) == 0
    assert_quiet(capsys.readouterr().err)


@pytest.mark.parametrize("command", [SEARCH, "--help"])
def test_a_process_whose_reader_leaves_ends_quietly(long_lines, command):
    """Python itself writes what is left when it ends."""
    process = start(long_lines, command)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=120) == 0, errors
    assert_quiet(errors)


def test_a_reader_of_both_streams_leaves(long_lines):
    reading, writing = os.pipe()
    process = start(long_lines, SEARCH, stdout=writing, stderr=writing)
    os.close(writing)
    os.close(reading)
    assert process.wait(timeout=120) == 0


@pytest.mark.parametrize("numbers", [(0, 1), (2,)])
def test_closed_streams_are_as_good_as_empty_ones(long_lines, numbers):
    process = start(long_lines, SEARCH, preexec_fn=lambda: [os.close(n) for n in numbers])
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


def test_a_full_disk_is_said(long_lines, monkeypatch, capsys):
    monkeypatch.chdir(long_lines)
    with suppress(OSError), open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert run(SEARCH.split()) == 1
    assert capsys.readouterr().err == "crossknn: no space is left to write the output\n"


def test_lines_in_a_pipe_are_whole(long_lines):
    process = start(long_lines, SEARCH, env=os.environ | {"COLUMNS": "40"})
    lines = process.communicate(timeout=120)[0].splitlines()
    assert sum(line.strip().endswith(LONG.strip()) for line in lines) == 10
    assert not any(line.endswith("…") for line in lines)
