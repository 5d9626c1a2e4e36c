"""Searching texts: deadlines, failures, threads; what an answer says, as runs and data frames."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

import crossknn as ck
from crossknn.errors import InputError
from crossknn.extend import Method
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


@pytest.fixture(scope="module")
def results(index):
    search = ck.Searcher(index, length, "axn(retriever=bm25, rounds=2)").search
    return search({"q7": "odd item", "q8": "<b>even</b> it"}, k=2, budget=4)


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


@pytest.mark.parametrize(("bad", "stopped_by"), [(2, "budget"), (3, "scorer")])
def test_a_round_of_one_pair_that_fails_does_not_end_the_search(index, bad, stopped_by):
    rerank = ck.parse_method("rerank(retriever=bm25)")
    picks = ck.Searcher(index, length, rerank).search("odd", budget=20, trace=True).trace[0]
    refused = {pick.text for pick in picks[5 : 5 + bad]}

    def picky(pairs):
        if any(text in refused for _, text in pairs):
            raise ValueError("cannot read this item")
        return length(pairs)

    class OneByOne(Method):
        name = "one by one"

        def plan(self, index, budget, seed):
            return replace(rerank.plan(index, budget, seed), batches=(1,) * budget)

    results = ck.Searcher(index, picky, OneByOne()).search("odd", k=20, budget=20)
    assert results.stopped_by == stopped_by
    assert results.n_failed == bad


def test_many_threads_share_one_searcher(search):
    queries = [f"item {i}" for i in range(24)]
    alone = [[h.id for h in search.search(q, k=5, budget=15)[0]] for q in queries]
    with ThreadPoolExecutor(8) as pool:
        together = list(
            pool.map(lambda q: [h.id for h in search.search(q, k=5, budget=15)[0]], queries)
        )
    assert together == alone


@pytest.mark.parametrize("options", [{}, {"cancel": None}])
def test_a_cancelled_task_stops_the_scoring(index, options):
    scored = []

    def slow(pairs):
        scored.append(len(pairs))
        time.sleep(0.02)
        return length(pairs)

    search = ck.Searcher(index, ck.CallableScorer(slow, batch=1), "rerank(retriever=bm25)")
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(search.asearch("odd", k=3, budget=50, **options), 0.1))
    assert 0 < sum(scored) < 50


def test_a_cancel_flag_stops_a_search(index):
    flag, seen = threading.Event(), []
    search = ck.Searcher(index, ck.CallableScorer(length, batch=1), "exact")

    def stop_after_three(done, total):
        seen.append(done)
        if done == 3:
            flag.set()

    results = search.search("odd", k=2, budget=9, cancel=flag, progress=stop_after_three)
    assert (results.stopped_by, results.n_scored, seen) == ("cancelled", 3, [1, 2, 3])
    again = search.search("odd", k=2, budget=9, cancel=flag)
    assert (again.stopped_by, again.n_calls, again[0]) == ("cancelled", 0, [])


def test_an_answer_of_more_than_the_budget_is_filled_up_with_predictions(index):
    search = ck.Searcher(index, ck.CallableScorer(length))
    hits = search.search("odd", k=20, budget=12)[0]
    assert [hit.predicted for hit in hits] == [False] * 12 + [True] * 8
    finals = [hit.final_score for hit in hits]
    assert finals == sorted(finals, reverse=True)
    assert hits[0].final_score == search.search("odd", k=1, budget=12)[0][0].final_score
    assert len(search.search("odd", k=20, budget=12, filter=[f"id{i}" for i in range(15)])[0]) == 15


def test_many_queries_are_searched_in_parts_with_the_same_answers(index, monkeypatch):
    queries = [f"item {i}" for i in range(9)]
    whole = ck.Searcher(index, length, "axn(retriever=random)").search(queries, k=5, budget=12)
    monkeypatch.setattr("crossknn.search.request.AT_ONCE", 2 * index.n)
    parts = ck.Searcher(index, length, "axn(retriever=random)").search(queries, k=5, budget=12)
    assert [[h.id for h in hits] for hits in parts] == [[h.id for h in hits] for hits in whole]
    assert (parts.n_calls, parts.n_scored) == (whole.n_calls, whole.n_scored)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "axm"}, "did you mean axn"),
        ({"budget": ck.Budget(target_recall=0.9)}, "axn cannot estimate its recall"),
        ({"min_score": 3, "budget": ck.Budget(target_recall=0.9)}, "refers to the top k"),
    ],
)
def test_wrong_arguments_are_answered_in_a_sentence(search, options, words):
    with pytest.raises(InputError, match=words):
        search.search("odd", **options)


def test_what_is_no_index_and_no_scorer(index):
    with pytest.raises(InputError, match="is not an index"):
        ck.Searcher("docs.index", length)
    with pytest.raises(InputError, match="needs a scorer"):
        ck.Searcher(index, None).search("odd")


def test_importing_is_light():
    heavy = "torch onnxruntime sklearn scipy rich typer bm25s tokenizers urllib3 transformers"
    of = "crossknn.scorers.opening"
    code = f"import sys, {of}; print(sorted({{*{heavy.split()}}} & {{*sys.modules}}))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_results_are_a_line_and_a_run_of_the_queries_ids(results, tmp_path):
    run = results.to_run(tmp_path / "run.txt")
    assert list(run) == ["q7", "q8"]
    assert repr(results).startswith("<Results of axn(retriever=bm25, rounds=2): 2 queries, 4 hits")
    assert run["q7"] == {hit.id: hit.score for hit in results[0]}
    lines = (tmp_path / "run.txt").read_text().splitlines()
    assert lines[0].split()[:4] == ["q7", "Q0", results[0][0].id, "1"]
    assert [line.split()[-1] for line in lines] == ["axn"] * 4
    assert float(lines[0].split()[4]) == pytest.approx(results[0][0].score)
    with pytest.raises(InputError, match="cannot be written"):
        results.to_run(tmp_path)


def test_a_target_is_the_methods_and_for_the_k_that_is_wanted():
    index = ck.ItemIndex.build(TEXTS, lsa=4)
    collect_anchors(index, length, ["even 1", "odd item", "even item xxx", "item 1"])
    spec = "kriging(retriever=bm25, rounds=3)"
    search = ck.Searcher(index, length, spec).search
    found = search("odd item", k=2, budget=ck.Budget(per_query=50, target_recall=0.5))
    assert "target_recall=0.5, k=2" in found.method
    assert found[0][0].position == 20  # the longest text


@pytest.mark.parametrize("method", ["kriging(retriever=bm25, rounds=5)", "axn(retriever=bm25)"])
@pytest.mark.parametrize("k", [None, 3])
def test_hits_are_the_scored_items_that_reach_a_score(search, method, k):
    queries = ["odd", "even xx", "item xxxx"]
    found = search.search(queries, k, 20, min_score=16.0, method=method, trace=True)
    for q, scored in enumerate(found.trace):
        reach = sorted((h.score for h in scored if h.score >= 16), reverse=True)
        assert [hit.score for hit in found[q]] == reach[:k]
        assert found.best_scores[q] == max(hit.score for hit in scored)
    assert any(found)
