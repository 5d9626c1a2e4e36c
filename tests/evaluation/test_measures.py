"""Recall and its interval."""

from __future__ import annotations

import numpy as np

from crossknn.evaluation.measures import bootstrap, exact_top, recall


def test_recall_by_hand():
    found = np.array([[3, 1, -1], [0, 2, 4]])
    truth = np.array([[1, 2], [4, 0]])
    assert recall(found, truth).tolist() == [0.5, 1.0]


def test_exact_top_breaks_ties_by_position():
    assert exact_top(np.array([[1.0, 2, 2, 1]]), 3).tolist() == [[1, 2, 0]]


def test_the_interval_covers_the_mean_and_narrows_with_queries():
    rng = np.random.default_rng(0)
    few, many = bootstrap(rng.random(20)), bootstrap(rng.random(2000))
    assert few.low < few.mean < few.high
    assert many.high - many.low < 0.2 * (few.high - few.low)
    assert bootstrap(np.ones(9)) == bootstrap(np.ones(5))


def test_the_interval_has_its_coverage():
    rng = np.random.default_rng(1)
    draws = [bootstrap(rng.normal(size=40), seed=s, resamples=400) for s in range(200)]
    covered = np.mean([d.low <= 0 <= d.high for d in draws])
    assert 0.88 <= covered <= 0.99
