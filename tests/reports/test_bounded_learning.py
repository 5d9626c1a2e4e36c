"""Learning is bounded: a search of the command line waits two seconds, and fits read a sample."""

import subprocess
import time

import numpy as np
import pytest

import crossknn as ck
from crossknn.cli.app import run
from crossknn.fitting import learning
from crossknn.methods.prior import stored_prior
from crossknn.types import Pairs

WORDS = [f"word{w}" for w in range(300)]


@pytest.fixture
def used(tmp_path):
    """An index of 200 items whose store has 109,000 scores of 10,900 queries."""
    rng = np.random.default_rng(0)
    items = [" ".join(rng.choice(WORDS, 12)) for _ in range(200)]
    index = ck.ItemIndex.build(items, lsa=16)
    index.save(tmp_path / "i")
    queries = [f"{WORDS[q % 300]} number {q}" for q in range(10_900)]
    pairs = Pairs(np.repeat(np.arange(10_900), 10), (np.arange(109_000) * 7) % 200)
    scorer = ck.CrossEncoder()
    scores = rng.normal(size=109_000).astype(np.float32)
    index.scores.put(scorer.fingerprint, queries, items, pairs, scores)
    return tmp_path / "i", scorer.fingerprint, queries


def test_a_search_after_eleven_thousand_queries(used, monkeypatch, capsys):
    folder, _, _ = used
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


def test_a_sample_of_the_newest_queries(used):
    folder, fingerprint, queries = used
    known = learning.searched_scores(ck.ItemIndex.load(folder), fingerprint)
    assert len(known.scored_queries) == learning.QUERIES == 1_000
    assert {*known.queries} == {*queries[-1_000:]}
    assert len(known) == 10_000


def test_a_sample_of_scores(used):
    folder, fingerprint, _ = used
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
    pairs = Pairs(np.repeat(np.arange(40), 10), (np.arange(400) * 7) % 50)
    index.scores.put("one", queries, index.items.texts, pairs, rng.normal(size=400))
    assert learning.learn_apart(tmp_path / "i", "one", 120)
    assert stored_prior(ck.ItemIndex.load(tmp_path / "i")).queries == 40
    with pytest.raises(ck.InputError, match="there is no index"):
        learning.learn_apart(tmp_path / "gone", "one", 120)
