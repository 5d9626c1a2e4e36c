"""Recall, its interval, and what is chance."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.evaluation.measures import bootstrap, paired, recall
from crossknn.linalg import top_k


@settings(deadline=None)
@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 15), st.integers(0, 10**6), st.data())
def test_recall_is_that_of_brute_force(m, n, depth, seed, data):
    rng, k = np.random.default_rng(seed), data.draw(st.integers(1, n))
    scores = rng.integers(-3, 4, (m, n)).astype(float)  # many ties
    ranked = rng.permuted(np.tile(np.arange(n), (m, 1)), axis=1)
    expected = []
    for row, order in zip(scores, ranked, strict=True):
        best = sorted(range(len(row)), key=lambda item, row=row: (-row[item], item))[:k]
        expected.append(len({*best} & {*order[:depth].tolist()}) / k)
    truth = top_k(scores, k).items
    assert recall(ranked[:, :depth], truth).tolist() == expected


def test_intervals_have_their_coverage_and_p_values_are_uniform_where_nothing_differs():
    rng = np.random.default_rng(1)
    draws = [bootstrap(rng.normal(size=40), seed=s, resamples=400) for s in range(200)]
    assert 0.88 <= np.mean([d.low <= 0 <= d.high for d in draws]) <= 0.99
    rng = np.random.default_rng(3)
    values = [paired(rng.normal(size=30) - rng.normal(size=30), seed=s).p_value for s in range(150)]
    assert 0.01 <= np.mean(np.array(values) <= 0.05) <= 0.1
    assert 0.4 <= np.mean(np.array(values) <= 0.5) <= 0.6


@pytest.mark.parametrize(
    "sets", [[[0.4, -0.1, 0.3], [0.2, 0.5]], [[0.4, 0.1, -0.1, 0.4, 0.5]]], ids=["sets", "one"]
)
def test_the_p_value_is_that_of_all_sign_flips_of_the_weighted_mean(sets):
    sets = [np.array(values) for values in sets]
    weighted = np.concatenate([s / len(s) for s in sets])
    sums = [abs(weighted @ signs) for signs in itertools.product((-1, 1), repeat=5)]
    expected = np.mean([s >= abs(weighted.sum()) - 1e-9 for s in sums])
    found = paired(*sets)
    assert found.p_value == pytest.approx(expected, abs=0.02)
    assert found.difference == pytest.approx(weighted.sum() / len(sets))
    assert found.low <= found.difference <= found.high


def test_a_difference_is_clear_if_interval_and_p_value_agree():
    few = paired(np.array([1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]))
    assert few.low > 0  # 3 of 7 queries: an interval above 0, by chance in 1 of 4
    assert (few.p_value > 0.2, few.sign) == (True, 0)
    many = paired(np.ones(20))
    assert (many.sign, paired(-np.ones(20)).sign) == (1, -1)
    assert replace(many, low=0.0).sign == 0
    assert (replace(many, p_value=0.05).sign, replace(many, p_value=0.051).sign) == (1, 0)
    same = paired(np.zeros(40))
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)


def test_queries_without_a_value_are_left_out_and_counted():
    found = paired(np.array([0.5, np.nan, np.nan, 0.5]))
    assert (found.n, found.left_out, found.difference) == (2, 2, 0.5)
    assert bootstrap(np.array([1.0, np.nan])) == bootstrap(np.array([1.0]))
    for sets in ([np.array([np.nan])], [np.array([]), np.array([1.0])], []):
        assert np.isnan(bootstrap(*sets).mean)
        with pytest.raises(InputError, match="no query has a value for both methods"):
            paired(*sets)
