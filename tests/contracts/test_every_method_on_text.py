"""What holds for every method on a real index, with a callable and with the bundled cross-encoder."""

from __future__ import annotations

import json

import numpy as np
import pytest
from contracts.test_every_method import pytest_generate_tests  # noqa: F401
from golden.cases import TEXT_QUERIES as QUERIES
from golden.cases import N, add_item_scores, corpus, overlap
from synthetic import METHODS

import crossknn as ck
from crossknn.fitting.anchors import collect_anchors
from crossknn.index.vectors import ItemVectors
from crossknn.scores.collect import exact_scores
from crossknn.scores.store import ScoreStore
from crossknn.types import Scale

BUDGET, SPECS = 8, METHODS


@pytest.fixture(scope="module", params=["callable", "fitted", "bundled"])
def setting(request, tmp_path_factory):
    """(index with everything that methods need, a copy, scorer, its scores: stored, as (m, n))."""
    scorer = (
        ck.CrossEncoder() if request.param == "bundled" else ck.CallableScorer(overlap, "words")
    )
    index = ck.ItemIndex.build(corpus(), encoder="bundled", lsa=8)
    folder = tmp_path_factory.mktemp("text") / "words.index"
    index.save(folder)
    collect_anchors(index, scorer, ["copy a file", "merge lists", "find a path", "parse a string"])
    add_item_scores(index, scorer, np.arange(0, N, 12))
    if request.param == "fitted":
        moved = index.vectors["dense"] + np.float32(0.01) * index.vectors["dense"][::-1]
        options = {"method": "als", "base": "dense", "scale": Scale(alpha=1.0, beta=0.1)}
        fitted = ItemVectors(values=moved, fingerprint=scorer.fingerprint, **options)
        index.add_fitted("mf", fitted)
    store = ScoreStore()
    exact = exact_scores(store, scorer, QUERIES, index.items.texts)
    ck.ItemIndex.load(folder).save(folder.with_name("copy.index"))
    index, copy = map(ck.ItemIndex.load, (folder, folder.with_name("copy.index")))
    return index, copy, scorer, store, exact


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
