"""The store of scores has a limit and keeps no query's text if it is not to; learning is bounded."""

import json
import subprocess
import time

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run
from crossknn.fitting import learning
from crossknn.methods.prior import stored_prior
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
    assert run(["search", "i", *(f"q {q}" for q in range(40)), "--budget", "20", "--private"]) == 0
    assert "fitting" not in capsys.readouterr().err


WORDS = [f"word{w}" for w in range(300)]


@pytest.fixture
def well_used(tmp_path):
    """An index of 200 items whose store has 218,000 scores of 10,900 queries."""
    rng = np.random.default_rng(0)
    items = [" ".join(rng.choice(WORDS, 12)) for _ in range(200)]
    index = ck.ItemIndex.build(items, lsa=16)
    index.save(tmp_path / "i")
    queries = [f"{WORDS[q % 300]} number {q}" for q in range(10_900)]
    pairs = Pairs(np.repeat(np.arange(10_900), 20), (np.arange(218_000) * 7) % 200)
    scorer = ck.CrossEncoder()
    scores = rng.normal(size=218_000).astype(np.float32)
    index.scores.put(scorer.fingerprint, queries, items, pairs, scores)
    return tmp_path / "i", scorer.fingerprint, queries


def test_a_search_after_eleven_thousand_queries(well_used, monkeypatch, capsys):
    folder, _, _ = well_used
    started, begin = [], subprocess.Popen
    record = lambda *args, **how: started.append(begin(*args, **how)) or started[-1]  # noqa: E731
    monkeypatch.setattr(subprocess, "Popen", record)
    monkeypatch.setattr(learning, "PATIENCE", 2.0)
    learn, seconds = learning.learn_apart, []

    def timed(*given):
        before = time.perf_counter()
        ended = learn(*given)
        seconds.append(time.perf_counter() - before)
        return ended

    monkeypatch.setattr(learning, "learn_apart", timed)
    try:
        assert run(["search", str(folder), "word1 word2", "--budget", "10"]) == 0
    finally:
        for process in started:
            process.kill()
            process.wait()
    printed = capsys.readouterr()
    assert "word1 word2" in printed.out
    assert "the fit continues in the background" in printed.err
    assert seconds[0] < 4  # two, on a machine that does other things


def test_a_sample_of_the_newest_queries(well_used):
    folder, fingerprint, queries = well_used
    known = learning.searched_scores(ck.ItemIndex.load(folder), fingerprint)
    assert len(known.scored_queries) == learning.QUERIES == 1_000
    assert {*known.queries} == {*queries[-1_000:]}
    assert len(known) == 20_000


def test_a_sample_of_scores(well_used):
    folder, fingerprint, _ = well_used
    index = ck.ItemIndex.load(folder)
    many = [f"long {q}" for q in range(800)]
    pairs = Pairs(np.repeat(np.arange(800), 190), np.tile(np.arange(190), 800))
    index.scores.put(fingerprint, many, index.items.texts, pairs, np.zeros(152_000, np.float32))
    known = learning.searched_scores(index, fingerprint)
    assert learning.SCORES - 190 < len(known) <= learning.SCORES
    assert all(text.startswith("long") for text in known.queries)


def test_a_fit_in_a_process_of_its_own(tmp_path):
    rng = np.random.default_rng(1)
    index = ck.ItemIndex.build([" ".join(rng.choice(WORDS, 12)) for _ in range(50)], lsa=4)
    index.save(tmp_path / "i")
    queries = [f"{WORDS[q]} number {q}" for q in range(40)]
    pairs = Pairs(np.repeat(np.arange(40), 20), (np.arange(800) * 7) % 50)
    index.scores.put("one", queries, index.items.texts, pairs, rng.normal(size=800))
    assert learning.learn_apart(tmp_path / "i", "one", 120)
    assert stored_prior(ck.ItemIndex.load(tmp_path / "i")).queries == 40
    with pytest.raises(ck.InputError, match="there is no index"):
        learning.learn_apart(tmp_path / "gone", "one", 120)
