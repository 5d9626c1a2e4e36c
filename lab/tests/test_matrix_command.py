"""`crossknn-lab collect-matrix`: a score matrix of an index, in the command line."""

from __future__ import annotations

import json

import numpy as np
import pytest

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
