"""What holds for every method on a real index, with a callable and with the bundled cross-encoder."""

from __future__ import annotations

import json

import pytest
from contracts.test_every_method import pytest_generate_tests  # noqa: F401
from golden.cases import TEXT_QUERIES as QUERIES
from golden.cases import N, with_a_copy
from synthetic import METHODS

import crossknn as ck

BUDGET, SPECS = 8, METHODS


@pytest.fixture(params=["callable", "fitted", "bundled"])
def setting(request):
    return with_a_copy(request.param)


def test_the_budget_is_spent_on_exact_scores_and_a_copy_answers_the_same(spec, setting):
    index, copy, scorer, store, exact = setting
    results = ck.Searcher(index, scorer, spec, seed=3).search(QUERIES, k=5, budget=BUDGET)
    budget = N if spec == "exact" else BUDGET
    assert results.n_calls == results.n_scored == budget * len(QUERIES)
    assert results.stopped_by == "budget"
    for q, hits in enumerate(results):
        positions, scores = [h.position for h in hits], [h.score for h in hits]
        assert len(set(positions)) == 5
        assert scores == pytest.approx(exact[q, positions], abs=1e-4)
        assert scores == sorted(scores, reverse=True)
        assert all(h.text == index.items.texts[h.position] for h in hits)
    stored = ck.StoredScorer(scorer, store)
    again = ck.Searcher(copy, stored, spec).search(QUERIES, k=5, budget=BUDGET, seed=3)
    assert [[h.id for h in hits] for hits in results] == [[h.id for h in hits] for hits in again]


def test_a_filter_that_allows_nothing_is_an_empty_answer(spec, setting):
    index, _, scorer, *_ = setting
    searcher = ck.Searcher(index, scorer, spec)
    for options in ({}, {"min_score": 0.0}, {"k": 3, "trace": True}):
        results = searcher.search(QUERIES, budget=BUDGET, filter=[], **options)
        assert list(results) == [[]] * len(QUERIES)
        assert (results.n_calls, results.n_scored, results.error) == (0, 0, None)
        assert json.loads(json.dumps(results.to_dict()))["n_calls"] == 0
