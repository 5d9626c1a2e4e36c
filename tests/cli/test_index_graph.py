"""`crossknn index --graph`: the item graph, and the methods that need it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from commands import run

from crossknn.index.item_index import ItemIndex

BUILD = ("index", "docs.jsonl", "docs.index", "--encoder", "none")
SEARCH = ("search", "docs.index", "the 3rd part", "--budget", "6", "-k", "3", "--method")


@pytest.fixture
def command(tmp_path, monkeypatch, capsys):
    """Run a command on twenty documents: its JSON, or its exit code and what it said."""
    monkeypatch.chdir(tmp_path)
    items = [{"id": f"d{i}", "text": f"part {i} of {i % 3} and {i % 5}"} for i in range(20)]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, items)))

    def call(*arguments):
        capsys.readouterr()
        code = run([*arguments, "--json"])
        printed = capsys.readouterr()
        said = " ".join(printed.err.split())
        return (code, said) if code else json.loads(printed.out.splitlines()[-1])

    return call


def test_a_method_that_needs_the_graph_finds_it_in_the_index(command):
    command(*BUILD)
    code, said = command(*SEARCH, "gar(retriever=bm25, neighbours=4)")
    assert code == 2
    assert "gar needs the item graph, and there is none here: make it with crossknn index" in said
    assert command(*BUILD, "--graph", "4")["graphs"] == {"lsa": 4}
    assert command(*SEARCH, "gar(retriever=bm25, neighbours=4, batch=2)")["calls"] == 6
    code, said = command(*SEARCH, "gar(retriever=bm25)")
    assert code == 2
    assert "'lsa' has 4 neighbours of each item, not 16: use neighbours=4" in said


def test_the_graph_stays_when_the_index_is_built_again(command, tmp_path):
    command(*BUILD, "--graph", "4")
    assert command(*BUILD, "--graph", "5", "--graph-from", "bm25")["graphs"] == {
        "lsa": 4,
        "bm25": 5,
    }
    kept = ItemIndex.load(tmp_path / "docs.index").graph("bm25", 5)
    assert command(*BUILD)["graphs"] == {"lsa": 4, "bm25": 5}
    assert np.array_equal(ItemIndex.load(tmp_path / "docs.index").graph("bm25", 5), kept)


def test_options_that_do_not_fit(command):
    for options, words in (
        (("--graph", "0"), "graph is 0; it must be 1 or more"),
        (("--graph-from", "lsa"), "--graph-from says what --graph N is made of"),
        (("--graph", "4", "--graph-from", "dense"), "cannot be made of 'dense' (known: bm25, lsa)"),
    ):
        code, said = command(*BUILD, *options)
        assert code == 2
        assert words in said


def test_a_score_matrix_keeps_the_graphs(command, tmp_path, capsys):
    (tmp_path / "queries.txt").write_text("part 3\nof 2\nand 4\n")
    command(*BUILD, "--graph", "4", "--graph-from", "bm25")
    command("scores", "docs.index", "--queries", "queries.txt", "--anchors", "0", "--out", "m.npz")
    with np.load("m.npz") as file:
        kept = ItemIndex.load(tmp_path / "docs.index").graph("bm25", 4)
        assert np.array_equal(file["graph_bm25"], kept)
    specs = "greedy(retriever=bm25, neighbours=4)"
    assert run(["replay", "m.npz", "--methods", specs, "--budgets", "8", "-k", "2"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["calls"] == 8


def test_the_graph_is_named_where_the_index_is_built(command, capsys):
    assert run([*BUILD, "--graph", "4"]) == 0
    assert "retrievers bm25, lsa; 4 neighbours by lsa; 0 anchor" in capsys.readouterr().out
