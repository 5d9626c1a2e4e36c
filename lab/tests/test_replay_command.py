"""`crossknn-lab replay`: the task's measures, what is left out, oracles."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic import matrix

from crossknn_lab.cli import run


def rows(capsys, *arguments: str) -> tuple[list[dict], str]:
    code = run(["replay", *arguments, "--budgets", "9"])
    printed = capsys.readouterr()
    assert code == 0, printed.err
    return [json.loads(line) for line in printed.out.splitlines()], " ".join(printed.err.split())


@pytest.fixture
def labelled(tmp_path, monkeypatch):
    """A matrix file of 6 test queries, one of them without a label."""
    monkeypatch.chdir(tmp_path)
    scores = matrix().scores
    gold = np.append(scores[:-1].argmax(axis=1), -1)
    names = {"query_ids": matrix().query_ids, "item_ids": [f"i{i}" for i in range(80)]}
    np.savez("m.npz", scores=scores, n_anchors=20, labels=gold, **names)
    np.savez("bare.npz", scores=scores, n_anchors=20)
    (tmp_path / "qrels.tsv").write_text("query 20\ti3\t1\nquery 20\tgone\t1\n")


def test_replay_prints_measures_of_the_labels_and_says_what_it_leaves_out(labelled, capsys):
    methods = "exact, rerank(retriever=oracle_topk(masked=1))"
    (exact, masked), said = rows(capsys, "m.npz", "--methods", methods, "-k", "1")
    assert said == ("1 of 6 queries have no judgements and are left out of the task's measures")
    assert exact["measures"] == {
        "accuracy": 1.0, "accuracy_normalised": 1.0, "nDCG@10": 1.0,
        "R@10": 1.0, "R@20": 1.0, "R@100": 1.0, "RR@10": 1.0,
    }  # fmt: skip
    assert (exact["unjudged"], exact["measures_n"]["accuracy"]) == (1, 5)
    assert masked["measures"]["accuracy"] == masked["recall"] == 0
    assert masked["measures"]["accuracy_normalised"] is None  # the gold item was never scored


def test_replay_takes_qrels_in_place_of_labels(labelled, capsys):
    options = ("--methods", "exact", "-k", "1", "--qrels", "qrels.tsv", "--measures", "R@100")
    (row,), said = rows(capsys, "m.npz", *options)
    assert row["measures"] == {"R@100": 0.5}
    assert "5 of 6 queries have no judgements" in said
    assert "1 judged items are not among the items" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["bare.npz", "--measures", "RR@10"], "--measures needs judgements"),
        (["bare.npz", "--qrels", "qrels.tsv"], "needs the key 'item_ids'"),
        (["m.npz", "-k", "1,81"], "k is 81, but m.npz has only 80 items: give a smaller k with -k"),
    ],
)
def test_what_replay_refuses(labelled, capsys, options, words):
    assert run(["replay", "--methods", "exact", *options]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
