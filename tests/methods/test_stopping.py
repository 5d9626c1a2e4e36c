"""Stopping at a target: calibrated where exact scores are known, and what a search does with it."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
import pytest
from synthetic import matrix, run

from crossknn.errors import InputError, SpecError
from crossknn.methods import method
from crossknn.methods.stopping import NEVER, Course, course
from crossknn.search.loop import simulate
from crossknn.search.plan import Stop

SPEC = "kriging(retriever=dense, rounds=6, k=3{})"


def world():
    return matrix(n=120, anchors=40, tests=20)


def search(plan, data):
    _, queries, scores = data.rows(0, data.n_tests)
    return simulate(plan, queries, scores)


def test_a_threshold_by_hand():
    expected = np.array([[0.2, 0.5], [0.6, 0.9], [np.nan, np.nan]])
    achieved = np.array([[0.0, 0.5], [0.5, 0.75], [1.0, 1.0]])
    found = Course(expected=expected, achieved=achieved)
    assert found.recall(0.5) == pytest.approx((0.5 + 0.5) / 2)
    assert found.recall(0.6) == pytest.approx((0.5 + 0.75) / 2)
    assert found.recall(0.7) == pytest.approx((1.0 + 0.75) / 2)
    assert found.threshold(0.6) == 0.6
    assert found.threshold(0.8) == 0.9
    assert found.threshold(0.9) == NEVER
    assert found.threshold(0.0) == 0.2


def test_a_target_that_an_earlier_stop_reaches_by_luck_is_not_taken():
    expected = np.array([[0.2], [0.4], [0.6], [np.nan]])
    achieved = np.array([[0.9], [0.5], [0.9], [1.0]])
    assert Course(expected=expected, achieved=achieved).threshold(0.8) == 0.6


def test_a_course_has_what_a_search_had_achieved_before_each_round():
    data = world()
    index, queries, scores = data.rows(0, data.n_tests)
    plan = method(SPEC.format("")).plan(index, 24, 0)
    found = course(plan, queries, scores, 3)
    assert found.expected.shape == found.achieved.shape == (6, data.n_tests)
    picks = run(method(SPEC.format("")), data, 24).picks().items
    truth = np.argsort(-scores, axis=1, kind="stable")[:, :3]
    for t, count in enumerate(accumulate(plan.batches)):
        for q in range(data.n_tests):
            hits = np.isin(truth[q], picks[q, :count]).mean()
            assert found.achieved[t, q] == pytest.approx(hits)
    assert np.isnan(found.expected[-1]).all()


def test_queries_stop_when_they_expect_enough_and_keep_what_they_have():
    data = world()
    index, *_ = data.rows(0, data.n_tests)
    plan = method(SPEC.format("")).plan(index, 24, 0)
    whole = search(plan, data)
    some = search(replace(plan, stop=Stop(k=3, expected=0.8)), data)
    assert some.stopped.any()
    assert not some.stopped.all()
    for q in range(data.n_tests):
        count = int(some.n_scored[q])
        assert (count < 24) == some.stopped[q]
        assert count in accumulate(plan.batches)
        np.testing.assert_array_equal(some.picks().items[q, :count], whole.picks().items[q, :count])
        before = [e[q] for counts, e in some.expectations if counts[q] < count]
        assert all(not e >= 0.8 for e in before)
        if some.stopped[q]:
            assert next(e[q] for counts, e in some.expectations if counts[q] == count) >= 0.8


def test_a_target_spends_less_than_the_budget_and_more_for_more():
    data = world()
    spent = {}
    for target in (0.5, 0.8, 0.99):
        plan = method(SPEC.format(f", target_recall={target}")).plan(
            data.rows(0, data.n_tests)[0], 36, 0
        )
        spent[target] = search(plan, data).n_scored.mean()
    assert spent[0.5] <= spent[0.8] <= spent[0.99] <= 36
    assert spent[0.5] < spent[0.99]


def test_what_is_promised_is_about_what_is_found():
    data = matrix(n=150, anchors=120, tests=120)
    index, _, scores = data.rows(0, data.n_tests)
    truth = np.argsort(-scores, axis=1, kind="stable")[:, :3]
    for target in (0.7, 0.9):
        plan = method(SPEC.format(f", target_recall={target}")).plan(index, 60, 0)
        found = search(plan, data)
        picks = found.picks().items
        recall = np.mean([np.isin(truth[q], picks[q]).mean() for q in range(len(truth))])
        assert recall > target - 0.06
        assert found.n_scored.mean() < 55


def test_the_course_is_searched_once_for_all_targets(monkeypatch):
    data, calls = world(), []
    index, *_ = data.rows(0, data.n_tests)
    monkeypatch.setattr("crossknn.methods.kriging.course", lambda *a: calls.append(1) or course(*a))
    for target in (0.5, 0.9):
        method(SPEC.format(f", target_recall={target}")).plan(index, 24, 0)
    assert len(calls) == 10
    method(SPEC.format(", target_recall=0.5")).plan(index, 36, 0)
    assert len(calls) == 20


def test_a_target_needs_anchors_and_lies_between_0_and_1():
    data = world()
    index, *_ = data.rows(0, 3)
    with pytest.raises(InputError, match="needs the anchors"):
        method(SPEC.format(", anchors=false, target_recall=0.9")).plan(index, 24, 0)
    few, *_ = matrix(n=120, anchors=2, tests=3).rows(0, 3)
    with pytest.raises(InputError, match="calibrated on three anchor queries or more"):
        method(SPEC.format(", target_recall=0.9")).plan(few, 24, 0)
    with pytest.raises(SpecError, match="target_recall must lie between 0 and 1"):
        method(SPEC.format(", target_recall=90")).plan(index, 24, 0)


def test_a_predictor_that_knows_no_deviations_never_stops():
    data = world()
    index, *_ = data.rows(0, data.n_tests)
    plan = method("axn(retriever=dense, rounds=6)").plan(index, 24, 0)
    found = search(replace(plan, stop=Stop(k=3, expected=0.0)), data)
    assert not found.stopped.any()
    assert (found.n_scored == 24).all()
