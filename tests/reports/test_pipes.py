"""Output that goes into a pipe or a file: whole lines, and no noise when the reader leaves."""

import os
import subprocess
import sys

import pytest
from tiny_models import jsonl

import crossknn as ck

LONG = "a text of many words that no terminal has the room to show in a single line " * 4
SEARCH = "search docs.index words --method rerank(retriever=bm25) --budget 5"
COMMANDS = [
    SEARCH,
    f"{SEARCH} --json",
    "index info docs.index",
    "index build docs.jsonl other.index --encoder none",
    "compare docs.index --queries queries.jsonl --budgets 5 -k 1 --methods rerank(retriever=bm25)",
    "--help",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("pipes")
    jsonl(where / "docs.jsonl", ({"id": f"item-{i}", "text": f"{i} {LONG}"} for i in range(20)))
    jsonl(where / "queries.jsonl", [{"id": "q", "text": "words"}])
    ck.ItemIndex.build(where / "docs.jsonl").save(where / "docs.index")
    return where


def start(folder, command, **how):
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | how
    return subprocess.Popen([sys.executable, "-m", "crossknn", *command.split()], cwd=folder, **how)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_reader_that_leaves_ends_a_command_quietly(folder, command):
    """As `crossknn ... | head -1` does, which has often left by the time that all is printed."""
    process = start(folder, command)
    process.stdout.close()
    errors = process.stderr.read()
    assert process.wait(timeout=120) == 0, errors
    notes = ("next: ", "page: ", "not finished: ")
    assert [line for line in errors.splitlines() if not line.startswith(notes)] == []


def test_a_reader_of_both_streams_leaves(folder):
    reading, writing = os.pipe()
    process = start(folder, SEARCH, stdout=writing, stderr=writing)
    os.close(writing)
    os.close(reading)
    assert process.wait(timeout=120) == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_closed_stream_is_as_good_as_an_empty_one(folder, number):
    process = start(folder, SEARCH, preexec_fn=lambda: os.close(number))
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (0, "")


def test_a_full_disk_is_said(folder):
    with open("/dev/full", "wb") as full:
        process = start(folder, SEARCH, stdout=full)
        errors = process.communicate(timeout=120)[1]
    assert process.returncode == 1
    assert errors == "crossknn: no space is left to write the output\n"


def test_lines_in_a_pipe_are_whole(folder):
    process = start(folder, SEARCH, env=os.environ | {"COLUMNS": "40"})
    lines = process.communicate(timeout=120)[0].splitlines()
    assert sum(line.strip().endswith(LONG.strip()) for line in lines) == 10
    assert not any(line.endswith("…") for line in lines)
