"""The view of the store that a search uses: nothing is scored twice, lost or mixed up."""

import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.scorers import CallableScorer, NothingScoredError
from crossknn.scorers.base import Scorer
from crossknn.scores.stored import StoredScorer
from crossknn.types import Pairs


def grid(m, n):
    """All pairs of m queries and n items."""
    return Pairs(np.repeat(np.arange(m), n), np.tile(np.arange(n), m))


def collect(scorer, pairs, queries, items):
    """Scores (p,), NaN where a pair was left out; every pair at most once."""
    scores = np.full(len(pairs), np.nan)
    for positions, values in scorer.score(pairs, queries, items):
        assert np.isnan(scores[positions]).all()
        scores[positions] = values
    return scores


class Counting:
    """Scores by the texts' lengths and remembers every pair it was asked for."""

    def __init__(self):
        self.asked = []

    def __call__(self, pairs):
        self.asked += pairs
        return [len(q) + len(i) / 100 for q, i in pairs]


def expected(pairs, queries, items):
    rows = zip(pairs.query, pairs.item, strict=True)
    return np.array([len(queries[q]) + len(items[i]) / 100 for q, i in rows], dtype=np.float32)


QUERIES = ["a", "bb", "ccc"]
ITEMS = ["x" * i for i in range(1, 11)]


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_sequence_of_calls_pays_every_distinct_pair_once(data):
    texts = st.text(max_size=3)
    queries = data.draw(st.lists(texts, min_size=1, max_size=4))
    items = data.draw(st.lists(texts, min_size=1, max_size=6))
    row = st.tuples(st.integers(0, len(queries) - 1), st.integers(0, len(items) - 1))
    calls = data.draw(st.lists(st.lists(row, max_size=15), min_size=1, max_size=4))
    with tempfile.TemporaryDirectory() as folder:
        fn = Counting()
        scored = 0
        for rows in calls:
            pairs = Pairs(
                np.array([r[0] for r in rows], dtype=np.int64),
                np.array([r[1] for r in rows], dtype=np.int64),
            )
            # Opened anew for each call: only the file carries scores over.
            inner = CallableScorer(fn, "f", batch=3)
            scorer = StoredScorer(inner, Path(folder) / "scores.db")
            before = len(fn.asked)
            found = collect(scorer, pairs, queries, items)
            scorer.store.close()
            scored += len(fn.asked) - before
            np.testing.assert_array_equal(found, expected(pairs, queries, items))
        distinct = {(queries[q], items[i]) for rows in calls for q, i in rows}
        assert sorted(fn.asked) == sorted(distinct)
        assert scored == len(distinct)


def test_stopping_in_the_middle_keeps_what_was_paid(tmp_path):
    fn = Counting()
    scorer = StoredScorer(CallableScorer(fn, "f", batch=4), tmp_path / "c")
    stream = scorer.score(grid(3, 10), QUERIES, ITEMS)
    next(stream)
    next(stream)
    stream.close()
    paid = list(fn.asked)
    assert len(paid) == 8
    again = StoredScorer(CallableScorer(fn, "f", batch=4), tmp_path / "c")
    fn.asked.clear()
    collect(again, grid(3, 10), QUERIES, ITEMS)
    assert not set(paid) & set(fn.asked)
    assert len(fn.asked) == 22


def test_a_stream_knows_what_it_computed_itself(tmp_path):
    scorer = StoredScorer(CallableScorer(Counting(), "f", batch=4), tmp_path / "c")
    pairs = Pairs(np.zeros(12, int), np.array([*range(10), 0, 1]))
    collect(scorer, pairs.take(slice(0, 3)), QUERIES, ITEMS)
    stream = scorer.score(pairs, QUERIES, ITEMS)
    seen = []
    for positions, _ in stream:
        seen.append((len(positions), stream.computed))
    # Items 0 to 2 are known, 0 and 1 are there twice; then four and three new ones.
    assert seen == [(5, 0), (4, 4), (3, 7)]


def test_a_fingerprint_is_needed(tmp_path):
    with pytest.raises(InputError, match="has no fingerprint"):
        StoredScorer(CallableScorer(Counting()), tmp_path / "c")
    scorer = StoredScorer(CallableScorer(Counting()), tmp_path / "c", fingerprint="v1")
    assert scorer.fingerprint == "v1"
    assert isinstance(scorer, Scorer)


def test_a_pair_that_cannot_be_scored_fails_nothing(tmp_path):
    def fn(pairs):
        if any(i == "x" for _, i in pairs):
            raise ValueError("no")
        return [0.5] * len(pairs)

    scorer = StoredScorer(CallableScorer(fn, "f"), tmp_path / "c")
    pairs = Pairs(np.zeros(10, int), np.arange(10))
    first = collect(scorer, pairs, QUERIES, ITEMS)
    # Now only the pair at fault is left to the scorer; the others are known.
    second = collect(scorer, pairs, QUERIES, ITEMS)
    for found in (first, second):
        assert np.isnan(found[0])
        assert (found[1:] == 0.5).all()
    with pytest.raises(NothingScoredError):
        collect(scorer, pairs.take(slice(0, 1)), QUERIES, ITEMS)


def test_a_file_that_cannot_be_written_costs_no_answer(tmp_path, caplog):
    scorer = StoredScorer(CallableScorer(Counting(), "f"), tmp_path / "c")
    # A database that may not grow stands in for a full disk.
    scorer.store._opened().execute("PRAGMA max_page_count = 1")
    items = [f"{i}" * 3 for i in range(5000)]
    pairs = Pairs(np.zeros(5000, int), np.arange(5000))
    found = collect(scorer, pairs, QUERIES, items)
    np.testing.assert_array_equal(found, expected(pairs, QUERIES, items))
    assert sum("cannot be kept" in r.getMessage() for r in caplog.records) == 1


def test_threads_share_one_scorer(tmp_path):
    scorer = StoredScorer(CallableScorer(Counting(), "f", batch=5), tmp_path / "c")
    pairs, found = grid(3, 10), []

    def work(number):
        order = np.random.default_rng(number).permutation(len(pairs))
        wanted = expected(pairs.take(order), QUERIES, ITEMS)
        found.append((collect(scorer, pairs.take(order), QUERIES, ITEMS) == wanted).all())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert found == [True] * 6
    assert len(scorer.store) == 30
