"""`crossknn-lab replay`: the task's measures, what is left out, oracles."""

from __future__ import annotations

import json

import numpy as np
import pytest
from commands import run
from synthetic import matrix


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(capsys, *arguments: str) -> tuple[list[dict], str]:
    code = run(list(arguments))
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return [json.loads(line) for line in printed.out.splitlines()], " ".join(printed.err.split())


def sentence(capsys, *arguments: str) -> str:
    assert run(list(arguments)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return " ".join(printed.err.split())


@pytest.fixture
def labelled(folder):
    """A matrix file of 6 test queries, one of them without a label."""
    data = matrix()
    gold = data.scores.argmax(axis=1)
    gold[25] = -1
    names = {"query_ids": data.query_ids, "item_ids": [f"i{i}" for i in range(80)]}
    arrays = {"scores": data.scores, "n_anchors": data.n_anchors, "labels": gold}
    vectors = {"item_vectors": data.item_vectors, "query_vectors": data.query_vectors}
    np.savez(folder / "m.npz", **arrays, **vectors, **names)
    return folder


def test_replay_prints_measures_of_the_labels_and_says_what_it_leaves_out(labelled, capsys):
    options = ("--methods", "exact, rerank(retriever=oracle_topk(masked=1))", "--budgets", "9")
    (exact, masked), said = rows(capsys, "replay", "m.npz", *options, "-k", "1")
    assert said == ("1 of 6 queries have no judgements and are left out of the task's measures")
    assert exact["measures"] == {
        "accuracy": 1.0, "accuracy_normalised": 1.0, "nDCG@10": 1.0, "R@100": 1.0, "RR@10": 1.0,
    }  # fmt: skip
    assert (exact["unjudged"], exact["measures_n"]["accuracy"]) == (1, 5)
    assert masked["measures"]["accuracy"] == masked["recall"] == 0
    assert masked["measures"]["accuracy_normalised"] is None  # the gold item was never scored


def test_replay_takes_qrels_in_place_of_labels(labelled, capsys):
    (labelled / "qrels.tsv").write_text("query 20\ti3\t1\nquery 20\tgone\t1\n")
    options = ("--methods", "exact", "--budgets", "9", "-k", "1", "--qrels", "qrels.tsv")
    (row,), said = rows(capsys, "replay", "m.npz", *options, "--measures", "R@100")
    assert row["measures"] == {"R@100": 0.5}
    assert "5 of 6 queries have no judgements" in said
    assert "1 judged items are not among the items" in said


def test_replay_refuses_measures_without_judgements(labelled, capsys):
    data = matrix()
    np.savez(labelled / "bare.npz", scores=data.scores, n_anchors=20)
    options = ("--methods", "exact", "-k", "1", "--measures", "RR@10")
    assert "--measures needs judgements" in sentence(capsys, "replay", "bare.npz", *options)
    (labelled / "qrels.tsv").write_text("query 20\ti3\t1\n")
    said = sentence(capsys, "replay", "bare.npz", *options, "--qrels", "qrels.tsv")
    assert "needs the key 'item_ids'" in said


def test_a_k_above_the_number_of_items_is_refused(folder, capsys):
    np.savez(folder / "m.npz", scores=np.zeros((2, 30)))
    said = sentence(capsys, "replay", "m.npz", "--methods", "exact", "-k", "1,31")
    assert said == "crossknn: k is 31, but m.npz has 30 items: take a smaller k (-k)"
    assert rows(capsys, "replay", "m.npz", "--methods", "exact", "-k", "30")[0][0]["recall"] == 1
    unasked = rows(capsys, "replay", "m.npz", "--methods", "exact")[0]
    assert {row["k"] for row in unasked} == {1, 10}  # as far as there are items
