"""The score cache: nothing is paid twice, nothing is lost, nothing is mixed up."""

import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scorer_helpers import collect, grid

from crossknn.errors import InputError
from crossknn.scorers import CachedScorer, CallableScorer, NothingScoredError
from crossknn.scorers.base import Scorer
from crossknn.types import Pairs


class Counting:
    """Scores by the texts' lengths and remembers every pair it was asked for."""

    def __init__(self, pause=0.0):
        self.asked = []
        self.pause = pause

    def __call__(self, pairs):
        time.sleep(self.pause)
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
        paid = answered = 0
        for rows in calls:
            pairs = Pairs(
                np.array([r[0] for r in rows], dtype=np.int64),
                np.array([r[1] for r in rows], dtype=np.int64),
            )
            # Opened anew for each call: only the file carries scores over.
            inner = CallableScorer(fn, "f", batch=3)
            with CachedScorer(inner, Path(folder) / "cache.sqlite") as scorer:
                found = collect(scorer, pairs, queries, items)
                paid += scorer.misses
                answered += scorer.hits + scorer.misses
            np.testing.assert_array_equal(found, expected(pairs, queries, items))
        distinct = {(queries[q], items[i]) for rows in calls for q, i in rows}
        assert sorted(fn.asked) == sorted(distinct)
        assert paid == len(distinct)
        assert answered == sum(map(len, calls))


def test_known_pairs_come_first_and_at_once(tmp_path):
    fn = Counting()
    scorer = CachedScorer(CallableScorer(fn, "f", batch=2), tmp_path / "c")
    collect(scorer, Pairs(np.zeros(4, int), np.array([1, 3, 5, 7])), QUERIES, ITEMS)
    fn.asked.clear()
    positions, _ = next(scorer.score(Pairs(np.zeros(10, int), np.arange(10)), QUERIES, ITEMS))
    assert sorted(positions) == [1, 3, 5, 7]
    assert fn.asked == []


def test_stopping_in_the_middle_keeps_what_was_paid(tmp_path):
    fn = Counting()
    scorer = CachedScorer(CallableScorer(fn, "f", batch=4), tmp_path / "c")
    stream = scorer.score(grid(3, 10), QUERIES, ITEMS)
    next(stream)
    next(stream)
    stream.close()
    paid = list(fn.asked)
    assert len(paid) == 8
    again = CachedScorer(CallableScorer(fn, "f", batch=4), tmp_path / "c")
    fn.asked.clear()
    collect(again, grid(3, 10), QUERIES, ITEMS)
    assert not set(paid) & set(fn.asked)
    assert (again.hits, again.misses) == (8, 22)


KILLED = """
import os, sys
import numpy as np
from crossknn.scorers import CachedScorer, CallableScorer
from crossknn.types import Pairs
scorer = CachedScorer(CallableScorer(lambda p: [1.5] * len(p), "f", batch=5), sys.argv[1])
pairs = Pairs(np.zeros(40, int), np.arange(40))
for n, _ in enumerate(scorer.score(pairs, ["q"], [str(i) for i in range(40)])):
    if n == 3:
        os._exit(9)
"""


def test_a_killed_process_loses_at_most_one_batch(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "c")], check=False)
    assert done.returncode == 9
    fn = Counting()
    scorer = CachedScorer(CallableScorer(fn, "f"), tmp_path / "c")
    items = [str(i) for i in range(40)]
    found = collect(scorer, Pairs(np.zeros(40, int), np.arange(40)), ["q"], items)
    assert scorer.hits >= 15
    assert (found == 1.5).sum() == scorer.hits


FILLING = """
import sys
import numpy as np
from crossknn.scorers import CachedScorer, CallableScorer
from crossknn.types import Pairs
fn = lambda pairs: [float(i) for _, i in pairs]
scorer = CachedScorer(CallableScorer(fn, "f", batch=3), sys.argv[1])
items = [str(i) for i in range(200)]
start = int(sys.argv[2])
pairs = Pairs(np.zeros(100, int), np.arange(start, start + 100))
assert sum(len(p) for p, _ in scorer.score(pairs, ["q"], items)) == 100
"""


def test_processes_share_a_new_file(tmp_path):
    path = str(tmp_path / "c")
    running = [
        subprocess.Popen([sys.executable, "-c", FILLING, path, str(start)])
        for start in (0, 50, 100)
    ]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    fn = Counting()
    scorer = CachedScorer(CallableScorer(fn, "f"), path)
    items = [str(i) for i in range(200)]
    found = collect(scorer, Pairs(np.zeros(200, int), np.arange(200)), ["q"], items)
    np.testing.assert_array_equal(found, np.arange(200))
    assert fn.asked == []


def in_threads(n, work):
    errors = []

    def guarded(number):
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(i,)) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []


def test_threads_asking_the_same_pay_once(tmp_path):
    fn = Counting(pause=0.01)
    scorer = CachedScorer(CallableScorer(fn, "f", batch=5), tmp_path / "c")
    pairs = grid(3, 10)

    def work(number):
        order = np.random.default_rng(number).permutation(len(pairs))
        found = collect(scorer, pairs.take(order), QUERIES, ITEMS)
        np.testing.assert_array_equal(found, expected(pairs.take(order), QUERIES, ITEMS))

    in_threads(6, work)
    assert len(fn.asked) == len(set(fn.asked)) == 30
    assert (scorer.hits, scorer.misses) == (150, 30)


def test_a_thread_that_gives_up_leaves_its_pairs_to_the_others(tmp_path):
    fn = Counting()
    scorer = CachedScorer(CallableScorer(fn, "f", batch=5), tmp_path / "c")
    pairs = Pairs(np.zeros(10, int), np.arange(10))
    stopped = scorer.score(pairs, QUERIES, ITEMS)
    next(stopped)
    threading.Timer(0.2, stopped.close).start()
    start = time.monotonic()
    in_threads(1, lambda _: collect(scorer, pairs, QUERIES, ITEMS))
    assert time.monotonic() - start < 10
    assert len(fn.asked) == 10


def test_what_was_scored_since_the_first_look_is_not_paid_again(tmp_path):
    fn = Counting()
    scorer = CachedScorer(CallableScorer(fn, "f"), tmp_path / "c")
    pairs = Pairs(np.zeros(10, int), np.arange(10))
    collect(scorer, pairs.take(slice(0, 1)), QUERIES, ITEMS)
    slow = scorer.score(pairs, QUERIES, ITEMS)
    assert next(slow)[0].tolist() == [0]
    collect(scorer, pairs, QUERIES, ITEMS)
    assert sum(len(positions) for positions, _ in slow) == 9
    assert len(fn.asked) == 10
    assert slow.computed == 0


def test_a_stream_knows_what_it_computed_itself(tmp_path):
    scorer = CachedScorer(CallableScorer(Counting(), "f", batch=4), tmp_path / "c")
    pairs = Pairs(np.zeros(12, int), np.array([*range(10), 0, 1]))
    collect(scorer, pairs.take(slice(0, 3)), QUERIES, ITEMS)
    stream = scorer.score(pairs, QUERIES, ITEMS)
    seen = []
    for positions, _ in stream:
        seen.append((len(positions), stream.computed))
    # Items 0 to 2 are known, 0 and 1 are there twice; then four and three new ones.
    assert seen == [(5, 0), (4, 4), (3, 7)]


def test_two_streams_in_one_thread_do_not_wait_for_each_other(tmp_path):
    scorer = CachedScorer(CallableScorer(Counting(), "f", batch=5), tmp_path / "c")
    pairs = Pairs(np.zeros(10, int), np.arange(10))
    first = scorer.score(pairs, QUERIES, ITEMS)
    next(first)
    start = time.monotonic()
    found = collect(scorer, pairs, QUERIES, ITEMS)
    assert time.monotonic() - start < 5
    np.testing.assert_array_equal(found, expected(pairs, QUERIES, ITEMS))
    assert sum(len(positions) for positions, _ in first) == 5


def test_models_do_not_see_each_others_scores(tmp_path):
    pairs = grid(1, 3)
    one = CachedScorer(CallableScorer(lambda p: [1.0] * len(p), "one"), tmp_path / "c")
    two = CachedScorer(CallableScorer(lambda p: [2.0] * len(p), "two"), tmp_path / "c")
    for _ in range(2):
        assert set(collect(one, pairs, QUERIES, ITEMS)) == {1.0}
        assert set(collect(two, pairs, QUERIES, ITEMS)) == {2.0}
    assert one.misses == two.misses == 3


def test_a_fingerprint_is_needed(tmp_path):
    with pytest.raises(InputError, match="has no fingerprint"):
        CachedScorer(CallableScorer(Counting()), tmp_path / "c")
    scorer = CachedScorer(CallableScorer(Counting()), tmp_path / "c", fingerprint="v1")
    assert scorer.fingerprint == "v1"
    assert isinstance(scorer, Scorer)


def test_a_pair_that_cannot_be_scored_fails_nothing(tmp_path):
    def fn(pairs):
        if any(i == "x" for _, i in pairs):
            raise ValueError("no")
        return [0.5] * len(pairs)

    scorer = CachedScorer(CallableScorer(fn, "f"), tmp_path / "c")
    pairs = Pairs(np.zeros(10, int), np.arange(10))
    first = collect(scorer, pairs, QUERIES, ITEMS)
    # Now only the pair at fault is left to the scorer; the others are known.
    second = collect(scorer, pairs, QUERIES, ITEMS)
    for found in (first, second):
        assert np.isnan(found[0])
        assert (found[1:] == 0.5).all()
    with pytest.raises(NothingScoredError):
        collect(scorer, pairs.take(slice(0, 1)), QUERIES, ITEMS)


@pytest.mark.parametrize("store", [True, False])
def test_query_texts_are_kept_once_or_not_at_all(tmp_path, store):
    path = tmp_path / "c"
    with CachedScorer(CallableScorer(Counting(), "f"), path, store_queries=store) as scorer:
        collect(scorer, grid(3, 10), QUERIES, ITEMS)
        assert sorted(scorer.query_texts()) == (QUERIES if store else [])
    content = b"".join(p.read_bytes() for p in tmp_path.iterdir())
    assert (b"ccc" in content) == store


def test_a_damaged_or_foreign_file_is_one_clear_error(tmp_path):
    scorer = CallableScorer(Counting(), "f")
    (tmp_path / "text").write_text("not a database, " * 100)
    with pytest.raises(InputError, match="not a readable score cache"):
        CachedScorer(scorer, tmp_path / "text")
    other = sqlite3.connect(tmp_path / "other")
    other.execute("CREATE TABLE t (a)")
    other.commit()
    other.close()
    with pytest.raises(InputError, match="not a crossknn score cache"):
        CachedScorer(scorer, tmp_path / "other")
    with pytest.raises(InputError, match="cannot open"):
        CachedScorer(scorer, tmp_path / "absent" / "c")
    CachedScorer(scorer, tmp_path / "new").close()
    newer = sqlite3.connect(tmp_path / "new")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(InputError, match="upgrade crossknn"):
        CachedScorer(scorer, tmp_path / "new")


def test_a_file_that_cannot_be_written_costs_no_answer(tmp_path, caplog):
    scorer = CachedScorer(CallableScorer(Counting(), "f"), tmp_path / "c")
    # A database that may not grow stands in for a full disk.
    scorer._store._db.execute("PRAGMA max_page_count = 1")
    items = [f"{i}" * 3 for i in range(5000)]
    pairs = Pairs(np.zeros(5000, int), np.arange(5000))
    found = collect(scorer, pairs, QUERIES, items)
    np.testing.assert_array_equal(found, expected(pairs, QUERIES, items))
    assert sum("not being kept" in r.getMessage() for r in caplog.records) == 1
