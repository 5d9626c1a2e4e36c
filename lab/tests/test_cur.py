"""CUR with a rank: the same numbers as ADACUR at full rank, and the rank found."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import RidgeCV

from crossknn_lab.cur import PENALTIES, cur, ridge_map


def table(a=40, n=300, rank=40, noise=0.0, seed=0):
    """Scores of a + 10 queries with a mean of about 2: those of anchors, and of other queries."""
    rng = np.random.default_rng(seed)
    scores = 2 + rng.normal(size=(a + 10, rank)) @ rng.normal(size=(rank, n))
    scores += noise * rng.normal(size=scores.shape)
    return scores[:a].astype(np.float32), scores[a:]


@pytest.mark.parametrize("b", [12, 90])
def test_full_rank_is_adacur(b):
    """c pinv(R[:, S]) R, everything less the centre (ANNCUR 2.2), with fewer and more than a."""
    rows, others = table()
    centre = float(rows.mean())
    chosen = np.random.default_rng(1).permutation(300)[:b]
    fit = cur(rows, rank=40, center=centre)
    assert fit.items.dtype == np.float16
    anchors = rows.astype(np.float64) - centre
    expected = (others[:, chosen] - centre) @ np.linalg.pinv(anchors[:, chosen]) @ anchors
    scores = fit.scale.beta * (others[:, chosen] - fit.scale.alpha)
    vectors = scores @ np.linalg.pinv(fit.items[chosen].astype(np.float64)).T
    found = vectors @ fit.items.T.astype(np.float64) / fit.scale.beta
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_a_truncation_is_the_best_of_its_rank():
    rows, _ = table()
    fit = cur(rows, rank=7, center=0.5)
    left, values, right = np.linalg.svd(rows - 0.5, full_matrices=False)
    best = (left[:, :7] * values[:7]) @ right[:7]
    np.testing.assert_allclose(fit.queries @ fit.items.T / fit.scale.beta, best, atol=0.02)


def test_the_rank_of_low_rank_scores_is_found():
    rows, _ = table(a=80, n=1000, rank=6)
    fit = cur(rows - 2, center=0.0)
    assert fit.details["rank"] == 6
    assert fit.held_out < 0.02 * fit.initial


def test_a_query_gets_its_vector_from_the_encoders():
    rng = np.random.default_rng(3)
    queries, mixing = rng.normal(size=(90, 8)).astype(np.float32), rng.normal(size=(8, 300))
    scores = 2 + queries @ mixing
    fit = cur(scores[:80].astype(np.float32), rank=8, center=2.0, queries=queries[:80])
    found = fit.map(queries[80:]) @ fit.items.T.astype(np.float32) / fit.scale.beta + 2
    assert np.abs(found - scores[80:]).max() < 0.05 * np.abs(scores).max()
    assert cur(scores, rank=8, center=2.0).map is None


@pytest.mark.parametrize(("a", "d"), [(30, 80), (200, 20), (50, 50)])
def test_maps_are_scikit_learns_ridge_regression_with_a_penalty_for_each_dimension(a, d):
    rng = np.random.default_rng(a)
    queries = rng.normal(size=(a, d)) + 1
    wanted = queries @ rng.normal(size=(d, 9)) + 3 * rng.normal(size=(a, 9)) * np.arange(9) + 2
    penalties = PENALTIES * np.square(queries).sum(axis=1).mean()
    theirs = RidgeCV(penalties, alpha_per_target=True).fit(queries, wanted)
    assert len(set(theirs.alpha_)) > 2
    found = ridge_map(queries, wanted)
    np.testing.assert_allclose(found.weight, theirs.coef_.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.offset, theirs.intercept_, rtol=1e-4, atol=1e-4)
