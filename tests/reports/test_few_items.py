"""An approximate index of few items: the search is exact, which is said once."""

import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run

pytest.importorskip("faiss")


def overlap(pairs):
    return [float(len({*q.split()} & {*t.split()})) for q, t in pairs]


@pytest.mark.parametrize(
    ("command", "n"), [("build", 1), ("build", 15), ("prepare", 3), ("prepare", 16)]
)
def test_nearest_with_few_items(tmp_path, caplog, n, command):
    """`--nearest` over 3 items ended in a traceback of faiss ("should be at least as large")."""
    items, folder = tmp_path / "items.txt", str(tmp_path / "index")
    items.write_text("\n".join(f"item {i} of group {i % 7}" for i in range(n)))
    with caplog.at_level(logging.WARNING):
        nearest = ["--nearest"] * (command == "build")
        assert run(["index", "build", str(items), folder, *nearest]) == 0
        if command == "prepare":
            assert run(["index", "prepare", folder, "--nearest"]) == 0
    said = [record for record in caplog.records if "each search is exact" in record.getMessage()]
    assert len(said) == (n < 16)
    k = min(n, 3)
    index = ck.ItemIndex.load(folder)
    assert len(ck.Searcher(index, overlap).search("group 2", k=k, budget=n)[0]) == k
    own = ck.Searcher(index, overlap, "retrieve(retriever=dense)").search("group 2", k=k)[0]
    exact = ck.ItemIndex.load(folder)
    shutil.rmtree(Path(folder) / "nearest-dense", ignore_errors=True)
    right = ck.Searcher(exact, overlap, "retrieve(retriever=dense)").search("group 2", k=k)[0]
    assert len(own) == len(right)
    if n < 16:
        assert [hit.id for hit in own] == [hit.id for hit in right]


@pytest.mark.parametrize("n", [1, 5, 20])
def test_in_python_with_anchors_and_after_deletions(tmp_path, n):
    vectors = np.random.default_rng(0).normal(size=(n, 5)).astype(np.float32)
    texts = [f"text {i}" for i in range(n)]
    made = {"vectors": vectors, "query_vectors": lambda q: vectors[[0] * len(q)]}
    index = ck.ItemIndex.build([{"id": t, "text": t} for t in texts], **made)
    ck.collect_anchors(index, ck.CallableScorer(overlap, "words"), ["text 1", "text 2"])
    index.save(tmp_path / "index")
    index.add_nearest()
    assert len(ck.Searcher(index, overlap).search("text 0", k=1, budget=n)[0]) == 1
    if n > 16:
        index.delete(texts[4:])
        index.compact()
        assert len(ck.Searcher(index, overlap).search("text 0", k=4, budget=4)[0]) == 4


def test_nearest_without_vectors_says_what_is_missing(tmp_path, capsys):
    items, folder = tmp_path / "items.txt", tmp_path / "index"
    items.write_text("one\ntwo\n")
    line = ["index", "build", str(items), str(folder), "--encoder", "none", "--lsa", "0"]
    assert run([*line, "--nearest"]) == 2
    assert "--nearest needs item vectors" in capsys.readouterr().err
    assert not folder.exists()
    assert run(line) == 0
    assert run(["index", "prepare", str(folder), "--nearest"]) == 2
    assert "this index has no item vectors: build it with" in capsys.readouterr().err
