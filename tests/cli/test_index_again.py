"""`crossknn index` into the folder of an index of other items: what was paid is not paid again."""

from __future__ import annotations

import json
import sys
from subprocess import PIPE, Popen

import numpy as np
import pytest
from crossknn.fitting.job import BANK

from crossknn.cli.app import run
from crossknn.fitting import rebuilt
from crossknn.index.item_index import ItemIndex

PAYING = ("--anchors", "queries.txt")
ALIGNING = ("align", "docs.index", "--queries", "queries.txt", "--per", "100")


@pytest.fixture
def index(tmp_path, monkeypatch, capsys):
    """Index these documents; what was printed as JSON, and on stderr."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queries.txt").write_text("about one\nabout two\n")

    def call(numbers, *options, folder="docs.index"):
        items = "".join(json.dumps({"id": f"d{i}", "text": f"part {i}"}) + "\n" for i in numbers)
        (tmp_path / "docs.jsonl").write_text(items)
        capsys.readouterr()
        code = run(["index", "docs.jsonl", folder, "--encoder", "none", *options, "--json"])
        printed = capsys.readouterr()
        return (json.loads(printed.out) if code == 0 else code), " ".join(printed.err.split())

    return call


@pytest.fixture
def align(capsys):
    def call(*options):
        capsys.readouterr()
        assert run([*ALIGNING, *options, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return call


@pytest.mark.parametrize("stopped", [False, True])
def test_more_documents_cost_the_anchors_of_these_alone(index, stopped):
    made, _ = index(range(10), *PAYING, *(("--max-calls", "13") if stopped else ()))
    paid = made["calls"]
    assert paid == (13 if stopped else 20)
    made, said = index([14, 12, *range(9, -1, -1)])
    assert made["anchor_queries"] == 0
    assert f"kept {paid} scores of anchors as pairs" in said
    made, said = index([14, 12, *range(9, -1, -1)], *PAYING)
    assert (made["calls"], made["anchor_queries"], said) == (2 * 12 - paid, 2, "")
    index([14, 12, *range(9, -1, -1)], *PAYING, folder="fresh.index")
    again, fresh = (ItemIndex.load(name).anchors.scores for name in ("docs.index", "fresh.index"))
    np.testing.assert_allclose(again, fresh, atol=1e-5)


def test_documents_that_come_back_are_not_paid_again(index):
    index(range(10), *PAYING)
    assert index(range(4, 12), *PAYING)[0]["calls"] == 2 * 2
    assert index(range(12), *PAYING)[0]["calls"] == 0


def test_anchors_and_aligned_vectors_of_other_documents_serve_each_other(index, align):
    index(range(10))
    assert align()["calls"] == 20
    made, said = index(range(12), *PAYING)
    assert made["calls"] == 2 * 2
    assert "dropped als; align and --anchors pay for new pairs only" in said
    made, said = index(range(13))
    assert "dropped anchors, log, kept 4 scores" in said  # the others were pairs before
    made = align()
    assert (made["calls"], made["reused"]) == (2, 24)


def test_what_cannot_be_kept_is_refused_before_anything_changes(index, monkeypatch, tmp_path):
    index(range(10), *PAYING, "--item-scores", "2")
    before = sorted(path.name for path in (tmp_path / "docs.index").iterdir())
    code, said = index(range(11))
    assert code == 2
    assert "cannot be kept: scores of items with items" in said
    assert sorted(path.name for path in (tmp_path / "docs.index").iterdir()) == before
    made, said = index(range(11), "--replace")
    assert "kept 20 scores of anchors as pairs, lost scores of items with items" in said
    made, _ = index(range(11), *PAYING)
    assert made["calls"] == 2
    monkeypatch.setattr(rebuilt, "MOST", 21)
    code, said = index(range(12))
    assert code == 2
    assert "anchors (22 scores are too many to be kept as pairs)" in said


def test_what_a_cache_has_is_not_paid_when_aligning(index, align, capsys):
    index(range(10))
    cached = ("--cache", "scores.sqlite")
    assert run(["search", "docs.index", "about one", "--budget", "7", "-k", "3", *cached]) == 0
    made = align("--max-calls", "20", *cached)
    assert (made["calls"], made["reused"], made["cost"]["calls"]) == (13, 0, 20)
    assert run([*ALIGNING, *cached, "--ray", "local"]) == 2
    assert "leave --cache out" in " ".join(capsys.readouterr().err.split())


HOLDING = """
import sys
from pathlib import Path
from crossknn.files import exclusive_lock
with exclusive_lock(Path(sys.argv[1])):
    print("holding", flush=True)
    sys.stdin.read()
"""


def test_anchors_are_not_paid_for_beside_an_alignment(index, tmp_path):
    index(range(10))
    pairs = tmp_path / "docs.index" / BANK
    with Popen([sys.executable, "-c", HOLDING, str(pairs)], stdin=PIPE, stdout=PIPE) as other:
        assert other.stdout.readline() == b"holding\n"
        code, said = index(range(10), *PAYING)
    assert code == 2
    assert "another process is adding scores to docs.index/work-pairs; wait for it" in said
    assert not list((tmp_path / "docs.index").glob("work-*"))
    assert index(range(10), *PAYING)[0]["calls"] == 20
