"""All scored items above a score."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic import matrix

import crossknn as ck
from crossknn.errors import InputError
from crossknn.fitting.stopping import rehearsals

TEXTS = [f"item {i} {'even' if i % 2 == 0 else 'odd'} {'x' * (i % 7)}" for i in range(60)]
QUERIES = ["odd", "even xx", "item xxxx"]


def score(pairs):
    return [len(set(q) & set(t)) + t.count("x") + 1 / (9 + len(t) + ord(t[5])) for q, t in pairs]


@pytest.fixture(scope="module")
def index():
    index = ck.ItemIndex.build(TEXTS, lsa=4)
    ck.collect_anchors(index, ck.CallableScorer(score, name="x"), ["odd item", "even", "xxx", "it"])
    return index


@pytest.fixture
def searcher(index):
    return ck.Searcher(
        index, ck.CallableScorer(score, name="x"), "kriging(retriever=bm25, rounds=5)"
    )


@pytest.mark.parametrize("method", [None, "axn(retriever=bm25)"])
@pytest.mark.parametrize("k", [None, 3])
def test_hits_are_the_scored_items_that_reach_it(searcher, method, k):
    found = searcher.search(QUERIES, k, 20, min_score=6.0, method=method, trace=True)
    for q, scored in enumerate(found.trace):
        reach = sorted((h.score for h in scored if h.score >= 6), reverse=True)
        assert [hit.score for hit in found[q]] == reach[:k]
        assert found.best_scores[q] == max(hit.score for hit in scored)


def test_no_rehearsal_knows_the_query_that_it_searches():
    index = matrix(anchors=20)
    method = ck.parse_method("kriging(retriever=dense)")
    plans = list(rehearsals(index, method, 20, 0))
    assert sum(len(queries) for _, queries, _ in plans) == 20
    predictor, queries = plans[0][0].predictor, plans[0][1]
    changed = replace(index, scores=np.where(np.arange(26)[:, None] == 0, -50, index.scores))
    plan, *_ = next(rehearsals(changed, method, 20, 0))
    other = plan.predictor
    np.testing.assert_array_equal(other.arrays[0], predictor.arrays[0])  # factors
    np.testing.assert_array_equal(other.start(queries).basis, predictor.start(queries).basis)
    for trend, known in zip(other.model.trends, predictor.model.trends, strict=True):
        np.testing.assert_array_equal(trend.mean, known.mean)
        np.testing.assert_array_equal(trend.precision, known.precision)


def test_a_target_recall_does_not_go_with_a_score(searcher):
    with pytest.raises(InputError, match="target_recall refers to the top k"):
        searcher.search("odd", budget=ck.Budget(target_recall=0.9), min_score=3)
