"""The covariance from sparse scores: against dense anchors, and against averages of what was seen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.index.covariance import Covariance
from crossknn.index.factor_model import covariance_of
from crossknn.index.sparse import SparseScores
from crossknn.types import BoolArray, FloatArray, Pairs


@dataclass(frozen=True)
class World:
    """Queries (q, n) drawn from the model: what they score, and what is behind it."""

    exact: FloatArray
    cheap: FloatArray
    vectors: FloatArray
    mean: FloatArray
    loadings: FloatArray

    @property
    def covariance(self) -> FloatArray:
        return self.loadings @ self.loadings.T


def world(q: int = 80, n: int = 60, seed: int = 0, *, own: float = 1.0) -> World:
    """Items' means and three loadings follow their vectors, but for `own` of each item."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(n, 12))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    mean = 1.5 * vectors @ rng.normal(size=12) + own * rng.normal(size=n)
    loadings = 1.5 * vectors @ rng.normal(size=(12, 3)) + 0.3 * own * rng.normal(size=(n, 3))
    cheap = rng.normal(size=(q, n))
    exact = 3 + rng.normal(size=(q, 1)) + rng.normal(1, 0.2, (q, 1)) * cheap + mean
    exact += rng.normal(size=(q, 3)) @ loadings.T + 0.3 * rng.normal(size=(q, n))
    arrays = (exact, cheap, vectors)
    return World(*(a.astype(np.float32) for a in arrays), mean, loadings)


def fit(of: World, seen: BoolArray, order: np.ndarray | None = None, **options) -> Covariance:
    """From the entries of `exact` (q, n) where `seen` (q, n) is true, queries in another `order`."""
    order = np.arange(len(seen)) if order is None else order
    query, item = np.nonzero(seen[order])
    row = order[query]
    texts = [f"query {r}" for r in order]
    scores = SparseScores.of(texts, seen.shape[1], Pairs(query, item), of.exact[row, item])
    return covariance_of(scores, [of.cheap[row, item]], of.vectors, **{"rank": 12, **options})


def products(of: Covariance) -> FloatArray:
    return of.factor @ of.factor.T


def alike(left: FloatArray, right: FloatArray) -> float:
    """Cosine of two arrays."""
    return float(np.sum(left * right) / np.linalg.norm(left) / np.linalg.norm(right))


def correlation(left: FloatArray, right: FloatArray) -> float:
    return alike(left - left.mean(), right - right.mean())


def some(q: int, n: int, share: float, seed: int = 0) -> BoolArray:
    return np.random.default_rng(seed).random((q, n)) < share


def test_when_everything_is_seen_it_is_about_what_dense_anchors_give():
    of = world()
    sparse, dense = fit(of, np.ones((80, 60), bool)), Covariance.of(of.exact, [of.cheap])
    assert correlation(sparse.mean, dense.mean) > 0.995
    assert np.std(sparse.mean) == pytest.approx(np.std(dense.mean), rel=0.1)
    assert alike(products(sparse), products(dense)) > 0.9
    # It sets apart what the dense one takes as it is: how the queries' factors happen to correlate.
    assert alike(products(sparse), of.covariance) > alike(products(dense), of.covariance)
    assert sparse.variance == pytest.approx(dense.variance, rel=0.2)
    np.testing.assert_allclose(sparse.weights[1:], dense.weights[1:], rtol=0.1)
    assert sparse.factor.dtype == sparse.mean.dtype == np.float32
    assert sparse.factor.shape[0] == 60


def test_dense_rows_are_queries_with_all_items_scored():
    of, seen = world(), some(80, 60, 0.2)
    seen[50:] = True
    query, item = np.nonzero(seen[:50])
    texts = [f"query {row}" for row in range(50)]
    scores = SparseScores.of(texts, 60, Pairs(query, item), of.exact[query, item])
    dense = (of.exact[50:], [of.cheap[50:]])
    found = covariance_of(scores, [of.cheap[query, item]], of.vectors, rank=12, anchors=dense)
    flat = fit(of, seen)
    without = fit(of, seen[:50])
    assert correlation(found.mean, flat.mean) > 0.99
    assert alike(products(found), products(flat)) > 0.95
    truth = of.covariance
    assert alike(products(found), truth) > alike(products(without), truth) + 0.02


def test_dense_rows_alone_will_do():
    of, none = world(), np.zeros(0, np.int64)
    scores = SparseScores.of([], 60, Pairs(none, none), np.zeros(0, np.float32))
    nothing = [np.zeros(0, np.float32)]
    found = covariance_of(scores, nothing, of.vectors, rank=12, anchors=(of.exact, [of.cheap]))
    assert correlation(found.mean, Covariance.of(of.exact, [of.cheap]).mean) > 0.9


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 99), shift=st.integers(-64, 64), power=st.integers(-8, 8))
def test_a_shift_and_scale_of_the_scores_is_that_of_all_it_says(seed, shift, power):
    of, seen, size = world(30, 25, seed), some(30, 25, 0.4, seed), 2.0**power
    exact = np.round(of.exact * 256) / 256
    plain = fit(World(exact, of.cheap, of.vectors, of.mean, of.loadings), seen)
    moved = fit(World((exact + shift) * size, of.cheap, of.vectors, of.mean, of.loadings), seen)
    spread = np.abs(products(plain)).max()
    np.testing.assert_allclose(products(moved) / size**2, products(plain), atol=1e-3 * spread)
    np.testing.assert_allclose(moved.mean / size, plain.mean, atol=1e-3 * np.ptp(plain.mean))
    assert moved.variance / size**2 == pytest.approx(plain.variance, rel=1e-3)
    units = np.array([size, 1.0])
    np.testing.assert_allclose(moved.weights[1:] / units, plain.weights[1:], rtol=1e-2)
    np.testing.assert_allclose(
        moved.precision[1:, 1:] * np.outer(units, units), plain.precision[1:, 1:], rtol=2e-2
    )
    assert not moved.precision[0].any()


def test_the_order_of_the_queries_changes_nothing_and_neither_does_another_run():
    of, seen = world(30, 25), some(30, 25, 0.4)
    plain, again = fit(of, seen), fit(of, seen)
    other = fit(of, seen, np.random.default_rng(1).permutation(30))
    np.testing.assert_array_equal(plain.factor, again.factor)
    np.testing.assert_array_equal(plain.mean, again.mean)
    np.testing.assert_allclose(other.mean, plain.mean, atol=1e-4)
    np.testing.assert_allclose(products(other), products(plain), atol=1e-3)
    np.testing.assert_allclose(other.weights, plain.weights, atol=1e-5)


def searched(of: World, b: int) -> BoolArray:
    """What a search leaves: half of b by cheap score, then, of what it reveals, the vectors'
    neighbours of the best."""
    seen = np.zeros(of.exact.shape, bool)
    for row, (exact, cheap) in enumerate(zip(of.exact, of.cheap, strict=True)):
        seen[row, np.argsort(-cheap)[: b // 2]] = True
        while seen[row].sum() < b:
            known = np.flatnonzero(seen[row])
            best = known[np.argsort(-exact[known])[:3]]
            promise = of.vectors @ of.vectors[best].sum(axis=0) + cheap
            promise[known] = -np.inf
            seen[row, np.argmax(promise)] = True
    return seen


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_a_search_chose_biases_plain_averages_and_not_the_model(seed):
    """A search scores an item for those queries that promise well: its average is too high, and
    the more so the less often it is chosen. The model holds what the choice depended on, and leaves
    less of the items' means unexplained."""
    of = world(150, 60, seed)
    seen = searched(of, 15)
    found = fit(of, seen)
    counts = np.maximum(seen.sum(axis=0), 1)
    naive = np.where(seen, of.exact, 0).sum(axis=0) / counts
    shown = seen.sum(axis=0) > 0
    model, average = (
        1 - correlation(values[shown], of.mean[shown]) ** 2 for values in (found.mean, naive)
    )
    assert model < 0.05
    assert model < 0.6 * average
    left = np.where(seen, of.exact - naive, 0)
    together = seen.T.astype(float) @ seen
    plain = left.T @ left / np.maximum(together, 1)
    assert alike(products(found), of.covariance) > alike(plain, of.covariance) + 0.1


def test_an_item_that_was_never_seen_is_what_its_vector_says():
    of = world(80, 60, own=0.0)
    seen = some(80, 60, 0.4)
    seen[:, 50:] = False
    found = fit(of, seen)
    assert np.isfinite(found.factor).all()
    assert correlation(found.mean[50:], of.mean[50:]) > 0.9
    assert alike(products(found)[50:, :50], of.covariance[50:, :50]) > 0.8


def test_a_query_with_one_score_is_fine_and_changes_little():
    of, seen = world(40, 30), some(40, 30, 0.5)
    plain = fit(of, seen)
    seen[-1] = False
    seen[-1, 3] = True
    found = fit(of, seen)
    assert np.isfinite(found.factor).all()
    assert alike(products(found), products(plain)) > 0.9
    lone = np.zeros((40, 30), bool)
    lone[np.arange(40), np.arange(40) % 30] = True
    for values in (fit(of, lone).factor, fit(of, lone).mean, fit(of, lone).precision):
        assert np.isfinite(values).all()


@pytest.mark.parametrize("value", [0.0, 0.7, 250.0])
def test_constant_scores_leave_numbers(value):
    of = world(20, 15)
    same = World(np.full_like(of.exact, value), of.cheap, of.vectors, of.mean, of.loadings)
    found = fit(same, some(20, 15, 0.4))
    assert found.variance < 1e-4
    for values in (found.factor, found.mean, found.weights, found.precision):
        assert np.isfinite(values).all()


def test_rank_bounds_the_factors_and_they_are_sorted_by_strength():
    found = fit(world(40, 30), some(40, 30, 0.5), rank=4)
    strength = np.square(found.factor).sum(axis=0)
    assert found.factor.shape == (30, 4)
    assert (np.diff(strength) <= 1e-4 * strength[0]).all()


def test_progress_is_told_to_its_end():
    told: list[tuple[int, int]] = []
    fit(world(20, 15), some(20, 15, 0.4), progress=lambda *at: told.append(at))
    assert told[-1][0] == told[-1][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_one_query_is_too_few():
    of, seen = world(20, 15), np.zeros((20, 15), bool)
    seen[3] = True
    with pytest.raises(InputError, match=r"one query .* kriging\(anchors=false\)"):
        fit(of, seen)


def test_any_number_of_first_stages_and_vectors_of_any_length():
    of, seen = world(30, 25), some(30, 25, 0.4)
    query, item = np.nonzero(seen)
    texts = [f"query {row}" for row in range(30)]
    scores = SparseScores.of(texts, 25, Pairs(query, item), of.exact[query, item])
    cheap = of.cheap[query, item]
    none, once, twice, beside, longer, nowhere = (
        covariance_of(scores, columns, vectors, rank=12)
        for columns, vectors in (
            ([], of.vectors),
            ([cheap], of.vectors),
            ([cheap, cheap], of.vectors),
            ([cheap, np.full_like(cheap, 5)], of.vectors),
            ([cheap], (7 * of.vectors).astype(np.float16)),
            ([cheap], 0 * of.vectors),
        )
    )
    assert [len(found.weights) for found in (none, once, twice)] == [2, 3, 4]
    np.testing.assert_allclose(twice.weights[1:3], once.weights[1] / 2, rtol=0.01)
    assert twice.variance == pytest.approx(once.variance, rel=0.01)
    assert abs(beside.weights[2]) < 1e-9
    np.testing.assert_allclose(products(beside), products(once), atol=1e-3)
    np.testing.assert_allclose(products(longer), products(once), atol=0.05)
    assert correlation(nowhere.mean, of.mean) > 0.9
    for found in (none, twice, beside, nowhere):
        assert np.isfinite(found.precision).all()
        assert np.isfinite(found.factor).all()
