"""The store of scores has a limit, can be pruned, and keeps no query's text if it is not to."""

import datetime
import json

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run
from crossknn.scores.collect import exact_scores
from crossknn.scores.store import ScoreStore
from crossknn.types import Pairs

ITEMS = [f"item {i}" for i in range(2_000)]


def put(store, name, queries, per=500):
    texts = [f"{name} {q}" for q in queries]
    pairs = Pairs(np.repeat(np.arange(len(texts)), per), np.tile(np.arange(per), len(texts)))
    store.put("fp", texts, ITEMS, pairs, np.arange(len(pairs), dtype=np.float32))
    return texts


def test_the_oldest_queries_make_room(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSKNN_STORE_LIMIT", "1")
    store, sizes = ScoreStore(tmp_path / "scores.db"), []
    for q in range(0, 2_000, 50):
        newest = put(store, "query", range(q, q + 50))
        sizes.append(store.sizes()["bytes"])
    assert max(sizes) <= 2**20
    kept = store.queries("fp")
    assert kept[-50:] == newest
    assert 200 < len(kept) < 600
    rows = store.rows("fp", kept, ITEMS[:500])
    assert np.isfinite(rows).all()
    assert rows[-50:].ravel().tolist() == list(range(25_000))
    assert np.isnan(store.rows("fp", ["query 0"], ITEMS)).all()
    assert store.verify() == []
    assert (tmp_path / "scores.db").stat().st_size < 3 * 2**20


def test_ids_of_dropped_texts_are_not_given_again(tmp_path):
    store = ScoreStore(tmp_path / "scores.db")
    put(store, "query", range(3), per=20)
    store.put("fp", ["item 3"], ITEMS, Pairs(np.zeros(5, int), np.arange(5)), np.arange(5.0))
    put(store, "later", range(2), per=20)
    before = store.rows("fp", ["later 0", "later 1"], ITEMS[:20])
    assert store.prune(keep=2) == 4
    assert np.array_equal(store.rows("fp", ["later 0", "later 1"], ITEMS[:20]), before)
    put(store, "new", range(4), per=7)
    assert np.array_equal(store.rows("fp", ["later 0", "later 1"], ITEMS[:20]), before)
    assert store.rows("fp", ["new 1"], ITEMS[:7])[0].tolist() == list(range(7, 14))
    assert np.isnan(store.rows("fp", ["item 3", "query 0"], ITEMS[:20])).all()


def test_a_collection_that_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.setenv("CROSSKNN_STORE_LIMIT", "1")
    store = ScoreStore(tmp_path / "scores.db")
    with pytest.raises(ck.InputError, match="do not fit into a store of 1 MB"):
        exact_scores(store, ck.CallableScorer(len, "x"), ["q"] * 200, ITEMS)


@pytest.fixture
def used(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ck.ItemIndex.build(ITEMS[:50], lsa=2).save("i")
    assert run(["search", "i", "one secret", "--budget", "10", "--no-learn"]) == 0
    assert run(["search", "i", "two secret", "--budget", "10", "--no-learn"]) == 0
    return tmp_path


def info(capsys):
    capsys.readouterr()
    assert run(["index", "info", "i", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_index_info_and_prune(used, capsys):
    found = info(capsys)
    assert (found["scores"], found["scored_queries"], found["query_texts_kept"]) == (20, 2, 2)
    assert found["store_limit_mb"] == 2048
    assert run(["index", "prune", "i", "--keep", "1"]) == 0
    assert info(capsys)["scored_queries"] == 1
    assert run(["index", "prune", "i", "--keep", "0"]) == 0
    assert info(capsys)["scores"] == 0
    for wrong in ([], ["--keep", "-1"]):
        assert run(["index", "prune", "i", *wrong]) == 2


def test_before_a_day(tmp_path, monkeypatch):
    store = ScoreStore(tmp_path / "scores.db")

    class Day(datetime.date):
        now = "2026-01-01"

        @classmethod
        def today(cls):
            return cls.fromisoformat(cls.now)

    monkeypatch.setattr("crossknn.scores.store.date", Day)
    put(store, "a", range(2), per=5)
    Day.now = "2026-02-01"
    put(store, "b", range(2), per=5)
    put(store, "a", range(1), per=9)  # new scores of an old query
    assert store.prune(before="2025-12-31") == 0
    assert store.prune(before="2026-01-15") == 1
    assert sorted(store.queries("fp")) == ["a 0", "b 0", "b 1"]


def test_private_searches_leave_no_text(used, capsys):
    ask = ["search", "i", "my illness", "--budget", "10", "--private", "--json"]
    for calls in (10, 0):
        capsys.readouterr()
        assert run(ask) == 0
        assert json.loads(capsys.readouterr().out)["n_calls"] == calls
    assert run([*ask[:-2], "--json"]) == 0  # without the option, what is stored is found, too
    assert json.loads(capsys.readouterr().out)["n_calls"] == 0
    files = [path.read_bytes() for path in (used / "i").rglob("*") if path.is_file()]
    assert not any(b"my illness" in content for content in files)
    assert any(b"one secret" in content for content in files)
    assert run(["index", "prune", "i", "--private"]) == 0
    files = [path.read_bytes() for path in (used / "i").rglob("*") if path.is_file()]
    assert not any(b"secret" in content for content in files)
    found = info(capsys)
    assert (found["scored_queries"], found["query_texts_kept"]) == (3, 0)


def test_private_queries_are_not_learned_from(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ck.ItemIndex.build(ITEMS[:50], lsa=2).save("i")
    assert run(["search", "i", *(f"q {q}" for q in range(40)), "--budget", "10", "--private"]) == 0
    assert "fitting" not in capsys.readouterr().err
