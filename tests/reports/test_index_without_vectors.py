"""Indexes of words alone (`--encoder none --lsa 0`), and approximate ones of few items."""

import logging
import shutil
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run

TOPICS = ("archives", "threads", "files", "strings", "queues", "dates", "ports", "locks")
TEXTS = [f"part {i} on {TOPICS[i % 8]} and {TOPICS[i // 8 % 8]}" for i in range(80)]
QUERY = "threads or locks"


def overlap(pairs):
    return [3.0 * len({*q.split()} & {*t.split()}) - len(t) / 50 for q, t in pairs]


@pytest.fixture
def index():
    return ck.ItemIndex.build(TEXTS, lsa=0)


@pytest.mark.parametrize("method", ["auto", "kriging(rounds=5)", "auto(k=100)"])
@pytest.mark.parametrize("budget", [1, 2, 30, 200])
def test_the_default_method_searches_by_words(index, method, budget):
    assert not index.vectors
    found = ck.Searcher(index, overlap, method).search(QUERY, k=5, budget=budget)
    words = ck.Searcher(index, overlap, "rerank(retriever=bm25)").search(QUERY, k=5, budget=budget)
    assert found.n_scored == min(budget, 80)
    assert [hit.score for hit in found[0]] == [hit.score for hit in words[0]]
    texts = ["archives", QUERY, "no word of it", "\u2605"]
    assert len(ck.Searcher(index, overlap, method).search(texts, k=3, budget=budget)) == 4


def test_more_hits_than_calls_and_filters_and_added_items(index):
    search = ck.Searcher(index, ck.CallableScorer(overlap, "words")).search
    found = search(QUERY, k=80, budget=10)
    assert sorted(hit.position for hit in found[0]) == list(range(80))
    allowed = np.arange(80) % 2 == 0
    assert all(hit.position % 2 == 0 for hit in search(QUERY, k=9, budget=9, filter=allowed)[0])
    ck.collect_anchors(index, ck.CallableScorer(overlap, "words"), ["files", "dates", "ports"])
    index.add([{"id": "new", "text": QUERY}])
    index.delete(["3"])
    assert search(QUERY, k=3, budget=10)[0][0].id == "new"
    index.compact()
    assert search(QUERY, k=3, budget=10)[0][0].id == "new"


faiss = pytest.mark.skipif(find_spec("faiss") is None, reason="needs faiss")


@faiss
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


@faiss
@pytest.mark.parametrize("n", [1, 5, 20])
def test_few_items_in_python_with_anchors_and_after_deletions(tmp_path, n):
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


@faiss
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
