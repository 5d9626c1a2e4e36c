"""Texts of any script through every command, whatever the terminal's encoding is."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from tiny_models import jsonl

TEXT = "→ ★ “the naïve arrow” shows the way, and these are eight words more of it"
ENCODINGS = {
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "ascii": {"PYTHONIOENCODING": "ascii"},
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "C.UTF-8": {"LC_ALL": "C"},
}
ARROW = {"cp1252": "->", "ascii": "->", "C": "->", "C.UTF-8": "→"}
METHOD = ("--method", "rerank(retriever=bm25)", "--budget", "3")
COMMANDS = {
    "build": ("index", "build", "docs.jsonl", "built.index", "--encoder", "none"),
    "info": ("index", "info", "→.index"),
    "verify": ("index", "verify", "→.index"),
    "search": ("search", "→.index", "→ arrow", *METHOD, "--explain"),
    "collect": ("collect", "→.index", "--queries", "queries.jsonl", "--max-calls", "9"),
    "compare": ("compare", "→.index", "--queries", "queries.jsonl", "--budgets", "3", "-k", "1", "--methods", "rerank(retriever=bm25)"),
    "estimate": ("estimate", "docs.jsonl"),
    "help": ("search", "--help"),
}  # fmt: skip


ONE_AFTER_ANOTHER = """
import json, os, sys
from crossknn.cli.app import run
for command in json.loads(sys.argv[1]):
    assert run([os.fsdecode(word.encode()) for word in command]) == 0, command
"""
"""Words are decoded as Python decodes those of a command line."""


def crossknn(folder, *arguments, encoding="C.UTF-8", data=None, python=("-m", "crossknn")):
    known = {name: value for name, value in os.environ.items() if not name.startswith("LC_")}
    return subprocess.run(
        [sys.executable, *python, *arguments],
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
    made = crossknn(where, "index", "build", "docs.jsonl", "→.index", "--encoder", "none")
    assert made.returncode == 0, made.stderr
    return where


@pytest.mark.parametrize("encoding", ["cp1252", "ascii", "C"])
def test_every_command_shows_what_its_stream_can_show(folder, encoding):
    commands = json.dumps([*COMMANDS.values()])
    found = crossknn(folder, commands, encoding=encoding, python=("-c", ONE_AFTER_ANOTHER))
    assert found.returncode == 0, found.stderr
    assert b"Traceback" not in found.stderr
    codec = "cp1252" if encoding == "cp1252" else "ascii"
    found.stdout.decode(codec)
    found.stderr.decode(codec)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_hit_is_shown_with_what_is_like_it(folder, encoding):
    shown = crossknn(folder, "search", "→.index", "arrow", *METHOD, "-k", "1", encoding=encoding)
    said = shown.stdout.decode("cp1252" if encoding == "cp1252" else "utf-8")
    assert f"{ARROW[encoding]}1  round 1" in said
    assert f"{ARROW[encoding]} " in said
    assert ("naïve" if encoding in ("cp1252", "C.UTF-8") else "naive") in said


def test_bars_fall_back_to_ascii(folder):
    shown = crossknn(folder, "demo", encoding="C").stdout.decode("ascii")
    assert "#####." in shown
    assert '"the [shot] buzzed past his ear"' in shown


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_what_is_typed_and_standard_input_are_read_as_utf8(folder, encoding):
    """In the C locale Python hands over bytes that it cannot decode."""
    for query, data in (("“naïve” →", None), ("-", "\ufeff→ ★ arrow\n".encode())):
        line = ("search", "→.index", query, *METHOD, "--json")
        found = json.loads(crossknn(folder, *line, encoding=encoding, data=data).stdout)
        assert found["results"][0]["query"] == (query if data is None else "→ ★ arrow")


def test_standard_input_of_another_encoding_is_refused(folder):
    found = crossknn(folder, "search", "→.index", "-", data="café".encode("latin-1"))
    assert (found.returncode, found.stdout) == (2, b"")
    assert found.stderr.startswith(b"crossknn: standard input is not UTF-8")
