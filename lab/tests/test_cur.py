"""CUR with a rank: the same numbers as ADACUR at full rank, the rank found, and the calls of its fit."""

from __future__ import annotations

import numpy as np
import pytest
from fitting import test_fit as ours
from fitting.test_fit import TRAIN, N, world  # noqa: F401

from crossknn.errors import InputError
from crossknn.fitting.fit import fit
from crossknn.scores.collect import Limits
from crossknn_lab.cur import PENALTIES, cur, ridge_map
from crossknn_lab.fits import fit_method


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
    made = cur(rows, rank=40, center=centre)
    assert made.items.dtype == np.float16
    anchors = rows.astype(np.float64) - centre
    expected = (others[:, chosen] - centre) @ np.linalg.pinv(anchors[:, chosen]) @ anchors
    scores = made.scale.beta * (others[:, chosen] - made.scale.alpha)
    vectors = scores @ np.linalg.pinv(made.items[chosen].astype(np.float64)).T
    found = vectors @ made.items.T.astype(np.float64) / made.scale.beta
    assert np.abs(found - expected).max() < 0.02 * np.abs(expected).max()


def test_a_truncation_is_the_best_of_its_rank():
    rows, _ = table()
    made = cur(rows, rank=7, center=0.5)
    left, values, right = np.linalg.svd(rows - 0.5, full_matrices=False)
    best = (left[:, :7] * values[:7]) @ right[:7]
    np.testing.assert_allclose(made.queries @ made.items.T / made.scale.beta, best, atol=0.02)


def test_the_rank_of_low_rank_scores_is_found():
    rows, _ = table(a=80, n=1000, rank=6)
    made = cur(rows - 2, center=0.0)
    assert made.details["rank"] == 6
    assert made.held_out < 0.02 * made.initial


def test_a_query_gets_its_vector_from_the_encoders():
    rng = np.random.default_rng(3)
    queries, mixing = rng.normal(size=(90, 8)).astype(np.float32), rng.normal(size=(8, 300))
    scores = 2 + queries @ mixing
    made = cur(scores[:80].astype(np.float32), rank=8, center=2.0, queries=queries[:80])
    found = made.map(queries[80:]) @ made.items.T.astype(np.float32) / made.scale.beta + 2
    assert np.abs(found - scores[80:]).max() < 0.05 * np.abs(scores).max()
    assert cur(scores, rank=8, center=2.0).map is None


@pytest.mark.parametrize(("a", "d"), [(30, 80), (200, 20), (50, 50)])
def test_maps_are_scikit_learns_ridge_regression_with_a_penalty_for_each_dimension(a, d):
    rng = np.random.default_rng(a)
    queries = rng.normal(size=(a, d)) + 1
    wanted = queries @ rng.normal(size=(d, 9)) + 3 * rng.normal(size=(a, 9)) * np.arange(9) + 2
    penalties = PENALTIES * np.square(queries).sum(axis=1).mean()
    from sklearn.linear_model import RidgeCV  # a second to import

    theirs = RidgeCV(penalties, alpha_per_target=True).fit(queries, wanted)
    assert len(set(theirs.alpha_)) > 2
    found = ridge_map(queries, wanted)
    np.testing.assert_allclose(found.weight, theirs.coef_.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.offset, theirs.intercept_, rtol=1e-4, atol=1e-4)


# Its anchors are scores like all others


@pytest.mark.parametrize("method", ["cur", "cur(rank=4)"])
def test_fitted_items_are_kept_and_find_more(world, tmp_path, method):  # noqa: F811
    ours.test_aligned_items_are_kept_and_find_more(world, tmp_path, method)


def test_a_rank_above_that_of_the_scores_costs_nothing(world):  # noqa: F811
    with pytest.raises(InputError, match="allow a rank of at most"):
        fit(world.index(), world, world.queries[TRAIN], fit_method("cur(rank=99)"))
    assert world.asked == 0


def test_methods_share_all_scores_and_dense_rows_are_less_what_is_known(world, tmp_path):  # noqa: F811
    index, queries = world.index(tmp_path / "i"), world.queries[:10]
    assert fit(index, world, queries, per=20).collected.calls == 200
    found = fit(index, world, queries, fit_method("cur(rank=2)"))
    assert (found.collected.calls, found.collected.reused) == (10 * N - 200, 200)
    assert found.vectors.cost["calls"] == world.asked == 10 * N
    more = fit(index, world, world.queries[:12], per=30)
    assert (more.collected.calls, more.collected.reused) == (60, 300)
    assert more.vectors.cost["calls"] == 360  # of an anchor, only what was planned
    by_item = fit(index, world, world.queries[:12], strategy="i", per=4)
    assert 0 < by_item.collected.calls < 4 * N / 2


def test_dense_rows_stop_at_a_limit_and_go_on(world):  # noqa: F811
    given = world.index(), world, world.queries[:3], fit_method("cur(rank=2)")
    with pytest.raises(InputError, match="scores of all 120 items yet: allow more calls or more"):
        fit(*given, limits=Limits(max_calls=100))
    found = fit(*given, limits=Limits(max_calls=200))
    assert found.collected.stopped_by == "max_calls"
    assert (found.vectors.cost["queries"], world.asked) == (2, 300)
    assert "some train queries lack scores" in found.notes[0]
    assert fit(*given).vectors.cost["queries"] == 3
