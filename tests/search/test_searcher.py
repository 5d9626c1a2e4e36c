"""Searching texts: deadlines, failures, threads, what an answer says."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import InputError, ScorerError
from crossknn.fitting.anchors import collect_anchors

TEXTS = [f"item {i} {'even' if i % 2 == 0 else 'odd'} {'x' * (i % 7)}" for i in range(50)]


def length(pairs):
    return [float(len(q) + len(t)) for q, t in pairs]


@pytest.fixture(scope="module")
def index():
    items = [{"id": f"id{i}", "text": t, "colour": "red"} for i, t in enumerate(TEXTS)]
    return ck.ItemIndex.build(items, lsa=4)


@pytest.fixture
def search(index):
    return ck.Searcher(index, length, "axn(retriever=bm25, rounds=5)")


def test_hits_say_where_they_come_from(search):
    results = search.search("odd item", k=4, budget=10, trace=True)
    hit = results[0][0]
    assert hit.extra == {"colour": "red"}
    assert hit.text == TEXTS[hit.position]
    assert {h.round for h in results.trace[0]} == {1, 2, 3, 4, 5}
    assert {h.source for h in results.trace[0]} == {"retriever", "axn"}
    assert 0 < hit.probability <= 1
    assert results.seconds >= results.scoring_seconds > 0


def test_a_deadline_stops_between_batches_with_the_best_so_far(index):
    def slow(pairs):
        time.sleep(0.05)
        return length(pairs)

    scorer = ck.CallableScorer(slow, batch=2)
    results = ck.Searcher(index, scorer, "rerank(retriever=bm25)").search(
        "odd", k=5, budget=ck.Budget(per_query=50, deadline=0.12)
    )
    assert results.stopped_by == "deadline"
    assert 2 <= results.n_scored < 50
    assert len(results[0]) == min(5, results.n_scored)
    assert results.seconds < 1


def test_one_item_that_cannot_be_scored_is_replaced(index):
    def picky(pairs):
        if any("item 7 " in text for _, text in pairs):
            raise ValueError("cannot read item 7")
        return length(pairs)

    results = ck.Searcher(index, picky, "exact").search("odd", k=50, budget=50)
    assert results.n_failed == 1
    assert len(results[0]) == 49


def test_a_scorer_that_breaks_down_after_some_rounds_does_not_lose_them(index):
    calls = 0

    def breaking(pairs):
        nonlocal calls
        calls += len(pairs)
        if calls > 4:
            raise ConnectionError("gone")
        return length(pairs)

    results = ck.Searcher(index, breaking, "axn(retriever=bm25, rounds=5)").search(
        "odd", k=3, budget=20
    )
    assert results.stopped_by == "scorer"
    assert results.n_scored == 4
    assert len(results[0]) == 3


def test_a_scorer_that_never_works_is_an_error(index):
    def broken(pairs):
        raise ConnectionError("gone")

    with pytest.raises(ScorerError, match="gone"):
        ck.Searcher(index, broken).search("odd", k=3, budget=20)


def test_many_threads_share_one_searcher(search):
    queries = [f"item {i}" for i in range(24)]
    alone = [[h.id for h in search.search(q, k=5, budget=15)[0]] for q in queries]
    with ThreadPoolExecutor(8) as pool:
        together = list(
            pool.map(lambda q: [h.id for h in search.search(q, k=5, budget=15)[0]], queries)
        )
    assert together == alone


def test_an_asynchronous_search_finds_the_same(search):
    found = asyncio.run(search.asearch("odd", k=3, budget=40))
    assert found[0] == search.search("odd", k=3, budget=40)[0]


def test_cancelling_an_asynchronous_search_stops_the_scoring(index):
    scored = []

    def slow(pairs):
        scored.append(len(pairs))
        time.sleep(0.02)
        return length(pairs)

    search = ck.Searcher(index, ck.CallableScorer(slow, batch=1), "rerank(retriever=bm25)")

    async def cancelled():
        task = asyncio.create_task(search.asearch("odd", k=3, budget=50))
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    time.sleep(0.1)
    assert 0 < sum(scored) < 50


def test_cache_hits_are_revealed_but_not_called(index, tmp_path):
    scorer = ck.StoredScorer(ck.CallableScorer(length, "length"), tmp_path / "c.store")
    search = ck.Searcher(index, scorer, "rerank(retriever=bm25)")
    first = search.search(["odd", "even"], k=3, budget=20)
    again = search.search(["odd", "even"], k=3, budget=25)
    assert (first.n_calls, first.n_scored) == (40, 40)
    assert (again.n_calls, again.n_scored) == (10, 50)


def test_many_queries_are_searched_in_parts_with_the_same_answers(index, monkeypatch):
    queries = [f"item {i}" for i in range(9)]
    whole = ck.Searcher(index, length, "axn(retriever=random)").search(queries, k=5, budget=12)
    monkeypatch.setattr("crossknn.search.searcher._CELLS", 2 * index.n)
    parts = ck.Searcher(index, length, "axn(retriever=random)").search(queries, k=5, budget=12)
    assert [[h.id for h in hits] for hits in parts] == [[h.id for h in hits] for hits in whole]
    assert (parts.n_calls, parts.n_scored) == (whole.n_calls, whole.n_scored)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "k is 0; it must be 1 or more"),
        ({"budget": 0}, "budget is 0; it must be 1 or more"),
        ({"k": 51, "budget": 60}, "k is 51, but the index has 50 items"),
        ({"k": 20, "budget": 10}, "k is 20, but the budget is 10 calls for each of 1 queries"),
        ({"filter": ["id1", "nobody"]}, "no item with the id 'nobody'"),
        ({"filter": np.ones(3, np.bool_)}, r"the filter has shape \(3,\)"),
        ({"filter": []}, "the filter allows no item"),
        ({"budget": ck.Budget(deadline=0)}, "deadline is 0; it must be above 0"),
        ({"method": "axm"}, "did you mean axn"),
        ({"method": 5}, "5 is no method"),
        ({"k": 2.5}, "k is 2.5; it must be a whole number"),
        ({"budget": "9"}, "budget is '9'; it must be a whole number"),
        ({"filter": "id1"}, "the filter is 'id1'; give a list of ids"),
    ],
)
def test_wrong_arguments_are_answered_in_a_sentence(search, options, words):
    with pytest.raises(InputError, match=words):
        search.search("odd", **options)


def test_what_is_no_index_and_no_scorer(index):
    with pytest.raises(InputError, match="is no index"):
        ck.Searcher("docs.index", length)
    with pytest.raises(InputError, match="there is no scorer"):
        ck.Searcher(index, None).search("odd")


def test_anchor_scores_of_another_cross_encoder_are_refused_by_name(index):
    mine = ck.CallableScorer(length, "mine")
    anchored = ck.ItemIndex.build(TEXTS, lsa=4)
    collect_anchors(anchored, mine, ["even", "odd one"])
    assert ck.Searcher(anchored, mine, "adacur(retriever=bm25)").search("odd", budget=10)
    other = ck.Searcher(anchored, ck.CallableScorer(length, "other"), "adacur(retriever=bm25)")
    with pytest.raises(InputError, match=r"mine.*other"):
        other.search("odd", budget=10)
    assert other.search("odd", budget=10, method="axn(retriever=bm25, normalize=first)")


def test_importing_is_light():
    code = (
        "import sys, crossknn; heavy = {'torch', 'onnxruntime', 'sklearn', 'scipy', 'rich', 'typer'};"
        "print(sorted((heavy | {'bm25s'}) & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_a_cancel_flag_stops_a_search(index):
    flag = threading.Event()
    search = ck.Searcher(index, ck.CallableScorer(length, batch=1), "exact")
    seen = []

    def stop_after_three(done, total):
        seen.append(done)
        if done == 3:
            flag.set()

    results = search.search("odd", k=2, budget=9, cancel=flag, progress=stop_after_three)
    assert results.stopped_by == "cancelled"
    assert results.n_scored == 3 == len(seen)
    again = search.search("odd", k=2, budget=9, cancel=flag)
    assert (again.stopped_by, again.n_calls, again[0]) == ("cancelled", 0, [])
