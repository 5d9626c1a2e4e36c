"""How the pairs of many searches become batches of one scorer."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest
from faulty_server import Faulty, answer
from tiny_models import collect, grid

from crossknn import HttpScorer
from crossknn.errors import ScorerError
from crossknn.scorers.streaming import BatchedScorer, NothingScoredError
from crossknn.service.batches import SharedScorer
from crossknn.service.metrics import Metrics
from crossknn.types import Pairs

QUERIES, ITEMS = ["a", "bb"], ["x" * (i + 1) for i in range(10)]


class Lengths(BatchedScorer):
    """Scores by the items' lengths, in one batch for each call."""

    fingerprint = None

    def __init__(self, workers=0, meet=None):
        super().__init__("lengths")
        self.workers, self.meet, self.batches = workers, meet, []

    def _batches(self, call):
        return call.slices(len(call.pairs))

    def _run(self, call, positions):
        self.batches.append(len(positions))
        if self.meet is not None:
            self.meet.wait()
        return [len(item) for _, item in call.texts(positions)]


class Streaming:
    """Gives one score at a time."""

    fingerprint = None

    def score(self, pairs, queries, items, **_):
        for p in range(len(pairs)):
            yield np.array([p]), np.array([float(p)])


@pytest.fixture
def shared():
    made = []

    def share(scorer):
        made.append(SharedScorer(scorer, Metrics()))
        return made[-1]

    yield share
    for each in made:
        each.close()


def test_idle_threads_divide_the_pairs_of_one_search(shared):
    meet = threading.Barrier(2, timeout=10)  # broken unless two batches run at once
    scorer = Lengths(workers=2, meet=meet)
    sharing = shared(scorer)
    while sharing._idle < 2:
        time.sleep(0.01)
    scores = collect(sharing, grid(1, 10), QUERIES, ITEMS)
    assert scores.tolist() == [len(item) for item in ITEMS]
    assert scorer.batches == [5, 5]


def test_requests_hold_the_pairs_of_one_query_and_are_as_many_as_allowed(shared):
    at_once, most, lock, sizes = 0, 0, threading.Lock(), []

    def respond(body):
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.02)
        with lock:
            at_once -= 1
            sizes.append(len(body["documents"]))
        rows = [{"index": i, "relevance_score": len(t)} for i, t in enumerate(body["documents"])]
        return [answer(json.dumps({"results": rows}).encode())]

    with closing(Faulty(respond)) as server:
        sharing = shared(HttpScorer(server.url, api="cohere", concurrency=2))
        with ThreadPoolExecutor(6) as pool:
            calls = pool.map(lambda _: collect(sharing, grid(2, 10), QUERIES, ITEMS), range(6))
            assert all(found.tolist() == [len(item) for item in ITEMS] * 2 for found in calls)
    assert sizes == [10] * 12
    assert most == 2


@pytest.mark.parametrize("scores", [np.zeros(11), np.zeros(1), 0.3])
def test_another_number_of_scores_is_an_error(shared, scores):
    class Wrong(Streaming):
        def score(self, pairs, queries, items, **_):
            yield np.arange(len(pairs)), scores

    with pytest.raises(ScorerError, match="the scorer was asked for the scores of 10 pairs"):
        collect(shared(Wrong()), grid(1, 10), QUERIES, ITEMS)


@pytest.mark.parametrize("bad", [{"bad"}, {"bad", "worse"}])
def test_a_pair_that_cannot_be_scored_ends_no_call(shared, bad):
    class Refusing(Lengths):
        def _run(self, call, positions):
            if {item for _, item in call.texts(positions)} & bad:
                raise ValueError("no")
            return super()._run(call, positions)

    sharing = shared(Refusing(workers=2))
    for n in (1, 10):  # of two pairs the bad one is alone in its batch
        items = [*ITEMS[:n], *sorted(bad)]
        scores = collect(sharing, grid(1, len(items)), QUERIES, items)
        assert np.isnan(scores).tolist() == [item in bad for item in items]
    with pytest.raises(NothingScoredError):
        collect(sharing, grid(1, len(bad)), QUERIES, sorted(bad))


def test_what_was_scored_until_the_deadline_is_told(shared):
    class Hanging(Streaming):
        def score(self, pairs, queries, items, **_):
            yield np.arange(6), np.arange(6.0)
            hung.wait(10)

    hung = threading.Event()
    sharing, pairs = shared(Hanging()), Pairs(np.zeros(10, np.int64), np.arange(10))
    told = list(sharing.score(pairs, QUERIES, ITEMS, time_left=0.2))
    hung.set()
    assert np.concatenate([positions for positions, _ in told]).tolist() == list(range(6))
