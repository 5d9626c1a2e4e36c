"""Expected recall against simulation, and where it is known."""

from __future__ import annotations

from itertools import product
from math import erf, sqrt

import numpy as np
import pytest

from crossknn.search.expected import expected_recall, normal_cdf


def test_the_normal_distribution():
    values = np.linspace(-6, 6, 1001)
    exact = [(1 + erf(x / sqrt(2))) / 2 for x in values]
    np.testing.assert_allclose(normal_cdf(values), exact, atol=1e-7)


def test_it_is_all_where_nothing_else_can_be_better_and_none_where_all_is():
    best = np.array([3.0, 2.0, 1.0])
    assert expected_recall(best, np.zeros(9), np.full(9, 0.1)) == 1
    assert expected_recall(best, np.full(9, 9.0), np.full(9, 0.1)) == pytest.approx(0, abs=0.01)
    assert expected_recall(best, np.zeros(0), np.zeros(0)) == 1


def test_one_better_item_pushes_out_the_last():
    # Poisson: 0, 1, 2 or more of them with the mean 1, where exactly one is certain.
    found = expected_recall(np.array([3.0, 2.0, 1.0]), np.array([2.5]), np.array([1e-6]))
    stays = [np.exp(-1), np.exp(-1) * 2, 1]  # third, second, first
    assert found == pytest.approx(np.mean(stays), abs=1e-6)


def test_it_is_what_simulation_says():
    """On the whole; where one item alone may be the best, the count above is hardly Poisson."""
    errors = []
    for seed, k, spread in product(range(20), (1, 3, 12), (0.2, 0.5, 1.5)):
        rng = np.random.default_rng(seed)
        best, mean = np.sort(rng.normal(2, 0.5, k))[::-1], rng.normal(0, 0.6, 200)
        std = spread * rng.uniform(0.5, 1, 200)
        drawn = rng.normal(mean, std, size=(300, 200))
        every = np.hstack([np.tile(best, (300, 1)), drawn])
        top = np.argpartition(-every, k - 1, axis=1)[:, :k]
        errors.append(abs(expected_recall(best, mean, std) - (top < k).mean()))
    assert np.mean(errors) < 0.03
    assert np.max(errors) < 0.35


def test_order_of_the_best_does_not_matter():
    rng = np.random.default_rng(0)
    best, mean, std = rng.normal(2, 1, 5), rng.normal(0, 1, 50), rng.uniform(0.1, 1, 50)
    assert expected_recall(best, mean, std) == expected_recall(best[::-1], mean, std)
