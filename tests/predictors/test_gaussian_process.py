"""The Gaussian process against the textbook, and what it must not care about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import matrix, run

from crossknn.errors import InputError, SpecError
from crossknn.methods import method
from crossknn.predictors.gaussian_process import GaussianProcess
from crossknn.predictors.kernels import Linear, Matern, Rbf, distances
from crossknn.predictors.posterior import FLOOR, Posterior
from crossknn.retrievers.dense import DenseRetriever
from crossknn.search.predictor import Prediction, Predictor
from crossknn.types import NO_ITEM, Observed

KERNELS = (Linear(), Rbf(2.0), Matern(0.7))
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: type(k).__name__)


def unit(rng, *shape):
    vectors = rng.normal(size=shape)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_kernels_by_hand():
    x, y = np.array([[3.0, 0.0]]), np.array([[0.0, 2.0], [5.0, 0.0]])
    assert Linear()(x, y).tolist() == [[0.0, 15.0]]
    np.testing.assert_allclose(Rbf(1.5)(x, y), [[np.exp(-3.0), 1.0]])
    far = np.sqrt(5 * 2 * 1.5 * 2)
    np.testing.assert_allclose(Matern(1.5)(x, y), [[(1 + far + far**2 / 3) * np.exp(-far), 1.0]])
    assert Rbf(1.0)(np.zeros((1, 2)), y).tolist() == [[np.exp(-2.0)] * 2]


def test_distances_are_those_of_directions():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 3)), rng.normal(size=(4, 3))
    apart = unit(np.random.default_rng(0), 6, 3)[:, None] - y / np.linalg.norm(y, axis=1)[:, None]
    np.testing.assert_allclose(distances(x, y), np.square(apart).sum(axis=2), atol=1e-12)
    np.testing.assert_allclose(distances(x, -7 * x).diagonal(), 4)


@every_kernel
def test_a_kernel_is_positive_semidefinite_and_knows_its_diagonal(kernel):
    points = np.random.default_rng(0).normal(size=(30, 4))
    covariance = kernel(points, points)
    assert np.linalg.eigvalsh(covariance).min() > -1e-9
    np.testing.assert_allclose(kernel.variance(points), np.diag(covariance))


@every_kernel
@settings(max_examples=25, deadline=None)
@given(b=st.integers(4, 12), seed=st.integers(0, 99), noise=st.floats(0.01, 2))
def test_the_posterior_is_universal_kriging_by_the_textbook(kernel, b, seed, noise):
    rng = np.random.default_rng(seed)
    points, scores, new = unit(rng, b, 5), rng.normal(size=b), unit(rng, 7, 5)
    drift = np.column_stack([np.ones(b), rng.normal(size=b)])
    new_drift = np.column_stack([np.ones(7), rng.normal(size=7)])
    mean, std = Posterior.given(kernel, points, scores, drift, noise=noise).at(new, new_drift)

    inverse = np.linalg.inv(kernel(points, points) + noise * np.eye(b))
    trend = np.linalg.solve(drift.T @ inverse @ drift, drift.T @ inverse @ scores)
    residual, between = scores - drift @ trend, kernel(new, points)
    np.testing.assert_allclose(mean, new_drift @ trend + between @ inverse @ residual, atol=1e-7)
    left = 1 - np.einsum("cb,bd,cd->c", between, inverse, between)
    np.testing.assert_allclose(std**2, left * (residual**2).mean(), atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(b=st.integers(1, 8), seed=st.integers(0, 99))
def test_a_linear_kernel_without_mean_and_noise_is_minimum_norm_least_squares(b, seed):
    rng = np.random.default_rng(seed)
    points, scores, new = rng.normal(size=(b, 8)), rng.normal(size=b), rng.normal(size=(5, 8))
    fitted, *_ = np.linalg.lstsq(points, scores)
    found = Posterior.given(Linear(), points, scores, np.empty((b, 0)), noise=0, centre=False)
    mean, _ = found.at(new, np.empty((5, 0)))
    # What ridge regression with the floor under the noise differs by, at most.
    products = points @ points.T
    ridge = FLOOR * np.diag(products).mean() / np.linalg.eigvalsh(products)[0]
    bound = ridge * np.linalg.norm(fitted) * np.linalg.norm(new, axis=1)
    assert (np.abs(mean - new @ fitted) <= bound + 1e-9).all()


@pytest.mark.parametrize("budget", [9, 12])
def test_searching_so_is_axn_without_blend(budget):
    data = matrix(tests=10)
    axn = run(
        method("axn(retriever=dense, rounds=3, blend=0, normalize=none)"), data, budget
    ).picks()
    spec = "gp(retriever=dense, rounds=3, kernel=linear, mean=none, noise=0, beta=0)"
    assert run(method(spec), data, budget).picks().items.tolist() == axn.items.tolist()


def test_with_noise_and_a_first_stage_mean_it_is_axn_with_ridge():
    data = matrix(tests=10)
    axn = run(method("axn(retriever=dense, rounds=5, ridge=0.3)"), data, 30).picks()
    spec = "gp(retriever=dense, rounds=5, kernel=linear, mean=first, noise=0.3, beta=0)"
    found = run(method(spec), data, 30).picks()
    assert found.items.tolist() == axn.items.tolist()
    np.testing.assert_allclose(found.approx, axn.approx, rtol=1e-3, atol=1e-3)


@every_kernel
def test_nothing_is_left_unknown_at_scored_items_without_noise(kernel):
    rng = np.random.default_rng(3)
    points, scores = unit(rng, 5, 8), rng.normal(size=5)
    posterior = Posterior.given(kernel, points, scores, np.empty((5, 0)), noise=0)
    mean, std = posterior.at(points, np.empty((5, 0)))
    np.testing.assert_allclose(mean, scores, atol=1e-4)
    assert std.max() < 2e-3 < posterior.at(unit(rng, 5, 8), np.empty((5, 0)))[1].min()


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 99),
    b=st.integers(1, 9),
    shift=st.floats(-50, 50),
    factor=st.floats(0.1, 10),
)
def test_the_scale_of_the_scores_does_not_matter(seed, b, shift, factor):
    rng = np.random.default_rng(seed)
    points, scores, new = unit(rng, b, 5), rng.normal(size=b), unit(rng, 6, 5)
    drift, new_drift = np.ones((b, 2)), np.ones((6, 2))
    drift[:, 1], new_drift[:, 1] = rng.normal(size=b), rng.normal(size=6)
    mean, std = Posterior.given(Rbf(2), points, scores, drift, noise=0.1).at(new, new_drift)
    moved = Posterior.given(Rbf(2), points, factor * scores + shift, drift, noise=0.1)
    new_mean, new_std = moved.at(new, new_drift)
    np.testing.assert_allclose(new_mean, factor * mean + shift, atol=1e-6)
    np.testing.assert_allclose(new_std, factor * std, atol=1e-6)


@every_kernel
def test_equal_vectors_with_different_scores_stay_positive_definite(kernel):
    points = np.ones((4, 3), np.float32)
    scores = np.array([1.0, 2.0, 3.0, 2.0])
    mean, std = Posterior.given(kernel, points, scores, np.ones((4, 1)), noise=0).at(
        points, np.ones((4, 1))
    )
    np.testing.assert_allclose(mean, 2, atol=0.05)
    assert np.isfinite(std).all()


def test_vectors_that_are_no_numbers_are_said():
    points = np.full((3, 2), np.nan)
    with pytest.raises(InputError, match="covariance of 3 scored items is not positive definite"):
        Posterior.given(Linear(), points, np.arange(3.0), np.ones((3, 1)), noise=0.1)


def process(data, *, dtype=np.float32, **options):
    """A predictor over the test queries of a matrix, the queries, and what it starts from."""
    index, queries, scores = data.rows(0, data.n_tests)
    retriever = DenseRetriever(index.vectors("dense"), lambda q: index.query_vectors(q, "dense"))
    settings = {"mean": "constant", "noise": 0.05, "beta": 1.0, **options}
    made = GaussianProcess(index.vectors("dense").astype(dtype), Rbf(2.0), retriever, **settings)
    return made, queries, scores


def known(scores, count):
    """Exact scores of the first `count` items of every query."""
    m = len(scores)
    return Observed(np.tile(np.arange(count), (m, 1)), scores[:, :count], np.full(m, count))


@pytest.mark.parametrize("mean", ["none", "average", "constant", "first"])
def test_some_items_are_predicted_as_among_all(mean):
    predictor, queries, scores = process(matrix(), mean=mean)
    state = predictor.update(predictor.start(queries), known(scores, 9))
    items = np.random.default_rng(0).integers(0, 80, size=(6, 11))
    every, some = predictor.predict(state), predictor.predict(state, items)
    for all_of, part in zip(every, some, strict=True):
        np.testing.assert_allclose(part, np.take_along_axis(all_of, items, 1), rtol=1e-4)


@pytest.mark.parametrize("own", [False, True])
def test_rounds_extend_what_is_kept_and_change_nothing(monkeypatch, own):
    """Three rounds of one state, each predicted: of all items, of a pool, and of another pool."""
    vectors = (lambda queries: queries.vectors["dense"]) if own else None
    predictor, queries, scores = process(matrix(), own=vectors)
    rng = np.random.default_rng(1)
    pools = [np.sort(rng.permuted(np.tile(np.arange(80), (6, 1)), axis=1)[:, :30]) for _ in "ab"]
    state = predictor.start(queries)
    for count in (5, 9, 14):
        state = predictor.update(state, known(scores, count))
        fresh = predictor.update(predictor.start(queries), known(scores, count))
        for items in (None, pools[0], pools[0], pools[1]):
            found = predictor.predict(state, items)
            with monkeypatch.context() as nothing:
                nothing.setattr("crossknn.predictors.gaussian_process.KEPT", 0)
                expected = predictor.predict(fresh, items)
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)
    assert len(state.kept[0].known.blocks) == 1  # another pool begins anew
    assert not fresh.kept


def test_a_round_computes_the_covariances_of_its_own_items_only(monkeypatch):
    predictor, queries, scores = process(matrix())
    asked = []
    real = Rbf.__call__
    monkeypatch.setattr(Rbf, "__call__", lambda k, x, y: asked.append(len(x)) or real(k, x, y))
    state = predictor.start(queries)
    for count in (5, 9, 14):
        state = predictor.update(state, known(scores, count))
        asked.clear()
        predictor.predict(state)
        assert asked == [6 * {5: 5, 9: 4, 14: 5}[count]]  # of all queries in one pass


def test_scores_of_other_items_than_before_are_no_extension():
    predictor, queries, scores = process(matrix())
    state = predictor.update(predictor.start(queries), known(scores, 5))
    predictor.predict(state)
    items = np.tile(np.arange(20, 32), (6, 1))
    observed = Observed(items, np.take_along_axis(scores, items, 1), np.full(6, 12))
    found = predictor.predict(predictor.update(state, observed))
    expected = predictor.predict(predictor.update(predictor.start(queries), observed))
    np.testing.assert_allclose(found.mean, expected.mean, rtol=1e-5)
    np.testing.assert_allclose(found.std, expected.std, rtol=1e-5)


def test_vectors_in_half_precision_predict_the_same():
    single, half = (
        predictor.predict(predictor.update(predictor.start(queries), known(scores, 9)))
        for predictor, queries, scores in (process(matrix(), dtype=d) for d in ("f4", "f2"))
    )
    np.testing.assert_allclose(half.mean, single.mean, atol=0.05)


@pytest.mark.parametrize(("mean", "count"), [("constant", 1), ("first", 2)])
def test_the_first_stage_ranks_while_scores_say_too_little(mean, count):
    predictor, queries, scores = process(matrix(), mean=mean)
    start = predictor.start(queries)
    for observed in (known(scores, count), known(np.ones_like(scores), 9)):
        prediction = predictor.predict(predictor.update(start, observed))
        np.testing.assert_array_equal(prediction.mean, predictor.retriever.scores(queries))
    more = predictor.predict(predictor.update(start, known(scores, count + 1)))
    assert (more.mean != predictor.retriever.scores(queries)).any()


def test_the_query_counts_as_an_item_with_the_best_score():
    data = matrix()
    plain, queries, scores = process(data)
    with_query, *_ = process(data, own=lambda queries: queries.vectors["dense"])
    observed = known(scores, 9)
    state = with_query.update(with_query.start(queries), observed)
    assert [len(row.points) for row in state.rows] == [10] * 6
    own = queries.vectors["dense"]
    for q, row in enumerate(state.rows):
        expected = Posterior.given(
            Rbf(2.0),
            np.vstack([with_query.items[:9], own[q]]),
            np.append(scores[q, :9], scores[q, :9].max()).astype(np.float64),
            np.ones((10, 1)),
            noise=0.05,
        )
        at_query = row.at(own[[q]], np.ones((1, 1)))[0]
        np.testing.assert_allclose(at_query, expected.at(own[[q]], np.ones((1, 1)))[0], rtol=1e-6)
    before = plain.update(plain.start(queries), observed).rows
    for vector, old, new in zip(own, before, state.rows, strict=True):
        at_query = [row.at(vector[None], np.ones((1, 1))) for row in (old, new)]
        assert at_query[1][0] > at_query[0][0]
        assert at_query[1][1] < 0.5 * at_query[0][1]


class Known(Predictor[None]):
    """Predicts the same whatever is observed."""

    def __init__(self, mean, std):
        self.mean, self.std = np.array([mean], np.float32), np.array([std], np.float32)

    def start(self, queries):
        return None

    def update(self, state, observed):
        return None

    def predict(self, state, items=None):
        mean, std = self.mean.copy(), self.std.copy()
        return (
            Prediction(mean, std)
            if items is None
            else Prediction(mean[:, items[0]], std[:, items[0]])
        )


class Optimist(Known):
    def acquisition(self, prediction):
        return prediction.mean + 2 * prediction.std


def test_top_ranks_by_the_acquisition_and_tells_the_means():
    arguments = ([5.0, 4.0, 3.0, 2.0], [0.0, 1.0, 3.0, 0.0])
    exclude = np.array([[0, NO_ITEM]])
    plain = Known(*arguments).top(None, 2, exclude)
    assert (plain.items.tolist(), plain.scores.tolist()) == ([[1, 2]], [[4.0, 3.0]])
    hopeful = Optimist(*arguments).top(None, 2, exclude)
    assert (hopeful.items.tolist(), hopeful.scores.tolist()) == ([[2, 1]], [[3.0, 4.0]])
    pool = np.array([[3, 2, 0, NO_ITEM]])
    among = Optimist(*arguments).top(None, 9, exclude, pool=pool)
    assert among.items[among.items != NO_ITEM].tolist() == [2, 3]
    assert among.scores[among.items != NO_ITEM].tolist() == [3.0, 2.0]
    only = Optimist(*arguments).top(None, 9, exclude, np.array([True, True, False, False]))
    assert only.items[only.items != NO_ITEM].tolist() == [1]
    assert (only.scores[only.items == NO_ITEM] == -np.inf).all()


def test_beta_prefers_what_is_unknown():
    data = matrix(tests=20)

    def spread(beta):
        picks = run(method(f"gp(retriever=dense, rounds=4, beta={beta})"), data, 24).picks().items
        return np.mean([Rbf(2.0)(v, v).mean() for v in data.item_vectors[picks]])

    assert spread(8) < spread(1) < spread(0)


def test_a_mean_of_a_fused_first_stage_has_a_column_for_each_stage():
    data = matrix()
    index, queries, _ = data.rows(0, data.n_tests)
    predictor = method("gp(retriever=hybrid(bm25, dense), mean=first)").plan(index, 20, 0).predictor
    columns = predictor.start(queries).columns
    assert columns.shape == (3, 6, 80)
    assert (columns[0] == 1).all()
    np.testing.assert_array_equal(columns[1], data.firsts["bm25"][data.n_anchors :])
    np.testing.assert_allclose(
        columns[2], queries.vectors["dense"] @ data.item_vectors.T, rtol=1e-5
    )


@pytest.mark.parametrize("option", ["scale=0", "scale=-1", "noise=-0.1", "beta=-1"])
def test_options_out_of_range_are_said(option):
    with pytest.raises(SpecError, match="scale must be above 0, noise and beta 0 or more"):
        run(method(f"gp({option})"), matrix(), 10)


def test_query_vectors_are_needed_only_for_the_query():
    data = matrix().with_vectors("cur", matrix().item_vectors)
    run(method("gp(retriever=bm25, vectors=cur, mean=first)"), data, 10)
    with pytest.raises(InputError, match=r"gp.* needs query vectors, and .* 'cur'"):
        run(method("gp(retriever=bm25, vectors=cur, query=true)"), data, 10)


def test_it_needs_vectors():
    data = replace(matrix(), item_vectors=None, query_vectors=None)
    with pytest.raises(InputError, match="no item vectors"):
        run(method("gp(retriever=bm25)"), data, 10)
