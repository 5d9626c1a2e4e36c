"""`crossknn-lab sweep` through the real command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from sweep_helpers import write_matrix, write_sweep

KEYS = {
    "matrices": ["m.npz"],
    "methods": ["rerank(retriever=dense)"],
    "budgets": [5, 10],
    "k": [1, 5],
}

UNLABELLED = "m: 2 of 6 test queries have no label, and no part in the task's measures"


def crossknn(where, *arguments: str):
    return subprocess.run(
        [sys.executable, "-m", "crossknn_lab", *arguments],
        cwd=where,
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "COLUMNS": "200", "NO_COLOR": "1"},
    )


@pytest.fixture
def folder(tmp_path):
    write_matrix(tmp_path / "m.npz")
    write_sweep(tmp_path / "s.toml", **KEYS)
    return tmp_path


def test_a_table_and_one_line_about_it(folder):
    done = crossknn(folder, "sweep", "s.toml", "--out", "out", "--workers", "1")
    assert (done.returncode, done.stderr) == (0, UNLABELLED + "\n")
    assert done.stdout.startswith(
        "out/table.csv: 4 rows; 2 searched now, 0 kept from before, 0 failed, "
    )
    assert (folder / "out" / "table.csv").read_text().count("\n") == 1 + 4
    done = crossknn(folder, "sweep", "s.toml", "--out", "out", "--json")
    found = json.loads(done.stdout)
    assert (found["searched"], found["kept"], found["failed"], found["rows"]) == (0, 2, 0, 4)


def test_what_fails_and_what_is_left_out_is_said_and_the_exit_code_is_1(folder):
    write_sweep(folder / "s.toml", **(KEYS | {"methods": ["itemcur", "exact"], "anchors": [9, 99]}))
    done = crossknn(folder, "sweep", "s.toml", "--out", "out", "--workers", "1")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "m has 20 anchor queries: anchors = 99 left out (4 searches)",
        UNLABELLED,
        "failed: m, itemcur: itemcur needs item x item scores, and there are none here: add them "
        "with  crossknn collect INDEX --item-scores N  (in a matrix file: the keys item_scores, "
        "item_score_items) (2 searches)",
    ]
    assert "4 rows" not in done.stdout
    assert "8 rows; 4 searched now, 0 kept from before, 2 failed" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("absent.toml", "--out", "out"), "there is no file absent.toml"),
        (("empty.toml", "--out", "out"), "empty.toml: an empty sweep: budgets names nothing"),
        (("large.toml", "--out", "out"), "k is 500, but m has 80 items"),
        (("s.toml", "--out", "m.npz"), "--out m.npz is a file; give a folder"),
        (("s.toml", "--out", "a/b"), "--out a/b: there is no folder a"),
        (("s.toml", "--out", "out", "--workers", "0"), "workers is 0; it must be 1 or more"),
    ],
)
def test_wrong_input_is_one_sentence_and_leaves_nothing(folder, arguments, words):
    write_sweep(folder / "empty.toml", **(KEYS | {"budgets": []}))
    write_sweep(folder / "large.toml", **(KEYS | {"k": [500]}))
    done = crossknn(folder, "sweep", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    (sentence,) = done.stderr.splitlines()
    assert sentence.startswith(f"crossknn: {words}")
    assert not (folder / "out").exists()
