"""What predictions say of a query's top k."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from crossknn.search.stopping import expected_recall, level


def test_expected_recall_by_hand():
    best = np.array([3.0, 2.0, 1.0])
    assert expected_recall(best, np.zeros(9), np.full(9, 0.1)) == 1
    assert expected_recall(best, np.full(9, 9.0), np.full(9, 0.1)) == pytest.approx(0, abs=0.01)
    assert expected_recall(best, np.zeros(0), np.zeros(0)) == 1
    # Poisson: 0, 1, 2 or more of them with the mean 1, where exactly one is certain.
    found = expected_recall(best[::-1], np.array([2.5]), np.array([1e-6]))
    assert found == pytest.approx(np.mean([np.exp(-1), np.exp(-1) * 2, 1]), abs=1e-6)


@given(st.integers(0, 999), st.integers(1, 30), st.integers(1, 12))
def test_above_the_level_of_the_kth_best_k_items_are_expected(seed, c, k):
    rng = np.random.default_rng(seed)
    known, mean, std = rng.normal(size=5), rng.normal(size=c), rng.uniform(0.05, 1, c)

    def expected(score):
        return (known > score).sum() + ndtr((mean - score) / std).sum()

    found = level(known, mean, std, k)
    if k < c + 5:
        assert expected(found + 1e-3) - 1e-2 <= k <= expected(found - 1e-3) + 1e-2
