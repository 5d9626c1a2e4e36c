"""Every command that scores takes an endpoint on the same terms."""

from __future__ import annotations

import inspect
import json

import pytest
from faulty_server import Faulty, score, slow

import crossknn as ck
from crossknn.cli import app as application
from crossknn.cli.app import run


def commands():
    """Commands by name, with the names of their options."""
    found = {command.name: command.callback for command in application.app.registered_commands}
    return {name: set(inspect.signature(call).parameters) for name, call in found.items()}


def test_whoever_takes_a_scorer_takes_its_model_and_options():
    taking = {name for name, options in commands().items() if "scorer" in options}
    assert taking >= {"index", "search", "compare", "align", "learn", "scores", "estimate"}
    for name in taking:
        assert {"model", "scorer_option"} <= commands()[name], name


@pytest.fixture
def endpoint(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = [f"text number {i} about topic {i % 7}" for i in range(30)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    (tmp_path / "queries.txt").write_text("topic 3\ntopic 5\n")
    server = Faulty(slow(0))
    yield ["--scorer", server.url, "--model", "m", "--scorer-option", "timeout=20"], server
    server.close()


def test_anchors_cache_and_comparison_with_a_named_endpoint(endpoint, capsys):
    given, server = endpoint
    build = ["index", "docs.jsonl", "docs.index", "--encoder", "none", "--anchors", "queries.txt"]
    assert run([*build, *given]) == 0
    anchors = ck.ItemIndex.load("docs.index").anchors
    assert anchors.scores.shape == (2, 30)
    assert anchors.scores[0, 4] == pytest.approx(score("topic 3", "text number 4 about topic 4"))
    search = [
        "search",
        "docs.index",
        "topic 1",
        "--method",
        "rerank(retriever=bm25)",
        "--budget",
        "12",
    ]
    capsys.readouterr()
    assert run([*search, "--cache", "scores.db", "--json", *given]) == 0
    first = json.loads(capsys.readouterr().out)
    asked = server.count
    assert run([*search, "--cache", "scores.db", "--json", *given]) == 0
    again = json.loads(capsys.readouterr().out)
    assert (first["calls"], again["calls"], server.count) == (12, 0, asked)
    assert first["results"] == again["results"]
    compare = [
        "compare",
        "docs.index",
        "--queries",
        "queries.txt",
        "--methods",
        "rerank(retriever=bm25)",
    ]
    assert run([*compare, "--budgets", "12", "-k", "5", *given]) == 0
    # Every setting stands in the table, so that a default is not taken for a method's best.
    assert "rerank(retriever=bm25)" in capsys.readouterr().out


def test_an_unnamed_endpoint_cannot_fill_a_cache(endpoint, capsys):
    given, _ = endpoint
    assert run(["index", "docs.jsonl", "docs.index", "--encoder", "none"]) == 0
    search = ["search", "docs.index", "topic 1", "--method", "rerank(retriever=bm25)", *given[:2]]
    assert run([*search, "--cache", "scores.db"]) == 2
    assert "name the model behind the URL with --model NAME" in capsys.readouterr().err


def test_control_characters_are_shown_and_not_sent(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    item = {"id": "a\x1b[2Jb", "text": "red \x1b]0;title\x07 text \x9b31m"}
    (tmp_path / "docs.jsonl").write_text(json.dumps(item) + "\n")
    assert run(["index", "docs.jsonl", "docs.index", "--encoder", "none"]) == 0
    search = ["search", "docs.index", "red\x1b[1m", "-k", "1", "--budget", "1", "--explain"]
    for more in ([], ["--json"]):
        assert run([*search, "--method", "rerank(retriever=bm25)", *more]) == 0
        said = capsys.readouterr().out
        assert not [c for c in said if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
        assert "x1b" in said or "u001b" in said
