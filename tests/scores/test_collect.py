"""Collecting, and searching with a store: nothing is scored twice, lost or mixed up."""

from __future__ import annotations

import signal
import threading
import time
from multiprocessing import get_context

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import collect as scores_of

from crossknn import CallableScorer, ItemIndex, Searcher
from crossknn.errors import ScorerError
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import NothingScoredError
from crossknn.scores import stored
from crossknn.scores.collect import Limits, collect, exact_scores
from crossknn.scores.database import StoredScoresError
from crossknn.scores.store import ScoreStore, ScoreTable
from crossknn.scores.stored import StoredScorer
from crossknn.types import Pairs

QUERIES = [f"query {q}" for q in range(7)]
ITEMS = [f"item {i}" for i in range(90)]


def value(query, item):
    return len(query) * 3 + hash((query, item)) % 1000 / 7


class Counting:
    """Scores, remembers what it was asked, and may fail or be slow."""

    def __init__(self, *, batch=8, fail_after=None, pause=0.0, broken=()):
        self.asked, self.batch = [], batch
        self.fail_after, self.pause, self.broken = fail_after, pause, broken
        self._lock = threading.Lock()

    @property
    def scorer(self):
        return CallableScorer(self, "counting", batch=self.batch)

    def __call__(self, pairs):
        time.sleep(self.pause)
        with self._lock:
            if self.fail_after is not None and len(self.asked) + len(pairs) > self.fail_after:
                raise ScorerError("the endpoint is gone")
            if any(item in self.broken for _, item in pairs):
                raise ValueError("cannot read it")
            self.asked += pairs
        return [value(q, i) for q, i in pairs]


def exact(queries=QUERIES, items=ITEMS):
    return np.array([[value(q, i) for i in items] for q in queries], np.float32)


def row(items):
    """Pairs of the first query and these items."""
    return Pairs(np.zeros(len(items), int), np.array(items))


@pytest.fixture(params=["memory", "file"])
def store(request, tmp_path):
    return ScoreStore(None if request.param == "memory" else tmp_path / "s")


@pytest.mark.parametrize("workers", [1, 3])
def test_every_pair_is_scored_once(store, workers):
    fn, seen = Counting(), []
    limits = Limits(max_calls=200, workers=workers)
    report = collect(store, fn.scorer, QUERIES, ITEMS, limits=limits)
    assert (report.calls, len(fn.asked), report.stopped_by) == (200, 200, "max_calls")
    first = store.rows(fn.scorer.fingerprint, QUERIES[:2], ITEMS)
    np.testing.assert_array_equal(first, exact()[:2])  # whole rows come first
    limits = Limits(workers=workers)
    given = {"limits": limits, "progress": lambda *at: seen.append(at)}
    report = collect(store, fn.scorer, QUERIES[:4], ITEMS, **given)
    assert (report.calls, report.reused, report.complete) == (160, 200, True)
    assert report.seconds > 0
    assert sorted(seen) == seen
    assert (seen[0], seen[-1]) == ((0, 360), (360, 360))
    found = exact_scores(store, fn.scorer, QUERIES[1:6], ITEMS[::-1], limits=limits)
    np.testing.assert_array_equal(found, exact(QUERIES[1:6], ITEMS[::-1]))
    assert sorted(fn.asked) == sorted((q, i) for q in QUERIES[:6] for i in ITEMS)


def test_equal_texts_and_pairs_given_twice_are_scored_once(store):
    fn, items = Counting(), ["a", "b", "a"]
    pairs = Pairs(np.array([0, 0, 0, 1, 1]), np.array([0, 2, 0, 1, 1]))
    report = collect(store, fn.scorer, ["q", "r"], items, pairs)
    assert (report.pairs, report.calls) == (2, 2)
    assert fn.asked == [("q", "a"), ("r", "b")]
    assert exact_scores(store, fn.scorer, ["q", "q"], items).shape == (2, 3)
    assert len(fn.asked) == 3


@pytest.mark.parametrize("workers", [1, 2])
def test_a_failing_endpoint_costs_only_the_requests_in_flight(store, workers):
    fn, limits = Counting(fail_after=100), Limits(workers=workers)
    with pytest.raises(ScorerError, match="gone"):
        collect(store, fn.scorer, QUERIES, ITEMS, limits=limits)
    assert len(store) == len(fn.asked) >= 100 - 8 * workers
    fn.fail_after = None
    collect(store, fn.scorer, QUERIES, ITEMS, limits=limits)
    assert sorted(fn.asked) == sorted((q, i) for q in QUERIES for i in ITEMS)


def test_a_deadline_stops_within_a_block(store):
    fn = Counting(pause=0.05, batch=4)
    report = collect(store, fn.scorer, QUERIES, ITEMS, limits=Limits(deadline=0.5))
    assert (report.stopped_by, report.failed) == ("deadline", 0)
    assert 0 < report.scored == len(store) == len(fn.asked) < 80


def test_pairs_that_cannot_be_scored_are_left_out_and_asked_again(store, monkeypatch):
    fn = Counting(broken={ITEMS[3]})
    report = collect(store, fn.scorer, QUERIES, ITEMS)
    assert (report.failed, report.complete, report.stopped_by) == (7, False, None)
    with pytest.raises(ScorerError, match="query 0 and item 3 could not be scored"):
        exact_scores(store, fn.scorer, QUERIES, ITEMS)
    fn.broken = ()
    report = collect(store, fn.scorer, QUERIES, ITEMS)
    assert (report.calls, report.complete) == (7, True)
    nothing = Counting(broken=set(ITEMS)).scorer
    with pytest.raises(ScorerError, match="could not score any"):
        collect(ScoreStore(), nothing, QUERIES, ITEMS)
    monkeypatch.setattr("crossknn.scores.collect._HOPELESS", 2)
    with pytest.raises(ScorerError, match="no pair of 2 blocks in a row"):
        collect(ScoreStore(), nothing, QUERIES, ITEMS)


def collect_slowly(folder, workers=1):
    """1,000 pairs, each of which is logged before its batch is stored."""
    with (folder / "log").open("a", buffering=1) as log:

        def score(pairs):
            time.sleep(0.002)
            log.writelines(f"{query}\t{item}\n" for query, item in pairs)
            return [len(query) + len(item) / 8 for query, item in pairs]

        queries, items = [f"query {q}" for q in range(5)], [f"item {i}" for i in range(200)]
        scorer, limits = CallableScorer(score, "f", batch=8), Limits(workers=workers)
        collect(ScoreStore(folder / "s"), scorer, queries, items, limits=limits)


def start(folder, workers=1):
    process = get_context("fork").Process(target=collect_slowly, args=(folder, workers))
    process.start()
    return process


def logged(folder):
    return (folder / "log").read_text().splitlines()


def test_two_processes_never_score_the_same_pair(tmp_path):
    running = [start(tmp_path) for _ in range(2)]
    for process in running:
        process.join(60)
    assert [process.exitcode for process in running] == [0, 0]
    assert len(logged(tmp_path)) == len(set(logged(tmp_path))) == 1000


@pytest.mark.parametrize(
    "seed", [7, *(pytest.param(n, marks=pytest.mark.slow) for n in range(20) if n != 7)]
)
def test_kills_cost_at_most_the_requests_in_flight(tmp_path, seed):
    rng = np.random.default_rng(seed)
    workers, kills = int(rng.integers(1, 4)), 4
    (tmp_path / "log").touch()
    for _ in range(kills):
        before, process = len(logged(tmp_path)), start(tmp_path, workers)
        while len(logged(tmp_path)) == before:
            process.join(0.002)
        process.join(float(rng.uniform(0, 0.04)))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert ScoreStore(tmp_path / "s").verify() == []
    collect_slowly(tmp_path, workers)
    scored, store = logged(tmp_path), ScoreStore(tmp_path / "s")
    assert len(store) == len(set(scored)) == 1000
    assert len(scored) - len(set(scored)) <= kills * workers * 8


@given(data=st.data())
@settings(max_examples=30, deadline=None)
def test_any_sequence_of_calls_pays_every_distinct_pair_once(tmp_path_factory, data):
    texts = st.text(max_size=3)
    queries = data.draw(st.lists(texts, min_size=1, max_size=4))
    items = data.draw(st.lists(texts, min_size=1, max_size=6))
    pair = st.tuples(st.integers(0, len(queries) - 1), st.integers(0, len(items) - 1))
    calls = data.draw(st.lists(st.lists(pair, max_size=15), min_size=1, max_size=4))
    fn, distinct, file = Counting(batch=3), set(), tmp_path_factory.mktemp("s") / "scores.db"
    for rows in calls:
        pairs = Pairs(*np.array(rows, np.int64).reshape(-1, 2).T)
        scorer = StoredScorer(fn.scorer, file)  # opened anew: only the file carries scores over
        wanted = exact(queries, items)[pairs.query, pairs.item]
        np.testing.assert_array_equal(scores_of(scorer, pairs, queries, items), wanted)
        scorer.store.close()
        distinct |= {(queries[q], items[i]) for q, i in rows}
        assert sorted(fn.asked) == sorted(distinct)


@pytest.mark.parametrize(("seconds", "writes"), [(0, 8), (60, 1)])
def test_batches_are_stored_one_by_one_or_together(tmp_path, monkeypatch, seconds, writes):
    monkeypatch.setattr(stored, "EVERY", seconds)
    scorer = StoredScorer(Counting(batch=4).scorer, tmp_path / "c")
    counts, put = [], scorer.store.put
    monkeypatch.setattr(scorer.store, "put", lambda *a: counts.append(len(a[-1])) or put(*a))
    found = scores_of(scorer, row(range(30)), QUERIES, ITEMS)
    np.testing.assert_array_equal(found, exact()[0, :30])
    assert (len(counts), sum(counts)) == (writes, 30)


def test_a_search_looks_a_new_query_up_once_and_stores_its_rounds_together(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "EVERY", 60)
    fn, lookups, lookup = Counting(), [], ScoreTable.lookup
    monkeypatch.setattr(ScoreTable, "lookup", lambda *a: lookups.append(a) or lookup(*a))
    for is_new in (True, False):  # the second search finds all scores in the store
        scorer = StoredScorer(fn.scorer, tmp_path / "c").of_search()
        rounds = [scores_of(scorer, row(range(r, r + 10)), QUERIES, ITEMS) for r in (0, 10, 20)]
        np.testing.assert_array_equal(np.concatenate(rounds), exact()[0, :30])
        assert (len(lookups), len(scorer.store)) == ((1, 0) if is_new else (4, 30))
        scorer.flush()
        assert len(fn.asked) == len(scorer.store) == 30


def test_an_interrupted_search_stores_its_rounds(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "EVERY", 60)
    fn = Counting()

    def function(pairs):
        return fn(pairs) if len(fn.asked) < 16 else signal.raise_signal(signal.SIGINT)

    scorer = StoredScorer(CallableScorer(function, "counting", batch=8), tmp_path / "c")
    with pytest.raises(KeyboardInterrupt):
        Searcher(ItemIndex.build(ITEMS, lsa=2), scorer).search("item 7", k=5, budget=40)
    assert len(scorer.store) == len(fn.asked) >= 16


def test_what_is_stored_last_is_right_and_its_failure_costs_no_answer(
    tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(stored, "EVERY", 60)
    out = np.zeros(4, np.float32)

    def reusing(pairs):  # its array
        out[: len(pairs)] = [value(q, i) for q, i in pairs]
        return out[: len(pairs)]

    scorer = StoredScorer(CallableScorer(reusing, "reusing", batch=4), tmp_path / "c")
    scores_of(scorer, row(range(30)), QUERIES, ITEMS)
    kept = scorer.store.rows(scorer.fingerprint, QUERIES[:1], ITEMS)[0, :30]
    np.testing.assert_array_equal(kept, exact()[0, :30])

    def fails(*_):
        raise StoredScoresError("the scores were removed")

    monkeypatch.setattr(scorer.store, "put", fails)
    results = Searcher(ItemIndex.build(ITEMS, lsa=2), scorer).search("item 7", k=5, budget=40)
    assert (len(results[0]), results.n_calls) == (5, 40)
    assert "the scores were removed" in caplog.text


def test_stopping_in_the_middle_keeps_the_scores(tmp_path):
    fn = Counting(batch=4)
    stream = StoredScorer(fn.scorer, tmp_path / "c").score(row(range(30)), QUERIES, ITEMS)
    next(stream)
    next(stream)
    stream.close()
    assert (len(fn.asked), stream.computed) == (8, 8)
    scores_of(StoredScorer(fn.scorer, tmp_path / "c"), row(range(30)), QUERIES, ITEMS)
    assert len(set(fn.asked)) == len(fn.asked) == 30


def test_scorers_that_fail(tmp_path):
    assert isinstance(StoredScorer(CallableScorer(Counting()), ScoreStore()), Scorer)
    scorer = StoredScorer(Counting(broken={ITEMS[0]}).scorer, tmp_path / "c")
    for _ in range(2):  # the second time only the failing pair is left to the scorer
        found = scores_of(scorer, row(range(10)), QUERIES, ITEMS)
        assert np.isnan(found[0])
        np.testing.assert_array_equal(found[1:], exact()[0, 1:10])
    with pytest.raises(NothingScoredError):
        scores_of(scorer, row([0]), QUERIES, ITEMS)


def test_a_file_that_cannot_be_written_costs_no_answer(tmp_path, caplog):
    scorer = StoredScorer(Counting().scorer, tmp_path / "c")
    # A database that may not grow stands in for a full disk.
    with scorer.store.table().writing() as db:
        db.execute("PRAGMA max_page_count = 1")
    items = [f"{i}" * 3 for i in range(5000)]
    found = scores_of(scorer, row(range(5000)), QUERIES, items)
    np.testing.assert_array_equal(found, exact(QUERIES[:1], items)[0])
    assert sum("cannot be kept" in r.getMessage() for r in caplog.records) == 1
