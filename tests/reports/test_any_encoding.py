"""Texts of any script through every command, whatever the terminal's encoding is."""

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
    "estimate": ("estimate", "docs.jsonl"),
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
