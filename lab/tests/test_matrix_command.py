"""`crossknn-lab collect-matrix` and `crossknn-lab replay`: matrices of an index, and searches of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from synthetic import matrix

from crossknn.cli.app import run as crossknn
from crossknn_lab.cli import run
from crossknn_lab.stored import StoredMatrix, read_arrays

TEXTS = [f"how to {verb} a {noun}" for verb in ("zip", "sort", "copy") for noun in ("file", "list")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs.txt").write_text("\n".join(TEXTS))
    (tmp_path / "queries.txt").write_text("zip it\nsort these\ncopy that\nfiles\n")
    (tmp_path / "qrels.tsv").write_text("2\t0\t1\t1\n3\t0\tgone\t1\n")
    assert crossknn(["index", "build", "docs.txt", "docs.index", "--encoder", "none"]) == 0
    return tmp_path


COMMAND = ("collect-matrix", "docs.index", "--queries", "queries.txt", "--out", "m.npz", "--json")


def test_it_costs_only_what_the_index_lacks(folder, capsys):
    search = ("search", "docs.index", "zip it", "--method", "rerank(retriever=bm25)")
    assert crossknn([*search, "--budget", "3", "-k", "2"]) == 0
    capsys.readouterr()
    options = ("--qrels", "qrels.tsv", "--n-anchors", "1", "--item-scores", "2")
    assert run([*COMMAND, *options]) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["calls"], made["reused"], made["complete"]) == (6 * 6 - 3, 3, True)
    arrays = read_arrays(folder / "m.npz")
    assert (arrays["scores"].shape, arrays["scores"].dtype) == ((4, 6), np.float32)
    assert arrays["qrels"].tolist() == [[1, 0, 1], [2, -1, 1]]
    assert arrays["item_scores"].shape == (2, 6)
    assert run(COMMAND) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 0
    assert StoredMatrix.load(folder / "m.npz").n_anchors == 2


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--out", "absent/m.npz"), "absent"),
        (("--out", "docs.txt"), "must be an .npz file"),
        (("--n-anchors", "4"), "n_anchors is 4; it must be 0 to 3"),
        (("--item-scores", "7"), "item_scores is 7; it must be 0 to 6"),
    ],
)
def test_what_cannot_be_is_one_sentence(folder, capsys, options, said):
    assert run([*COMMAND, *options]) == 2
    assert said in capsys.readouterr().err
    assert not (folder / "m.npz").exists()


# Replay: the task's measures, what is left out, oracles


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
