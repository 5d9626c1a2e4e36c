"""`search --lists run.trec` uses the lists, whatever else is asked for, or says how to."""

import json
import re

import pytest

import crossknn as ck
from crossknn.cli.app import run

TEXTS = [f"text {i} about {'trees' if i % 2 else 'rivers'} number {i * 7}" for i in range(60)]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ck.ItemIndex.build([{"id": f"d{i}", "text": t} for i, t in enumerate(TEXTS)], lsa=4).save("i")
    (tmp_path / "q.jsonl").write_text('{"id": "q1", "text": "trees"}\n{"id": "q2", "text": "sea"}')
    lists = {"q1": range(40, 52), "q2": range(20, 32)}
    rows = [f"{q} Q0 d{i} {r} {20 - r} x" for q, of in lists.items() for r, i in enumerate(of, 1)]
    (tmp_path / "run.trec").write_text("\n".join(rows))
    return tmp_path


def searched(capsys, *options):
    line = ("search", "i", "--queries", "q.jsonl", "--lists", "run.trec", "--budget", "20")
    assert run([*line, "--explain", "--json", *options]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    first = [{h["id"] for h in of["trace"] if h["round"] == 1} for of in found["results"]]
    return found["method"], first, printed.err


def test_without_a_method(folder, capsys):
    method, (one, two), _ = searched(capsys)
    assert one == {f"d{i}" for i in range(40, 48)}
    assert two == {f"d{i}" for i in range(20, 28)}
    assert "retriever=lists" in method
    assert "mean=hybrid(bm25, lsa, lists)" in method


@pytest.mark.parametrize(
    "method", ["rerank", "rerank(retriever=lists)", "auto(rounds=3)", "axn(blend=0)"]
)
def test_with_a_method_that_names_no_retriever(folder, capsys, method):
    _, (one, _), _ = searched(capsys, "--method", method)
    assert len(one & {f"d{i}" for i in range(40, 52)}) == min(len(one), 12)


def test_with_a_method_that_names_another(folder, capsys):
    _, _, said = searched(capsys, "--method", "rerank(retriever=bm25)")
    assert "rerank(retriever=bm25) does not use --lists" in " ".join(said.split())
    assert "rerank(retriever=lists)" in said


def test_short_lists(folder, capsys):
    (folder / "run.trec").write_text("q1 Q0 d40 1 2.0 x\nq1 Q0 d50 2 1.0 x\nq2 Q0 d9 1 1.0 x\n")
    _, (one, two), _ = searched(capsys)
    assert {"d40", "d50"} <= one
    assert "d9" in two
    assert len(one) == 8


def test_an_index_that_has_learned(folder, capsys):
    texts = [f"{w} {i}" for w in ("trees", "rivers") for i in range(16)]
    quick = ("--method", "rerank(retriever=bm25)", "--budget", "20")
    assert run(["search", "i", *texts, *quick]) == 0
    assert run(["index", "info", "i"]) == 0
    learned = capsys.readouterr().out
    assert "kriging: queries 32, pairs 640" in learned
    assert re.search(r"it saves \d+% \[-?\d+%, \d+%\] of the squared error of predictions", learned)
    method, (one, _), _ = searched(capsys)
    assert one == {f"d{i}" for i in range(40, 48)}
    assert "mean=" not in method


def test_compare(folder, capsys):
    line = "compare i --queries q.jsonl --lists run.trec --budgets 20 -k 5 --json"
    assert run(line.split()) == 0
    said = capsys.readouterr().out
    assert "rerank(retriever=lists)" in said
    assert "mean=hybrid(bm25, lsa, lists)" in said
