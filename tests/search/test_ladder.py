"""Several scorers in one search: a search by a cheaper one is the retriever of the next."""

from __future__ import annotations

import logging
import threading
import time

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import InputError, ScorerError
from crossknn.evaluation.outcome import Outcome
from crossknn.evaluation.rungs import sentence_after
from crossknn.types import NO_ITEM, Queries

N = 120
WORDS = "oak seal lake hill red stone swam far old sand zip file list sort lock thread".split()  # noqa: SIM905


def texts(seed=0):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 6)) + f" {i}" for i in range(N)]


def value(text):
    """What the expensive scorer finds in a text, besides the words of the query."""
    return sum(WORDS.index(word) for word in text.split() if word in WORDS) / 10


def overlap(query, text):
    return len(set(query.split()) & set(text.split()))


def large(pairs):
    return [3.0 * overlap(q, t) + value(t) for q, t in pairs]


def small(pairs):
    return [
        3.0 * overlap(q, t) + value(t) + 0.3 * np.sin(7.0 * len(t) + value(t)) for q, t in pairs
    ]


def random(pairs):
    return [float(np.sin(1e4 * value(t) + len(q))) for q, t in pairs]


def dead(pairs):
    raise ConnectionError("the line is dead")


def named(function, name):
    return ck.CallableScorer(function, name)


def breaking(function, after):
    """A scorer that fails after this many pairs."""
    calls = []

    def breaks(pairs):
        calls.extend(pairs)
        if len(calls) > after:
            raise ConnectionError("the line is dead")
        return function(pairs)

    return ck.CallableScorer(breaks, "broken", batch=1)


ITEMS = [{"id": f"i{i}", "text": text} for i, text in enumerate(texts())]


@pytest.fixture(scope="module")
def index():
    return ck.ItemIndex.build(ITEMS, lsa=8)


@pytest.fixture
def searcher(index):
    return ck.Searcher(index, [named(small, "small"), named(large, "large")])


QUERIES = ["old red oak", "sort a list", "zip a file of sand"]


def own_best(query, index, k=10):
    exact = np.array(large([(query, text) for text in index.items.texts]))
    return set(np.argsort(-exact, kind="stable")[:k].tolist())


def recall(results, index, k=10):
    found = [{hit.position for hit in hits[:k] if not hit.predicted} for hits in results]
    wanted = [own_best(query, index, k) for query in results.queries]
    return np.mean([len(f & w) / k for f, w in zip(found, wanted, strict=True)])


def test_ten_calls_after_a_cheap_search_find_more_than_ten_alone(index, searcher):
    ladder = searcher.search(QUERIES, 10, [60, 12])
    alone = ck.Searcher(index, named(large, "large")).search(QUERIES, 10, 12)
    assert recall(ladder, index) > recall(alone, index) + 0.2
    assert (ladder.n_calls, ladder.n_scored) == (36, 36)
    below = ladder.cheaper
    assert (below.n_calls, below.budget, ladder.budget) == (180, 60, 12)
    assert ladder.rungs == [below, ladder]
    assert ladder.seconds >= below.seconds > 0


def test_the_lower_search_is_the_search_by_its_scorer_alone(index, searcher):
    alone = ck.Searcher(index, named(small, "small")).search(QUERIES, 20, 60)
    below = searcher.search(QUERIES, 10, [60, 5]).cheaper
    assert [[h.id for h in hits[:10]] for hits in alone] == [[h.id for h in hits] for hits in below]


@pytest.mark.parametrize("method", ["auto", "rerank(retriever=search)"])
def test_the_upper_search_goes_on_from_scores_and_predictions(index, method):
    """Computed apart: all exact and predicted scores of the cheap search become a retriever."""
    cheap = ck.Searcher(index, named(small, "small"))
    rows = {}
    for query in QUERIES:
        hits = cheap.search(query, N, 60)[0]
        scores = np.full(N, np.nan)
        for hit in hits:
            scores[hit.position] = hit.score if not hit.predicted else hit.approx
        assert not np.isnan(scores).any()
        rows[query] = scores.astype(np.float32)

    class Given:
        def scores(self, queries, items=None):
            whole = np.stack([rows[text] for text in queries.texts])
            return whole if items is None else np.take_along_axis(whole, items, axis=1)

        def top(self, queries, count, allowed=None):
            whole = self.scores(queries)
            order = np.argsort(-whole, axis=1, kind="stable")[:, :count]
            return ck.extend.Candidates(order, np.take_along_axis(whole, order, axis=1))

    other = ck.ItemIndex.build(ITEMS, lsa=8).after_search(Given())
    apart = "kriging(mean=hybrid(search, bm25, lsa))" if method == "auto" else method
    expected = ck.Searcher(other, named(large, "large"), apart).search(QUERIES, 15, 15, trace=True)
    ladder = ck.Searcher(index, [named(small, "small"), named(large, "large")], method)
    found = ladder.search(QUERIES, 15, [60, 15], trace=True)
    first = 4 if method == "auto" else 15
    for q in range(len(QUERIES)):
        assert [h.id for h in found.trace[q]] == [h.id for h in expected.trace[q]]
        assert [h.round for h in found.trace[q]].count(1) == first


def test_hits_tell_which_scorer_scored_them(searcher):
    results = searcher.search("old red oak", 30, [20, 10])
    hits = results[0]
    assert [hit.rung for hit in hits[:10]] == [2] * 10
    assert not any(hit.predicted for hit in hits[:10])
    assert {hit.rung for hit in hits[10:]} == {0, 1}
    assert all(hit.predicted for hit in hits[10:])
    answer = results.to_dict()
    assert [entry["n_calls"] for entry in answer["cheaper"]] == [20]
    assert answer["results"][0]["hits"][0]["rung"] == 2
    assert "cheaper" not in results.cheaper.to_dict()


def test_three_scorers(index):
    middle = named(lambda pairs: [s + 0.1 * np.cos(s) for s in large(pairs)], "middle")
    search = ck.Searcher(index, [named(small, "small"), middle, named(large, "large")]).search
    results = search(QUERIES, 10, [80, 30, 12])
    assert [each.budget for each in results.rungs] == [80, 30, 12]
    assert [each.n_calls for each in results.rungs] == [240, 90, 36]
    assert recall(results, index) >= 0.8
    assert {hit.rung for hits in results for hit in hits} == {3}
    assert [each.budget for each in search("oak", 5, 3).rungs] == [120, 100, 3]


def test_a_scorer_that_misleads_costs_little(index):
    ladder = ck.Searcher(index, [named(random, "random"), named(large, "large")])
    alone = ck.Searcher(index, named(large, "large")).search(QUERIES, 10, 60)
    assert recall(ladder.search(QUERIES, 10, [20, 60]), index) > recall(alone, index) - 0.25


@pytest.mark.parametrize("after", [0, 15])
def test_if_the_cheaper_scorer_fails_the_search_goes_on(index, caplog, after):
    broken = breaking(small, after)
    with caplog.at_level(logging.WARNING):
        results = ck.Searcher(index, [broken, named(large, "large")]).search(
            "old red oak", 5, [40, 10]
        )
    assert (results.n_scored, results.stopped_by, results.error) == (10, "budget", None)
    assert results.cheaper.stopped_by == "scorer"
    assert "the line is dead" in caplog.text
    assert [hit.rung for hit in results[0]] == [2] * 5


@pytest.mark.parametrize("after", [0, 9])
def test_if_the_upper_scorer_fails_the_lower_answer_stands(index, after):
    broken = breaking(large, after)
    results = ck.Searcher(index, [named(small, "small"), broken]).search(
        "old red oak", 12, [40, 20]
    )
    assert results.stopped_by == "scorer"
    assert "the line is dead" in results.error
    assert len(results[0]) == 12
    if after:
        assert [hit.rung for hit in results[0]][:after] == [2] * after
        assert all(hit.predicted for hit in results[0][after:])
    else:
        assert [h.id for h in results[0]] == [h.id for h in results.cheaper[0]]


def test_if_both_fail_the_error_is_raised(index):
    with pytest.raises(ScorerError, match="the line is dead"):
        ck.Searcher(index, [named(dead, "one"), named(dead, "two")]).search("oak", 5, [20, 10])


def test_a_deadline_binds_both_and_keeps_half_for_the_upper_scorer(index):
    def slow(function):
        def scored(pairs):
            time.sleep(0.01 * len(pairs))
            return function(pairs)

        return ck.CallableScorer(scored, batch=1)

    search = ck.Searcher(index, [slow(small), slow(large)]).search
    results = search("old red oak", 5, ck.Budget(per_query=[100, 100], deadline=0.8))
    assert results.stopped_by == results.cheaper.stopped_by == "deadline"
    assert results.seconds < 1.6
    assert results.cheaper.n_scored > 5
    assert results.n_scored > 5


def test_if_the_upper_scorer_is_late_the_lower_answer_stands(index):
    def slow(pairs):
        time.sleep(0.5)
        return large(pairs)

    late = ck.Searcher(index, [named(small, "small"), ck.CallableScorer(slow, batch=1)])
    results = late.search("old red oak", 5, ck.Budget(per_query=[20, 10], deadline=0.3))
    assert results.stopped_by == "deadline"
    assert len(results[0]) == 5
    assert results[0][0].rung in (1, 2)


def test_cancelling_stops_both(index, searcher):
    flag = threading.Event()
    flag.set()
    results = searcher.search("oak", 5, [20, 10], cancel=flag)
    assert (results.stopped_by, results.n_calls, results[0]) == ("cancelled", 0, [])


def test_progress_counts_the_pairs_of_both(searcher):
    seen = []
    searcher.search(QUERIES, 5, [20, 10], progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (90, 90)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_a_filter_holds_for_both(index, searcher):
    allowed = [f"i{i}" for i in range(0, N, 3)]
    results = searcher.search(QUERIES, 8, [30, 10], filter=allowed, trace=True)
    for each in results.rungs:
        assert {hit.id for hits in each for hit in hits} <= {*allowed}
    assert all(len(hits) == 8 for hits in results)


def test_equal_texts_are_scored_once_by_each(searcher, index):
    doubled = ck.ItemIndex.build([*texts(), *texts()], lsa=8)
    search = ck.Searcher(doubled, [named(small, "small"), named(large, "large")]).search
    results = search("old red oak", 6, [40, 10])
    places = [hit.position % N for hit in results[0]]
    assert places == [place for place in dict.fromkeys(places) for _ in range(2)]
    assert results.n_calls == 10


def test_with_a_pool_the_search_ranks_what_it_scored_and_predicted(index):
    cheap = ck.Searcher(index, named(small, "small"), "kriging(shortlist=30)")
    results = ck.Searcher(index, [cheap, named(large, "large")], "kriging(shortlist=30)").search(
        QUERIES, 10, [40, 12]
    )
    assert recall(results, index) > 0.5
    assert results.cheaper.method.startswith("kriging(shortlist=30")


def test_a_search_as_a_retriever(index):
    cheap = ck.Searcher(index, named(small, "small"))
    retriever, queries = cheap.as_retriever(30), Queries(QUERIES)
    assert retriever.results(queries) is None
    top, scores = retriever.top(queries, 10), retriever.scores(queries)
    exact = np.array([small([(q, t) for t in index.items.texts]) for q in QUERIES], np.float32)
    scored = [[hit.position for hit in hits] for hits in cheap.search(QUERIES, 30, 30)]
    known = np.stack([np.isin(np.arange(N), row) for row in scored])
    np.testing.assert_allclose(scores[known], exact[known])
    order = np.argsort(-scores, axis=1, kind="stable")[:, :10]
    np.testing.assert_array_equal(top.items, order)
    some = np.array([[3, 50, NO_ITEM], [7, 1, 2], [0, 119, 60]])
    given = retriever.scores(queries, some)
    for q, row in enumerate(some):
        for c, item in enumerate(row):
            if item != NO_ITEM:
                assert given[q, c] == pytest.approx(scores[q, item], rel=1e-4)
    mask = np.arange(N) % 2 == 0
    assert set(retriever.top(queries, 10, mask).items.flatten() % 2) == {0}
    other = ck.ItemIndex.build(ITEMS, lsa=8)
    other.add_retriever("cheap", retriever)
    added = ck.Searcher(other, named(large, "large"), "rerank(retriever=cheap)")
    ladder = ck.Searcher(index, [cheap, named(large, "large")], "rerank").search(
        QUERIES, 5, [30, 10]
    )
    found = added.search(QUERIES, 5, 10)
    assert [[h.id for h in hits] for hits in found] == [[h.id for h in hits] for hits in ladder]


@pytest.mark.parametrize(
    ("scorers", "budget", "message"),
    [
        (2, [20, 10, 5], "3 budgets for 2 scorers"),
        (1, [20, 10], "2 budgets for 1 scorer"),
        (2, [20, 0], "budget is 0"),
        (2, [], "budget is empty"),
        (2, [2.5, 3], "budget is 2.5"),
        (2, ck.Budget(per_query=[20, 10], target_recall=0.9), "target_recall works with one"),
    ],
)
def test_wrong_budgets_are_refused(index, scorers, budget, message):
    given = [named(small, "small"), named(large, "large")][-scorers:]
    with pytest.raises(InputError, match=message):
        ck.Searcher(index, given).search("oak", 5, budget)


def test_wrong_scorers_are_refused(index):
    same = named(small, "small")
    for given in ([same, same], [named(small, "one"), named(large, "one")]):
        with pytest.raises(InputError, match="the same scorer is given twice"):
            ck.Searcher(index, given)
    with pytest.raises(InputError, match="the list of scorers is empty"):
        ck.Searcher(index, [])
    with pytest.raises(InputError, match="one of several scorers is None"):
        ck.Searcher(index, [named(small, "small"), None])
    alone = ck.Searcher(index, None, "retrieve")
    with pytest.raises(InputError, match="needs a scorer"):
        alone.search("oak", 5, ck.Budget(seconds=1), method="rerank")
    other = ck.Searcher(ck.ItemIndex.build(texts(1), lsa=2), named(small, "small"))
    with pytest.raises(InputError, match="the cheaper search has another index"):
        ck.Searcher(index, [other, named(large, "large")])
    with pytest.raises(InputError, match="cannot be named 'search'"):
        index.add_retriever("search", ck.extend.ArrayStore)


def test_a_cheap_scorer_that_is_slower_is_mentioned_once(index, caplog):
    def slow(pairs):
        time.sleep(0.002 * len(pairs))
        return small(pairs)

    search = ck.Searcher(index, [named(slow, "tortoise"), named(large, "hare")]).search
    with caplog.at_level(logging.WARNING):
        search("old red oak", 5, [40, 20])
        search("sort a list", 5, [40, 20])
    assert caplog.text.count("is slower than") == 1


@pytest.mark.parametrize(
    ("found", "than"), [(0.1, "less than 5"), (0.5, "as much as at most 20"), (0.9, "more than 20")]
)
def test_the_sentence_of_a_comparison_names_budgets_that_find_as_much(found, than):
    def of(budget, value):
        some = np.array([value])
        result = {"recall": {10: some}, "calls": some, "seconds": some, "task": {}}
        return Outcome(method="auto", budget=budget, seed=0, **result)

    text = sentence_after([of(5, 0.2), of(20, 0.6)], (100, 10), of(10, found), [0.001, 0.1])
    assert f"10 calls after 100 of the cheaper scorer find {than} alone" in text
    assert "in 1.1 s of scoring" in text
    assert "scoring" not in sentence_after([of(5, 0.2)], (100, 10), of(10, found), [None, 0.1])


def test_a_deadline_before_the_first_score_is_an_error(index):
    results = ck.Searcher(index, named(small, "small")).search("oak", 5, ck.Budget(deadline=1e-9))
    assert results.errors == ("the deadline passed before a pair was scored",)
    both = ck.Searcher(index, [named(small, "small"), named(large, "large")])
    results = both.search("oak", 5, ck.Budget(per_query=[20, 10], deadline=1e-9))
    assert bool(results[0]) != bool(results.errors[0])


def test_documents_are_reranked_by_two_scorers():
    documents = texts(3)
    both = [named(small, "small"), named(large, "large")]
    ranked = ck.rerank("old red oak", documents, [60, 12], scorer=both)
    assert len(ranked) == N
    assert sum("predicted" not in entry for entry in ranked) == 12
    assert [each.n_calls for each in ranked.results.rungs] == [60, 12]
    best = max(range(N), key=lambda i: large([("old red oak", documents[i])])[0])
    assert ranked[0]["corpus_id"] == best
    whole = ck.rerank("old red oak", documents[:10], [60, 12], scorer=both)
    assert [each.n_calls for each in whole.results.rungs] == [10]


def timed(function, seconds, name):
    def scored(pairs):
        time.sleep(seconds * len(pairs))
        return function(pairs)

    return ck.CallableScorer(scored, name, batch=1)


def test_a_budget_in_seconds_is_split_by_measured_speed(index):
    scorers = [named(small, "small"), timed(large, 0.05, "large")]
    searcher = ck.Searcher(index, scorers)
    results = searcher.search("old red oak", 5, ck.Budget(seconds=2.5))
    assert results.seconds < 4.5
    below = results.cheaper
    assert below.budget == N  # no more items
    assert 15 <= results.budget <= 50
    rates = searcher.rates(["oak"])
    assert [rate.name for rate in rates] == ["callable:small", "callable:large"]
    assert rates[1].seconds > 5 * rates[0].seconds
    alone = ck.Searcher(index, scorers[1]).search("old red oak", 5, ck.Budget(seconds=1.5))
    assert 10 <= alone.budget <= 32


def test_a_budget_in_money_is_spent_by_the_scorer_that_has_a_price(index):
    large_one = ck.CallableScorer(large, "large", price=10)
    results = ck.Searcher(index, [named(small, "small"), large_one]).search(
        "old red oak", 5, ck.Budget(cost=0.12)
    )
    assert (results.budget, results.cheaper.budget) == (7, N)
    assert results.n_calls == 7 + 5  # five measured the scorer
    assert results.cost == large_one.spent == pytest.approx(0.12)
    store = ck.extend.ScoreStore()
    for _ in range(3):  # the pairs that measure it are not those of the first time
        stored = ck.StoredScorer(ck.CallableScorer(large, "large", price=10), store)
        again = ck.Searcher(index, [named(small, "small"), stored])
        assert again.search("old red oak", 5, ck.Budget(cost=0.2)).budget > 5
    with pytest.raises(InputError, match="the price is -1"):
        ck.CallableScorer(large, price=-1)
    with pytest.raises(InputError, match="callable:small has no price"):
        ck.Searcher(index, named(small, "small")).search("oak", 5, ck.Budget(cost=1.0))


def test_less_than_one_pair_is_said_and_answered(index, caplog):
    late = ck.Searcher(index, [named(small, "small"), timed(large, 1.0, "late")])
    with caplog.at_level(logging.WARNING):
        results = late.search("old red oak", 5, ck.Budget(seconds=0.6))
    assert "one pair of callable:late takes 1 seconds, more than the 0.6 that are" in caplog.text
    assert len(results[0]) == 5
    dear = ck.Searcher(index, [named(small, "small"), ck.CallableScorer(large, "dear", price=10)])
    results = dear.search("old red oak", 5, ck.Budget(cost=0.03))  # measuring costs 0.05
    assert "one pair of callable:dear costs 0.01, more than the 0 that are left" in caplog.text
    assert (results.budget, results.n_calls) == (1, 6)


@pytest.mark.parametrize(
    "given",
    [
        *({"seconds": 0}, {"seconds": float("nan")}, {"cost": -1}, {"cost": "much"}),
        *({"seconds": 1, "cost": 1}, {"seconds": 1, "per_query": 3}),
    ],
)
def test_wrong_budgets_of_time_and_money(given):
    with pytest.raises(InputError):
        ck.Budget(**given)


def test_a_cheap_reranking_passes_on_what_it_scored(index):
    """Its retriever's scores are no predictions: what it has not scored comes last."""
    cheap = ck.Searcher(index, named(lambda pairs: [s - 50 for s in small(pairs)], "low"), "rerank")
    results = ck.Searcher(index, [cheap, named(large, "large")], "rerank").search(
        QUERIES, 10, [30, 12], trace=True
    )
    for below, picked in zip(results.cheaper, results.trace, strict=True):
        assert {hit.id for hit in picked} >= {hit.id for hit in below[:10]}
        assert all(hit.approx < 0 for hit in picked)


def test_batches_keep_no_more_than_the_last_search(index, searcher, monkeypatch):
    monkeypatch.setattr("crossknn.search.request.AT_ONCE", 2 * N)
    results = searcher.search([f"{query} {i}" for query in QUERIES for i in range(3)], 5, [20, 6])
    assert (results.n_calls, results.cheaper.n_calls) == (54, 180)
    assert results.cheaper.seconds > 0
    assert len(results.cheaper.queries) == 9


def test_a_filter_of_ids_may_be_an_iterator(searcher):
    results = searcher.search("old red oak", 5, [20, 6], filter=(f"i{i}" for i in range(0, N, 2)))
    assert results.n_scored == 6
    assert {hit.position % 2 for hit in results[0]} == {0}


def test_with_a_deadline_every_query_is_answered_though_the_upper_scorer_is_down(index):
    searcher = ck.Searcher(index, [named(small, "small"), named(dead, "dead")])
    queries = [f"{query} {i}" for query in QUERIES for i in range(6)]
    results = searcher.search(queries, 5, ck.Budget(per_query=[15, 5], deadline=20.0))
    assert all(len(hits) == 5 for hits in results)
    assert {hit.rung for hits in results for hit in hits} == {1}


def test_a_least_score_raises_the_error_of_the_upper_scorer(index):
    searcher = ck.Searcher(index, [named(small, "small"), named(dead, "dead")])
    with pytest.raises(ScorerError, match="the line is dead"):
        searcher.search("old red oak", 5, [15, 5], min_score=1.0)


def test_a_least_score_holds_for_what_only_the_cheaper_scorer_scored(searcher):
    assert searcher.search("old red oak", 5, [15, 5], min_score=1e6)[0] == []


def test_a_method_that_does_not_use_the_search_is_mentioned(index, caplog):
    searcher = ck.Searcher(
        index, [named(small, "s2"), named(large, "l2")], "rerank(retriever=bm25)"
    )
    with caplog.at_level(logging.WARNING):
        results = searcher.search("old red oak", 5, [20, 6])
    assert "rerank(retriever=bm25) does not use the cheaper scorer" in caplog.text
    assert results.cheaper is None
    assert len(results[0]) == 5


def test_documents_are_reranked_within_seconds():
    both = [timed(small, 0.0002, "small"), timed(large, 0.004, "large")]
    ranked = ck.rerank("old red oak", texts(3), ck.Budget(seconds=0.4), scorer=both)
    assert len(ranked) == N
    assert sum("predicted" not in entry for entry in ranked) > 10


def test_pairs_that_measure_a_scorer_are_kept_and_counted_once(index):
    store = ck.extend.ScoreStore()
    stored = [ck.StoredScorer(named(f, n), store) for f, n in ((small, "s"), (large, "l"))]
    searcher = ck.Searcher(index, stored)
    first = searcher.search("old red oak", 5, ck.Budget(seconds=2.0))
    again = searcher.search("old red oak", 5, ck.Budget(seconds=2.0))
    assert again.n_calls < first.n_calls
    assert again.cheaper.n_calls < first.cheaper.n_calls


def test_a_scorer_that_cannot_be_measured_is_said(index, caplog):
    searcher = ck.Searcher(index, [named(small, "small"), named(dead, "dead")])
    with caplog.at_level(logging.WARNING):
        results = searcher.search("old red oak", 5, ck.Budget(seconds=1.0))
    assert "the speed of callable:dead could not be measured: " in caplog.text
    assert "the line is dead" in caplog.text
    assert [hit.rung for hit in results[0]] == [1] * 5
    assert results.stopped_by == "scorer"
