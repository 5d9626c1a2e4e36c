"""All items above a score: what is returned, and how many more are expected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from synthetic import matrix

import crossknn as ck
from crossknn.errors import InputError
from crossknn.retrievers.base import WeightedSum
from crossknn.search.fusion import Fusion
from crossknn.search.loop import simulate
from crossknn.search.missing import Outcomes, expected_missing, rehearse, with_draw
from crossknn.search.sharing import SharedBudget

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
    return ck.Searcher(index, ck.CallableScorer(score, name="x"), "gp(retriever=bm25, rounds=5)")


@pytest.mark.parametrize("method", [None, "kriging(retriever=bm25)", "axn(retriever=bm25)"])
@pytest.mark.parametrize("k", [None, 3])
def test_hits_are_the_scored_items_that_reach_it(searcher, method, k):
    found = searcher.search(QUERIES, k, 20, min_score=6.0, method=method, trace=True)
    for q, scored in enumerate(found.trace):
        reach = sorted((h.score for h in scored if h.score >= 6), reverse=True)
        assert [hit.score for hit in found[q]] == reach[:k]
        assert found.best_scores[q] == max(hit.score for hit in scored)
        missing = found.expected_missing[q]
        assert missing is None if method == "axn(retriever=bm25)" else 0 <= missing <= 40


def test_nothing_is_missing_where_all_was_scored(searcher):
    found = searcher.search(QUERIES, budget=60, min_score=6.0, method="axn(retriever=bm25)")
    assert found.expected_missing == (0.0, 0.0, 0.0)
    exact = [sum(s >= 6 for s in score([(q, t) for t in TEXTS])) for q in QUERIES]
    assert [len(hits) for hits in found] == exact


def test_a_threshold_above_all_scores_is_said_in_a_sentence(searcher):
    found = searcher.search("odd", budget=20, min_score=99)
    assert found[0] == []
    assert f"the best score is {found.best_scores[0]:.2f}" in found.completeness(0)
    assert "more are expected" in found.completeness(0)


def test_chances_of_the_anchors_items_sum_to_those_that_reached_it():
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=(2, 9_000))
    std, final = np.exp(std), mean + rng.standard_t(3, 9_000)
    chance = Outcomes(mean, std, final).chance(0.3)
    z = np.sort((mean - 0.3) / std)
    assert chance(z).sum() == pytest.approx(np.count_nonzero(final >= 0.3))
    assert (np.diff(chance(z)) >= 0).all()
    # Above all but a few scores the curve is that of a lower threshold, and not 0.
    assert Outcomes(mean, std, final).chance(final.max() + 1)(np.array([50.0])) > 0.1


@pytest.mark.parametrize("spec", ["gp(retriever=dense)", "kriging(retriever=dense)"])
@pytest.mark.parametrize("fused", [False, True])
def test_as_many_are_expected_as_are_missing(spec, fused):
    stored = matrix(n=400, anchors=40, tests=40, noise=1.0)
    index, queries, scores = stored.rows(0, 40)
    method, budget = ck.parse_method(spec), 40
    fusion = Fusion(WeightedSum([ck.open_retriever(index, "bm25")], [0.5])) if fused else None

    def plan(made):
        return fusion.plan(made) if fusion else made

    known = ((plan(p), q, s) for p, q, s in method.rehearsals(index, budget, 0))
    final = scores + (fusion.known(queries) if fusion else 0)
    outcomes = rehearse(known, 40)
    for threshold in np.quantile(final, [0.7, 0.9]):
        chance = outcomes.chance(threshold)
        made = with_draw(plan(method.plan(index, budget, 0)), chance, threshold, queries, 0)
        search = simulate(made, queries, scores)
        items = search.picks().items
        np.put_along_axis(scored := np.zeros(scores.shape, bool), items, True, axis=1)
        missing = np.count_nonzero((final >= threshold) & ~scored, axis=1).mean()
        expected = np.mean(expected_missing(search, threshold, chance))
        assert expected == pytest.approx(missing, rel=0.2)


def test_the_last_round_is_drawn_in_proportion_to_chances():
    def chance(z):
        return np.exp(3 * z)

    index, queries, scores = matrix(n=60, tests=1).rows(0, 1)
    plan = ck.parse_method("gp(retriever=dense, rounds=2)").plan(index, 9, 0)
    drawn, asked = np.zeros(60), simulate(plan, queries, scores).picks().items[0, :4]
    plan = replace(plan, batches=(4, 1))
    for seed in range(600):
        items = simulate(with_draw(plan, chance, 9.0, queries, seed), queries, scores).picks().items
        np.testing.assert_array_equal(items[0, :4], asked)
        drawn[items[0, 4]] += 1
    [(_, mean, std, left)] = simulate(replace(plan, batches=(4,)), queries, scores).predicted()
    expected = chance((mean - 9.0) / std)
    expected *= 600 / expected.sum()
    chi_square = ((drawn[left] - expected) ** 2 / expected).sum()
    assert chi_square < len(left) + 4 * np.sqrt(2 * len(left))


def test_what_was_drawn_corrects_chances_that_are_wrong():
    index, queries, scores = matrix(n=400, anchors=40, tests=40, noise=1.0).rows(0, 40)
    plan = ck.parse_method("gp(retriever=dense, rounds=4)").plan(index, 60, 0)
    made = with_draw(plan, lambda z: np.full(len(z), 0.5), 6.0, queries, 0)
    search = simulate(made, queries, scores)
    found = expected_missing(search, 6.0, lambda z: np.full(len(z), 0.5))
    reached = np.take_along_axis(scores, search.picks().items, axis=1) >= 6.0
    ratio = (0.5 + reached[:, -15:].sum(axis=1)) / (0.5 + 15 * 0.5)
    np.testing.assert_allclose(found, ratio * 0.5 * (400 - 60))


def test_no_rehearsal_knows_the_query_that_it_searches():
    index = matrix(anchors=20)
    plans = list(ck.parse_method("kriging(retriever=dense)").rehearsals(index, 20, 0))
    assert sum(len(queries) for _, queries, _ in plans) == 20
    predictor, queries = plans[0][0].predictor, plans[0][1]
    changed = replace(index, scores=np.where(np.arange(26)[:, None] == 0, -50, index.scores))
    plan, *_ = next(ck.parse_method("kriging(retriever=dense)").rehearsals(changed, 20, 0))
    other = plan.predictor
    np.testing.assert_array_equal(other.arrays[0], predictor.arrays[0])  # factors
    np.testing.assert_array_equal(other.start(queries).basis, predictor.start(queries).basis)
    for trend, known in zip(other.model.trends, predictor.model.trends, strict=True):
        np.testing.assert_array_equal(trend.mean, known.mean)
        np.testing.assert_array_equal(trend.precision, known.precision)


def test_a_shared_budget_goes_where_items_reach_it():
    index, queries, scores = matrix(n=200, noise=0.1).rows(0, 6)
    scores = scores - np.array([0, 0, 0, 50, 50, 50], np.float32)[:, None]
    plan = ck.parse_method("gp(retriever=dense, rounds=4)").plan(index, 40, 0)
    share = SharedBudget(total=240, k=1, min_score=4.0)
    spent = simulate(replace(plan, share=share), queries, scores).n_scored
    assert spent.sum() == 240
    assert spent[:3].min() > 2 * spent[3:].max()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"min_score": float("nan")}, "min_score is nan"),
        ({"min_score": "3"}, "min_score is '3'"),
        (
            {"min_score": 3, "budget": ck.Budget(target_recall=0.9)},
            "target_recall refers to the top k",
        ),
        ({"min_score": 3, "k": 0}, "k is 0"),
    ],
)
def test_bad_input_is_said_in_a_sentence(searcher, options, sentence):
    with pytest.raises(InputError, match=sentence):
        searcher.search("odd", **options)
