"""Every way in which an endpoint can fail, at two moments of a search, on a real server."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import numpy as np
import pytest
from faulty_server import FAULTS, Faulty, good, score

import crossknn as ck
from crossknn.errors import CrossknnError

METHOD = "axn(retriever=bm25, rounds=5, normalize=none)"
BUDGET, ROUND = 25, 5
MOMENTS = {"first request": 0, "third round": 2}
"""Good answers before the fault."""

STALLING = ("reads", "stops", "drips")
"""How the names of the faults begin that only a timeout ends."""

TEXTS = [f"text number {i} about topic {i % 7} and word{i % 5}" for i in range(60)]


@pytest.fixture(scope="module")
def index():
    return ck.ItemIndex.build(TEXTS, lsa=8)


@pytest.fixture
def serve():
    """Starts faulty servers, which end with the test."""
    with ExitStack() as servers:
        yield lambda *given: servers.enter_context(closing(Faulty(*given)))


def search(index, url, *, queries="topic 3", deadline=None, timeout=10, **options):
    scorer = ck.HttpScorer(url, model="m", timeout=timeout, retries=1, **options)
    return ck.Searcher(index, scorer, METHOD).search(
        queries, k=5, budget=ck.Budget(per_query=BUDGET, deadline=deadline)
    )


def outcome(index, name, moment, **options):
    """Search a faulty endpoint; returns the results or None, the error's sentence, the seconds."""
    with closing(Faulty(FAULTS[name], MOMENTS[moment])) as server:
        began, results = time.perf_counter(), None
        try:
            results = search(index, server.url, **options)
            message = results.error
        except CrossknnError as error:
            message = str(error)
        return results, message, time.perf_counter() - began


def without_deadline(index, name, moment):
    return outcome(index, name, moment, timeout=2 if name.startswith(STALLING) else 20)


@pytest.mark.slow
def test_no_fault_hangs_or_loses_what_was_found(index):
    cases = [(name, moment) for name in FAULTS for moment in MOMENTS]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda case: without_deadline(index, *case), cases))
    for case, (results, said, seconds) in zip(cases, found, strict=True):
        assert seconds < 40, case
        if case[1] == "first request":
            assert results is None, case
        else:  # two rounds were scored well: their best items are the answer
            assert (results.n_scored, len(results[0])) == (2 * ROUND, 5), (case, said)
            assert results.stopped_by == "scorer", (case, said)
            scores = [score("topic 3", hit.text) for hit in results[0]]
            assert [hit.score for hit in results[0]] == pytest.approx(scores, abs=1e-5)
        assert "http://127.0.0.1" in said, case
        assert "\n" not in said, case
        assert "Traceback" not in said, case


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_deadline_binds_every_fault(index, moment):
    """The bound is loose: other programs run here. `benchmarks/deadlines.py` measures p99."""
    late = {}
    for name in sorted(FAULTS):
        results, _, seconds = outcome(index, name, moment, deadline=0.2, timeout=30)
        assert moment == "first request" or results.n_scored >= ROUND
        late[name] = seconds - 0.2
    assert np.median(list(late.values())) < 0.5
    assert max(late.values()) < 5, max(late, key=late.get)


def test_queries_fail_one_by_one(index, serve):
    server = serve(lambda b: FAULTS["gives NaN"](b) if "bad" in b["query"] else [good(b)])
    results = search(index, server.url, queries=["topic 1", "a bad topic 2", "topic 3"])
    assert [len(hits) for hits in results] == [5, 0, 5]
    assert results.errors[0] is results.errors[2] is None
    assert "nan as the score of the query 'a bad topic 2'" in results.errors[1]
    assert (results.stopped_by, results.error) == ("scorer", results.errors[1])
    assert results.n_scored == 2 * BUDGET


def test_a_query_whose_pairs_are_all_refused_ends(index, serve):
    server = serve(lambda b: FAULTS["answers 400"](b) if "bad" in b["query"] else [good(b)])
    results = search(index, server.url, queries=["topic 1", "a bad topic 2"], api="cohere")
    assert [len(hits) for hits in results] == [5, 0]
    assert "of this query could be scored" in results.errors[1]
    assert server.count < 120


def test_a_scorer_of_ones_own_that_raises_anything_keeps_its_hits(index):
    class Own:
        fingerprint, rounds = None, 0

        def score(self, pairs, queries, items, *, time_left=None, cancel=None):
            self.rounds += 1
            if self.rounds == 3:
                raise KeyError("gone")
            yield np.arange(len(pairs)), pairs.item.astype(np.float32)

    results = ck.Searcher(index, Own(), METHOD).search("topic 3", k=5, budget=BUDGET)
    assert (results.stopped_by, results.n_scored) == ("scorer", 10)
    assert results.error == "the scorer failed: KeyError: 'gone'"


def test_cancelling_lets_go_at_once_and_stalled_requests_slow_nothing(index, serve):
    server, well = serve(FAULTS["reads and never answers"]), serve(lambda body: [good(body)])
    stalled = ck.Searcher(index, ck.HttpScorer(server.url, model="m", timeout=2), METHOD)
    healthy = ck.Searcher(index, ck.HttpScorer(well.url, model="m"), METHOD)

    async def run():
        begin = lambda: stalled.asearch("topic 3", k=5, budget=BUDGET)  # noqa: E731
        tasks = [asyncio.create_task(begin()) for _ in range(20)]
        await asyncio.sleep(0.3)
        cancelled = time.perf_counter()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert time.perf_counter() - cancelled < 1
        results = await healthy.asearch("topic 1", k=5, budget=BUDGET)
        assert results.n_scored == BUDGET
        while any(t.name.startswith("crossknn-scorer") for t in threading.enumerate()):
            assert time.perf_counter() - cancelled < 10  # their timeout
            await asyncio.sleep(0.05)

    asyncio.run(run())


def test_an_endpoint_that_is_down_is_not_asked_for_every_query(index, serve):
    server = serve(FAULTS["answers 502"], 1)
    results = search(index, server.url, queries=[f"topic {i}" for i in range(30)])
    assert results.stopped_by == "scorer"
    assert sum(error is not None for error in results.errors) == 30
    assert server.count < 40
