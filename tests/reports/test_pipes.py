"""Output that goes into a pipe or a file: whole lines, and no noise when the reader leaves."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from tiny_models import jsonl

import crossknn as ck

LONG = "a text of many words that no terminal has the room to show in a single line " * 4
COMMANDS = [
    "search docs.index words --method rerank(retriever=bm25) --budget 5",
    "search docs.index --queries queries.jsonl --method rerank(retriever=bm25) --budget 5 --json",
    "index info docs.index",
    "index build docs.jsonl other.index --encoder none",
    "compare docs.index --queries queries.jsonl --budgets 5 -k 1 --methods rerank(retriever=bm25)",
    "demo",
    "--help",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("pipes")
    jsonl(where / "docs.jsonl", ({"id": f"item-{i}", "text": f"{i} {LONG}"} for i in range(20)))
    jsonl(where / "queries.jsonl", [{"id": "q", "text": "words"}])
    ck.ItemIndex.build(where / "docs.jsonl").save(where / "docs.index")
    return where


def start(folder, *arguments, **how):
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
    return subprocess.Popen([sys.executable, "-m", "crossknn", *arguments], cwd=folder, **how)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_leaves_ends_a_command_quietly(folder, command):
    """As `crossknn ... | head -1` does, which has often left by the time that all is printed."""
    process = start(folder, *command.split())
    process.stdout.close()
    said = process.stderr.read().decode()
    assert process.wait(timeout=120) == 0, said
    notes = ("next: ", "page: ", "not finished: ")
    assert [
        line
        for line in said.splitlines()
        if not line.startswith(notes) and "next, with" not in line
    ] == [], said


@pytest.mark.parametrize("command", COMMANDS[:2])
def test_a_reader_of_both_streams_leaves(folder, command):
    reading, writing = os.pipe()
    process = start(folder, *command.split(), stdout=writing, stderr=writing)
    os.close(writing)
    os.close(reading)
    assert process.wait(timeout=120) == 0


@pytest.mark.parametrize("stream", ["stdin", "stdout", "stderr"])
def test_a_closed_stream_is_as_good_as_an_empty_one(folder, stream):
    number = ["stdin", "stdout", "stderr"].index(stream)
    process = start(folder, *COMMANDS[0].split(), preexec_fn=lambda: os.close(number))
    _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, b"")


def test_a_full_disk_is_said(folder):
    with open("/dev/full", "wb") as full:
        process = start(folder, *COMMANDS[0].split(), stdout=full)
        said = process.communicate(timeout=120)[1].decode()
    assert process.returncode == 1
    assert said == "crossknn: no space is left to write the output\n"


def test_lines_in_a_pipe_are_whole(folder):
    """Neither cut at the width of a terminal nor wrapped at it."""
    process = start(folder, *COMMANDS[0].split(), env=os.environ | {"COLUMNS": "40"})
    shown = process.communicate(timeout=120)[0].decode().splitlines()
    assert sum(line.strip().endswith(LONG.strip()) for line in shown) == 10
    assert not any(line.endswith("…") for line in shown)


def test_warnings_in_a_pipe_are_one_line_each(folder):
    """A warning of 200 characters was wrapped into a column of its own."""
    name = "docs-" + "x" * 150
    jsonl(
        folder / f"{name}.jsonl", [{"id": "a", "text": "one"}, {"id": "b", "text": "half \ud800"}]
    )
    process = start(folder, "index", "build", f"{name}.jsonl", "new.index", "--encoder", "none")
    said = process.communicate(timeout=120)[1].decode().splitlines()
    assert said[0].startswith("warning: ")
    assert name in said[0]
    assert said[0].endswith("U+FFFD")
