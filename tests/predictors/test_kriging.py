"""Kriging: what it is in the limit, what it must not care about, and what it must bear."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import matrix, run

from crossknn.errors import InputError, SpecError
from crossknn.index.stored import StoredMatrix
from crossknn.methods import method
from crossknn.predictors.gaussian_process import GaussianProcess
from crossknn.predictors.kernels import Content, Factored, Linear, Rbf
from crossknn.predictors.kriging import Kriging
from crossknn.predictors.posterior import FLOOR, Posterior, Trend
from crossknn.retrievers.specs import open_retriever
from crossknn.search.loop import Search
from crossknn.search.plan import Plan, equal_rounds
from crossknn.spec import parse
from crossknn.types import Observed

WITH, FUSED, WITHOUT = SPECS = (
    "kriging(retriever=dense)",
    "kriging(retriever=hybrid(bm25, dense))",
    "kriging(retriever=dense, anchors=false)",
)
every_spec = pytest.mark.parametrize("spec", SPECS)


def with_anchors(count: int, data: StoredMatrix | None = None) -> StoredMatrix:
    """A matrix, all test queries and the first `count` anchors of it."""
    data = data or matrix()
    kept = [*range(count), *range(data.n_anchors, len(data.scores))]
    return replace(
        data,
        scores=data.scores[kept],
        n_anchors=count,
        query_vectors=None if data.query_vectors is None else data.query_vectors[kept],
        firsts={name: values[kept] for name, values in data.firsts.items()},
        query_ids=tuple(data.query_ids[row] for row in kept),
    )


def known(scores, count):
    """Exact scores of the first `count` items of every query."""
    m = len(scores)
    return Observed(np.tile(np.arange(count), (m, 1)), scores[:, :count], np.full(m, count))


def planned(spec, data=None, budget=24):
    """The predictor of a spec on the test queries of a matrix, they, and their scores."""
    index, queries, scores = (data or matrix()).rows(0, 99)
    return method(spec).plan(index, budget, 0).predictor, queries, scores


def searched(data, predictor_of, budget, rounds, retriever="dense"):
    """What a predictor over the items' vectors and a retriever picks."""
    index, queries, scores = data.rows(0, data.n_tests)
    stage = open_retriever(index, parse(retriever), 0)
    plan = Plan(
        retriever=stage,
        predictor=predictor_of(index, stage),
        batches=equal_rounds(budget, rounds),
    )
    search = Search(plan, queries, index.n)
    while len(pairs := search.ask()):
        search.tell(pairs, scores[pairs.query, pairs.item])
    return search.picks()


# What its kernels are


def test_content_by_hand():
    x, y = np.array([[3.0, 0.0]]), np.array([[0.0, 2.0], [5.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    kernel = Content(2.0, 0.3, 0.5)
    across = 0.3 * np.exp(-4.0)
    opposite = 0.3 * np.exp(-8.0) - 0.5
    np.testing.assert_allclose(kernel(x, y), [[across, 0.8, opposite, across]])
    np.testing.assert_allclose(Content(2.0, 1, 0)(x, y), Rbf(2.0)(x, y))
    unit = y[:3] / np.linalg.norm(y[:3], axis=1, keepdims=True)
    np.testing.assert_allclose(Content(2.0, 0, 1)(unit, unit), Linear()(unit, unit), atol=1e-12)


def test_a_factored_kernel_adds_products_and_the_rest():
    rng = np.random.default_rng(0)
    factor, vectors = rng.normal(size=(20, 3)), rng.normal(size=(20, 5))
    points, rest = np.hstack([factor, vectors]), Content(2.0, 0.3, 0.5)
    kernel = Factored(rank=3, share=0.7, amount=1.5, rest=rest)
    expected = 0.7 * factor @ factor.T + 1.5 * rest(vectors, vectors)
    np.testing.assert_allclose(kernel(points, points), expected)
    np.testing.assert_allclose(kernel.variance(points), np.diag(expected))
    assert np.linalg.eigvalsh(expected).min() > -1e-9
    assert kernel.unit(points) == pytest.approx(1.5 * 0.8)


def test_the_linear_part_of_weighted_covariances_by_hand():
    rng = np.random.default_rng(0)
    points, others, weights = rng.normal(size=(6, 8)), rng.normal(size=(9, 8)), rng.normal(size=6)
    points[2, 3:], others[4, 3:] = 0, 0
    linear = Content(2.0, 0.0, 0.5)
    for kernel, whole in (
        (Content(2.0, 0.3, 0.5), linear),
        (Factored(3, 0.7, 1.5, Content(2.0, 0.3, 0.5)), Factored(3, 0.7, 1.5, linear)),
    ):
        several = np.stack([weights, -2 * weights])
        found = kernel.plane(np.stack([kernel.direction(w, points) for w in several]), others)
        np.testing.assert_allclose(found, several @ whole(points, others), atol=1e-12)


# What it is in the limit


@settings(max_examples=25, deadline=None)
@given(b=st.integers(1, 10), seed=st.integers(0, 99), noise=st.floats(0.01, 2))
def test_a_trend_with_a_prior_is_one_more_linear_kernel(b, seed, noise):
    """Rasmussen and Williams 2006, 2.7: weights ~ N(mean, 1 / precision) beside the kernel."""
    rng = np.random.default_rng(seed)
    points, scores, new = rng.normal(size=(b, 4)), rng.normal(size=b), rng.normal(size=(7, 4))
    drift, new_drift = rng.normal(size=(b, 3)), rng.normal(size=(7, 3))
    root, mean = rng.normal(size=(3, 5)), rng.normal(size=3)
    precision = root @ root.T
    kernel = Content(2.0, 0.3, 0.5)
    found, _ = Posterior.given(
        kernel,
        points,
        scores,
        drift,
        noise=noise,
        centre=False,
        prior=Trend(mean, precision),
    ).at(new, new_drift)

    spread = np.linalg.inv(precision)
    covariance = kernel(points, points) + 0.8 * noise * np.eye(b) + drift @ spread @ drift.T
    between = kernel(new, points) + new_drift @ spread @ drift.T
    expected = new_drift @ mean + between @ np.linalg.solve(covariance, scores - drift @ mean)
    np.testing.assert_allclose(found, expected, atol=1e-6 * (1 + np.linalg.norm(spread)))


def test_a_prior_that_says_nothing_is_none():
    rng = np.random.default_rng(0)
    points, scores, drift = rng.normal(size=(9, 4)), rng.normal(size=9), rng.normal(size=(9, 3))
    flat = Trend(rng.normal(size=3), np.zeros((3, 3)))
    free, told = (
        Posterior.given(Content(2, 0.3, 0.5), points, scores, drift, noise=0.1, prior=prior)
        for prior in (None, flat)
    )
    np.testing.assert_allclose(told.trend, free.trend, rtol=1e-9)


@pytest.mark.parametrize("budget", [9, 12])
@pytest.mark.parametrize("made", ["content", "factor"])
def test_a_linear_kernel_without_mean_and_noise_is_axn_without_blend(made, budget):
    """Minimum-norm least squares, whether the products are the vectors' or the factor's."""
    data = matrix(tests=10)

    def predictor(index, retriever):
        items, kernel = index.vectors("dense"), Content(1.0, 0.0, 1.0)
        if made == "factor":
            items = np.hstack([items, items])
            kernel = Factored(rank=12, share=1.0, amount=1e-6, rest=Content(1.0, 0.3, 0.5))
        return GaussianProcess(items, kernel, retriever, mean="none", noise=0, beta=0)

    axn = run(
        method("axn(retriever=dense, rounds=3, blend=0, normalize=none)"), data, budget
    ).picks()
    found = searched(data, predictor, budget, 3)
    assert found.items.tolist() == axn.items.tolist()


@pytest.mark.parametrize("rounds", [2, 4])
@pytest.mark.parametrize("seed", range(3))
def test_factors_of_uncentred_anchors_without_regression_and_noise_are_adacur(seed, rounds):
    """Their covariance is R' R: the posterior mean is c pinv(R[:, S]) R."""
    data = matrix(anchors=48, tests=8, noise=3.0, seed=seed)
    data = replace(data, scores=data.scores - np.float32(data.scale.alpha))  # ADACUR's centre
    assert np.linalg.cond(data.scores[:48, :20]) < 30

    def predictor(index, retriever):
        items = np.hstack([index.anchors.scores.T, index.vectors("dense")])
        kernel = Factored(rank=48, share=1.0, amount=1e-6, rest=Content(2.0, 0.3, 0.5))
        return GaussianProcess(items, kernel, retriever, mean="none", noise=0, beta=0)

    adacur = run(method(f"adacur(retriever=dense, rounds={rounds})"), data, 20).picks()
    found = searched(data, predictor, 20, rounds)
    assert found.items.tolist() == adacur.items.tolist()
    np.testing.assert_allclose(found.approx, adacur.approx, atol=2e-3)


# What it is made of


@pytest.mark.parametrize(("spec", "stages"), [(WITH, ["dense"]), (FUSED, ["bm25", "dense"])])
def test_the_mean_has_a_column_for_each_stage_and_the_items_mean_score(spec, stages):
    data = matrix()
    predictor, queries, _ = planned(spec)
    columns = predictor.start(queries).columns
    assert columns.shape == (2 + len(stages), 6, 80)
    assert (columns[0] == 1).all()
    cheap = {
        "bm25": data.firsts["bm25"][data.n_anchors :],
        "dense": queries.vectors["dense"] @ data.item_vectors.T,
    }
    for column, name in zip(columns[1:], stages, strict=False):
        np.testing.assert_allclose(column, cheap[name], rtol=1e-5, atol=1e-7)
    mean = np.broadcast_to(data.scores[: data.n_anchors].mean(axis=0), (6, 80))
    # Up to where their zero lies, which the first column stands for.
    np.testing.assert_allclose(np.diff(columns[-1]), np.diff(mean), atol=1e-5)


def test_without_anchors_the_mean_and_the_covariance_are_the_first_stages_and_the_vectors():
    predictor, queries, _ = planned(WITHOUT)
    assert isinstance(predictor, Kriging)
    assert predictor.covariance is None
    assert predictor.start(queries).columns.shape == (2, 6, 80)
    assert predictor.vectors(slice(None)).shape == (80, 12)
    assert predictor.kernel == Content(2.0, 0.3, 0.5)


def test_with_anchors_it_ranks_by_what_they_taught_as_soon_as_two_scores_differ():
    predictor, queries, scores = planned(WITH)
    cheap = predictor.retriever.scores(queries)
    start = predictor.start(queries)
    for observed in (known(scores, 1), known(np.ones_like(scores), 9)):
        prediction = predictor.predict(predictor.update(start, observed))
        np.testing.assert_array_equal(prediction.mean, cheap)
    assert len(predictor.prior.mean) == 3  # as many as these scores, and more
    for count in (2, 3):
        prediction = predictor.predict(predictor.update(start, known(scores, count)))
        assert (prediction.mean != cheap).any(axis=1).all()


def test_anchors_find_what_vectors_say_nothing_of():
    rng = np.random.default_rng(0)
    data = matrix(n=300, anchors=60, tests=20, seed=1)
    hidden = rng.normal(size=(80, 4)) @ rng.normal(size=(4, 300))
    data = replace(data, scores=(data.scores + 3 * hidden).astype(np.float32))
    truth = np.argsort(-data.scores[60:], axis=1)[:, :10]

    def recall(spec):
        found = run(method(spec), data, 40).best(10).items
        return np.mean([np.isin(f, t).mean() for f, t in zip(found, truth, strict=True)])

    alone = recall(WITHOUT)
    assert recall(WITH) > max(0.9, alone + 0.2)
    assert recall("kriging(retriever=dense, share=0)") < 0.9
    assert recall("kriging(retriever=dense, rank=2)") < recall(WITH)


# What is left unknown


def left(spec, count, data=None):
    """(m, n): variance of every item in units of the kernel's unit, once `count` are scored."""
    predictor, queries, scores = planned(spec, data)
    state = predictor.update(predictor.start(queries), known(scores, count))
    amplitude = np.array([row.amplitude * row.spread for row in state.rows])
    return np.square(predictor.predict(state).std, dtype=np.float64) / amplitude[:, None]


@every_spec
def test_nothing_is_left_unknown_at_scored_items_without_noise(spec):
    variance = left(spec[:-1] + ", noise=0, beta=1)", 12)
    assert variance[:, :12].max() < 10 * FLOOR
    assert np.median(variance[:, 12:]) > 0.1


@every_spec
@pytest.mark.parametrize("noise", [0, 0.25])
def test_more_scores_leave_less_unknown_the_trend_known(spec, noise):
    spec = f"{spec[:-1]}, noise={noise}, beta=1)"
    before = left(spec, 6)
    for count in (7, 12, 30, 60):
        after = left(spec, count)
        assert (after <= before + 20 * FLOOR).all()
        before = after
    assert before.max() < 0.9 * left(spec, 6).max()


# What it must not care about


def grid(seed: int) -> StoredMatrix:
    """A matrix whose scores, and the means of 16 anchors, single precision holds when shifted."""
    data = matrix(seed=seed, anchors=16, tests=4)
    return replace(data, scores=(np.round(256 * data.scores) / 256).astype(np.float32))


def assert_same(spec, data, scores, factor, shift):
    """The picks where `scores` are `factor` times those of `data` and `shift` (m,) above, and what
    was predicted of them from the third round on."""
    plain, moved = (run(method(spec), d, 24).picks() for d in (data, replace(data, scores=scores)))
    found = []
    for picks in (plain, moved):
        order = np.lexsort((picks.items, picks.rounds))
        found.append([np.take_along_axis(v, order, axis=1) for v in (picks.items, picks.approx)])
    (items, approx), (other_items, other_approx) = found
    assert items.tolist() == other_items.tolist()
    later = np.broadcast_to(np.sort(plain.rounds, axis=1) > 2, items.shape)
    expected = factor * approx + np.reshape(shift, (-1, 1))
    np.testing.assert_allclose(other_approx[later], expected[later], rtol=1e-4, atol=2e-3 * factor)


@every_spec
@settings(max_examples=8, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 9),
    shifts=st.lists(st.integers(-64, 64), min_size=4, max_size=4),
)
def test_a_shift_of_one_querys_scores_changes_no_pick(spec, seed, shifts):
    data = grid(seed)
    scores = data.scores.copy()
    scores[16:] += np.array(shifts, np.float32)[:, None]
    assert_same(spec, data, scores, 1.0, shifts)


@every_spec
@settings(max_examples=8, deadline=None, derandomize=True)
@given(seed=st.integers(0, 9), shift=st.integers(-64, 64), power=st.integers(-8, 8))
def test_a_shift_and_scale_of_all_scores_changes_no_pick(spec, seed, shift, power):
    data, factor = grid(seed), 2.0**power
    scores = (data.scores * np.float32(factor) + np.float32(factor * shift)).astype(np.float32)
    assert_same(spec, data, scores, factor, factor * shift)


@pytest.mark.parametrize(("factor", "shift"), [(1.0, 256), (2.0**18, 0), (2.0**-20, 0)])
@pytest.mark.parametrize("spec", [WITH, FUSED])
def test_nor_does_one_of_another_magnitude(spec, factor, shift):
    for seed in range(3):
        data = grid(seed)
        scores = (data.scores + np.float32(shift)) * np.float32(factor)
        assert_same(spec, data, scores, factor, factor * shift)


@every_spec
@pytest.mark.parametrize("scale", ["1000", "0.001"])
def test_the_length_of_vectors_does_not_matter(spec, scale):
    data = matrix()
    index = data.rows(0, 6)[0]
    longer = data.with_vectors(
        "long", np.float32(scale) * index.vectors("dense"), data.query_vectors
    )
    picks = [
        run(method(spec[:-1] + f", vectors={name})"), longer, 24).picks().items
        for name in ("dense", "long")
    ]
    assert picks[0].tolist() == picks[1].tolist()


# What it must bear


def changed(data: StoredMatrix, case: str) -> StoredMatrix:
    """The matrix, with what is degenerate in `case`."""
    scores, items, queries = data.scores.copy(), data.item_vectors.copy(), data.query_vectors.copy()
    a, half = data.n_anchors, len(items) // 2
    if case == "all vectors equal":
        items[:] = items[0]
    elif case == "all vectors zero":
        items[:] = 0
    elif case == "some vectors zero":
        items[::3] = 0
    elif case == "query vectors zero":
        queries[:] = 0
    elif case == "every item twice":
        items[half:], scores[:, half:] = items[:half], scores[:, :half]
    elif case == "equal vectors, other scores":
        items[half:] = items[:half]
    elif case == "constant scores":
        scores[a:] = 0.7
    elif case == "constant scores but one":
        scores[a:] = 0.7
        scores[a:, 5] = 1.3
    elif case == "constant anchors":
        scores[:a] = 0.7
    elif case == "anchors of 0":
        scores[:a] = 0
    elif case == "an anchor of constant scores":
        scores[3] = 0.7
    elif case == "each anchor constant":
        scores[:a] = np.arange(a)[:, None]
    elif case == "equal anchors":
        scores[:a] = scores[0]
    elif case == "the retriever is exact":
        scores = queries @ items.T
    return replace(data, scores=scores, item_vectors=items, query_vectors=queries)


CASES = (
    "all vectors equal",
    "all vectors zero",
    "some vectors zero",
    "query vectors zero",
    "every item twice",
    "equal vectors, other scores",
    "constant scores",
    "constant scores but one",
    "constant anchors",
    "anchors of 0",
    "an anchor of constant scores",
    "each anchor constant",
    "equal anchors",
    "the retriever is exact",
)


def finite(spec, data, budget=24):
    """A search that spends its budget, each item once, on predictions that are numbers."""
    search = run(method(spec), data, budget)
    picks = search.picks()
    assert search.n_scored.tolist() == [budget] * data.n_tests
    assert all(len(set(row)) == budget for row in picks.items.tolist())
    assert np.isfinite(picks.approx).all()
    return search


def test_a_case_is_what_it_says():
    plain = matrix()
    for case in CASES:
        data = changed(plain, case)
        arrays = ("scores", "item_vectors", "query_vectors")
        assert any((getattr(data, a) != getattr(plain, a)).any() for a in arrays), case


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("options", ["", ", noise=0", ", noise=0, beta=1", ", noise=0, smooth=0"])
@every_spec
def test_what_is_degenerate_is_borne(spec, options, case):
    finite(spec[:-1] + options + ")", changed(matrix(tests=3), case))


def test_equal_items_are_told_apart_by_nothing():
    predictor, queries, scores = planned(WITH, changed(matrix(), "every item twice"))
    mean = predictor.predict(predictor.update(predictor.start(queries), known(scores, 9))).mean
    np.testing.assert_allclose(mean[:, :40], mean[:, 40:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "spec",
    [
        "kriging(retriever=dense, rank=1000)",
        "kriging(retriever=dense, rank=1)",
        "kriging(retriever=hybrid(dense, dense))",
        "kriging(retriever=hybrid(bm25, bm25, dense))",
        "kriging(retriever=fixed)",
        "kriging(retriever=random)",
        "kriging(retriever=hybrid(fixed, random, bm25, dense))",
        "kriging(retriever=dense, share=0)",
        "kriging(retriever=dense, smooth=0)",
        "kriging(retriever=dense, linear=0)",
        "kriging(retriever=dense, noise=1000)",
        "kriging(retriever=dense, rounds=100)",
        "kriging(retriever=dense, rounds=1)",
        "kriging(retriever=dense, shortlist=1)",
    ],
)
def test_settings_at_their_ends_are_borne(spec):
    finite(spec, matrix(tests=3))


def test_more_factors_than_anchors_have_are_those_they_have():
    all_of, more = (
        run(method(f"kriging(retriever=dense, rank={rank})"), matrix(), 24).picks()
        for rank in (20, 1000)
    )
    assert more.items.tolist() == all_of.items.tolist()
    predictor, *_ = planned("kriging(retriever=dense, rank=1000)")
    assert predictor.covariance.factor.shape[1] <= 20


@every_spec
@pytest.mark.parametrize("budget", [1, 2, 3, 4, 5, 9])
def test_fewer_scores_than_columns_and_a_budget_below_the_rounds_are_borne(spec, budget):
    finite(spec, matrix(), budget)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("spec", [WITH, FUSED])
def test_a_few_anchors_are_enough(spec, count):
    """Too few for a prior of the weights, or just enough."""
    for budget in (3, 24):
        finite(spec, with_anchors(count), budget)


@settings(max_examples=15, deadline=None)
@given(n=st.integers(15, 20), anchors=st.integers(2, 8), seed=st.integers(0, 99))
def test_small_matrices_are_borne(n, anchors, seed):
    data = matrix(n=n, anchors=anchors, tests=2, seed=seed)
    finite(FUSED, data, n)


def test_a_single_anchor_says_nothing_and_can_be_left_out():
    words = "one anchor query says nothing about how items vary together: add more, or use "
    with pytest.raises(InputError, match=words + r"kriging\(anchors=false\)"):
        run(method(WITH), with_anchors(1), 10)
    finite(WITHOUT, with_anchors(1))


@pytest.mark.parametrize("spec", [WITH, FUSED])
def test_an_index_without_anchors_is_searched_as_if_they_were_left_out(spec):
    data = with_anchors(0)
    left_out = run(method(spec[:-1] + ", anchors=false)"), matrix(), 24).picks()
    assert finite(spec, data).picks().items.tolist() == left_out.items.tolist()


def test_what_it_reads_of_the_paid_scores_is_said():
    index, bare = (data.rows(0, 1)[0] for data in (matrix(), with_anchors(0)))
    assert method(WITH).required_artifacts(index) == ("anchors",)
    assert method(WITHOUT).required_artifacts(index) == ()
    assert method(WITH).required_artifacts(bare) == ()


def test_it_needs_vectors():
    data = replace(matrix(), item_vectors=None, query_vectors=None)
    with pytest.raises(InputError, match="this index has no item vectors 'auto'; it has none"):
        run(method("kriging(retriever=bm25)"), data, 10)
    with pytest.raises(InputError, match="this index has no item vectors 'nope'; it has dense"):
        run(method("kriging(vectors=nope)"), matrix(), 10)


def test_vectors_need_none_of_the_queries():
    data = matrix().with_vectors("cur", matrix().item_vectors)
    finite("kriging(retriever=bm25, vectors=cur)", data)


@pytest.mark.parametrize(
    "option", ["scale=0", "scale=-1", "share=-1", "noise=-0.1", "beta=-1", "smooth=0, linear=0"]
)
def test_options_out_of_range_are_said(option):
    words = r"kriging\(.*\): scale must be above 0; share, smooth, linear, noise and beta 0 or more"
    with pytest.raises(SpecError, match=words):
        run(method(f"kriging({option})"), matrix(), 10)


@pytest.mark.parametrize("option", ["rank", "rounds", "shortlist"])
def test_counts_of_nothing_are_said(option):
    with pytest.raises(SpecError, match=rf"kriging\({option}=0\): {option} must be 1 or more"):
        run(method(f"kriging({option}=0)"), matrix(), 10)


@pytest.mark.parametrize(
    "spec", ["kriging(retriever=dense, smooth=0", "kriging(retriever=dense, linear=0"]
)
@pytest.mark.parametrize("anchors", ["true", "false"])
def test_a_shortlist_is_half_the_first_stages_and_half_what_is_predicted_best(spec, anchors):
    data = matrix(n=300)
    predictor, queries, scores = planned(f"{spec}, anchors={anchors})", data)
    pool = predictor.retriever.top(queries, 41).items
    allowed = np.random.default_rng(0).random(300) < 0.9
    state = predictor.update(predictor.start(queries), known(scores, 20))
    found = predictor.shortlist(state, pool, allowed)
    assert found.shape == (6, 41)
    np.testing.assert_array_equal(found[:, :21], pool[:, :21])
    for row, items in enumerate(found):
        assert len(set(items)) == 41
        assert allowed[items[21:]].all()
        assert set(items[21:]) - set(pool[row])
    if "smooth=0" in spec:  # where the linear part is all there is
        mean = predictor.predict(state).mean
        mean[:, ~allowed] = -np.inf
        np.put_along_axis(mean, pool[:, :21], -np.inf, axis=1)
        np.testing.assert_array_equal(found[:, 21:], np.argsort(-mean, axis=1)[:, :20])


def test_the_shortlist_is_the_first_stages_while_scores_say_nothing():
    predictor, queries, scores = planned(WITH)
    pool = predictor.retriever.top(queries, 31).items
    state = predictor.update(predictor.start(queries), known(np.ones_like(scores), 9))
    np.testing.assert_array_equal(predictor.shortlist(state, pool), pool)


def test_a_search_keeps_to_the_shortlist_of_its_first_round():
    search = run(method("kriging(retriever=dense, rounds=4, shortlist=30)"), matrix(), 24)
    picks, predictor = search.picks(), search.plan.predictor
    size = search.plan.batches[0]
    retriever = Observed(picks.items[:, :size], picks.scores[:, :size], np.full(6, size))
    state = predictor.update(predictor.start(search.queries), retriever)
    pool = search.plan.retriever.top(search.queries, 30).items
    for row, allowed in zip(picks.items, predictor.shortlist(state, pool), strict=True):
        assert set(row) <= set(allowed)
    assert (np.sort(predictor.shortlist(state, pool)) != np.sort(pool)).any(axis=1).all()
