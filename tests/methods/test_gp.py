"""Kriging's posterior against the textbook, and its predictor by rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references.kriging import universal
from synthetic import first_scores, matrix, run

from crossknn.errors import InputError
from crossknn.evaluation.measures import recall
from crossknn.linalg import top_k
from crossknn.methods import DEFAULT, gp, parse_method
from crossknn.methods.base import equal_rounds
from crossknn.methods.posterior import Kernel, Model, Trend, Whitened
from crossknn.search.loop import simulate
from crossknn.spec import Spec

VAGUE = Trend(np.ones(2, bool), np.zeros(2), np.zeros((2, 2)))
"""Nothing is known of an intercept and a slope."""


@pytest.mark.parametrize("kernel", [Kernel(), Kernel(rank=2, amount=1.5)], ids=str)
@settings(max_examples=20, deadline=None)
@given(b=st.integers(4, 12), seed=st.integers(0, 99), fitted=st.booleans())
def test_the_posterior_is_universal_kriging_by_the_textbook(kernel, b, seed, fitted):
    rng = np.random.default_rng(seed)
    points, scores, new = rng.normal(size=(b, 5)), rng.normal(size=b), rng.normal(size=(7, 5))
    basis = np.column_stack([np.ones(b), rng.normal(size=b)])
    new_basis = np.column_stack([np.ones(7), rng.normal(size=7)])
    posterior = Model(kernel, [VAGUE], fitted).posterior(points, scores, basis)
    white = Whitened.of(kernel.variance(new)).extended(posterior, kernel(points, new))
    mean, std = posterior.at(white, new_basis)

    known = kernel(points, points) + kernel.noise * np.eye(b)
    between, own = kernel(new, points), kernel.variance(new)
    expected, r, variance = universal(between, known, own, new_basis, basis, scores)
    np.testing.assert_allclose(mean, expected, atol=1e-6)
    square = r @ np.linalg.solve(known, r)
    amplitude = (10 + square) / (10 + b) if fitted else square / (b - 2)
    np.testing.assert_allclose(std**2, variance * amplitude, atol=1e-8, rtol=1e-6)


def test_trends_are_averaged_by_their_weights_which_averages_their_predictions():
    rng = np.random.default_rng(0)
    points, scores, basis = rng.normal(size=(9, 4)), rng.normal(size=9), rng.normal(size=(9, 4))
    others, other_basis, basis[:, 0] = rng.normal(size=(5, 4)), rng.normal(size=(5, 4)), 1
    kernel, trends = Kernel(), []
    for columns in ([1, 0, 0, 0], [1, 1, 0, 1], [1, 1, 1, 1]):
        root = rng.normal(size=(4, 4)) * np.array(columns) * [0, 1, 1, 1]
        trends.append(Trend(np.array(columns, bool), rng.normal(size=4) * columns, root.T @ root))

    def of(*trends):
        found = Model(kernel, trends).posterior(points, scores, basis)
        rows = Whitened.of(kernel.variance(others)).extended(found, kernel(points, others))
        return found.weights, *found.at(rows, other_basis)

    weights, mean, _ = of(*trends)
    apart = [of(trend) for trend in trends]
    np.testing.assert_allclose(weights, np.mean([each[0] for each in apart], axis=0))
    np.testing.assert_allclose(mean, np.mean([each[1] for each in apart], axis=0))
    assert not np.allclose(mean, apart[0][1])
    np.testing.assert_allclose(of(*trends, *trends)[1], mean)


def test_vectors_that_are_no_numbers_are_said():
    with pytest.raises(InputError, match="covariance of 3 scored items is not positive definite"):
        Model(Kernel(), [VAGUE]).posterior(np.full((3, 2), np.nan), np.arange(3.0), np.ones((3, 2)))


def test_searching_with_a_linear_covariance_is_axn_with_a_ridge(monkeypatch):
    """Universal kriging with 0.5 cosine, noise of a quarter of that, and a trend in the query's."""
    monkeypatch.setattr("crossknn.methods.posterior.SMOOTH", 0.0)
    data = matrix(tests=10)
    expected = run("axn(retriever=dense, rounds=5, ridge=0.25)", data, 30).picks()
    index, queries, scores = data.rows(0, 10)
    plan = parse_method("kriging(retriever=dense, mean=dense, use_anchors=false)").plan(
        index, 30, 0
    )
    predictor = replace(plan.predictor, own=None, beta=0.0, model=Model(Kernel(), [VAGUE]))
    plan = replace(plan, predictor=predictor, batches=equal_rounds(30, 5))
    assert simulate(plan, queries, scores).picks().items.tolist() == expected.items.tolist()


@pytest.mark.parametrize("anchors", ["true", "false"])
def test_rounds_extend_what_is_kept_and_change_nothing(monkeypatch, anchors):
    """Three rounds of one state, each predicted: of all items, of a pool, and of another pool."""
    index, queries, scores = matrix().rows(0, 99)
    spec = f"kriging(retriever=dense, use_anchors={anchors})"
    predictor = parse_method(spec).plan(index, 24, 0).predictor
    rng = np.random.default_rng(1)
    pools = [np.sort(rng.permuted(np.tile(np.arange(80), (6, 1)), axis=1)[:, :30]) for _ in "ab"]
    state = predictor.start(queries)
    for count in (5, 9, 14):
        state = predictor.update(state, first_scores(scores, count))
        fresh = predictor.update(predictor.start(queries), first_scores(scores, count))
        for items in (None, pools[0], pools[0], pools[1]):
            found = predictor.predict(state, items)
            with monkeypatch.context() as nothing:
                nothing.setattr(gp, "KEPT", 0)
                expected = predictor.predict(fresh, items)
            for mine, theirs in zip(found, expected, strict=True):
                np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)
    assert not any(each.kept for each in fresh.of_query.values())


def test_the_default_is_no_worse_than_reranking_where_vectors_say_nothing():
    rng, known = np.random.default_rng(9), matrix(n=400, anchors=0, tests=40)
    known = replace(known, dense_items=rng.normal(size=(400, 12)).astype(np.float32))
    index, queries, scores = known.rows(0, 40)
    truth, found = top_k(scores, 10).items, {}
    for spec in ("rerank(retriever=bm25)", "axn(retriever=bm25, ridge=0.3, rounds=10)", DEFAULT):
        method = parse_method(spec)
        if spec == DEFAULT:
            method = replace(method, retriever=Spec("bm25"))
        best = simulate(method.plan(index, 40, 0), queries, scores).best(10).items
        found[spec] = recall(best, truth).mean()
    reranked, by_vectors, default = found.values()
    assert default >= reranked - 0.05
    assert by_vectors < reranked - 0.1
