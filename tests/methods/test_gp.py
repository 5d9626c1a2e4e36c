"""The posterior that gp and kriging share, against the textbook; and the predictor by rounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from references.gaussian_process import universal
from sklearn.gaussian_process import kernels
from synthetic import first_scores, matrix, run

from crossknn.errors import InputError
from crossknn.evaluation.measures import recall
from crossknn.linalg import top_k
from crossknn.methods import DEFAULT, gp, parse_method
from crossknn.methods.posterior import (
    Directional,
    LowRankPlusResidual,
    Model,
    Whitened,
)
from crossknn.search.loop import simulate
from crossknn.spec import Spec
from crossknn_lab.rivals.gp import Linear, Matern

CONTENT = Directional(2.0, 0.3, 0.5)
KERNELS = (
    Linear(),
    Directional(2.0),
    Matern(0.7),
    CONTENT,
    LowRankPlusResidual(rank=2, share=0.7, amount=1.5, rest=CONTENT),
)
every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=str)


def unit(rng, *shape):
    vectors = rng.normal(size=shape)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@every_kernel
@settings(max_examples=20, deadline=None)
@given(
    b=st.integers(4, 12), seed=st.integers(0, 99), noise=st.floats(0.01, 2), likely=st.booleans()
)
def test_the_posterior_is_universal_kriging_by_the_textbook(kernel, b, seed, noise, likely):
    rng = np.random.default_rng(seed)
    points, scores, new = unit(rng, b, 5), rng.normal(size=b), unit(rng, 7, 5)
    basis = np.column_stack([np.ones(b), rng.normal(size=b)])
    new_basis = np.column_stack([np.ones(7), rng.normal(size=7)])
    model = Model(kernel=kernel, noise=noise, likely=likely)
    posterior = model.posterior(points, scores, basis)
    white = Whitened(kernel.variance(new)).extended(posterior, kernel(points, new))
    mean, std = posterior.at(white, new_basis)

    unit_of = kernel.unit(points)
    known = kernel(points, points) + noise * unit_of * np.eye(b)
    between, own = kernel(new, points), kernel.variance(new)
    expected, r, variance = universal(between, known, own, new_basis, basis, scores)
    np.testing.assert_allclose(mean, expected, atol=1e-6)
    amplitude = r @ np.linalg.solve(known, r) / (b - 2) if likely else (r**2).mean() / unit_of
    np.testing.assert_allclose(std**2, variance * amplitude, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(Matern(2.0), kernels.Matern(0.5, nu=2.5)), (Directional(2.0), kernels.RBF(0.5))],
)
def test_kernels_of_distances_are_scikit_learns(ours, theirs):
    points = unit(np.random.default_rng(0), 9, 4)  # length scale sqrt(1 / (2 * 2))
    np.testing.assert_allclose(ours(points, points), theirs(points), rtol=1e-6)


def test_vectors_that_are_no_numbers_are_said():
    with pytest.raises(InputError, match="covariance of 3 scored items is not positive definite"):
        Model(kernel=Linear(), noise=0.1).posterior(
            np.full((3, 2), np.nan), np.arange(3.0), np.ones((3, 1))
        )


FREE = "rounds=3, blend=0, normalize=none", "rounds=3, kernel=linear, mean=none, noise=0"
RIDGE = "rounds=5, ridge=0.3", "rounds=5, kernel=linear, mean=retriever, noise=0.3"


@pytest.mark.parametrize(("budget", "axn", "linear"), [(9, *FREE), (12, *FREE), (30, *RIDGE)])
def test_searching_with_a_linear_kernel_is_axn(budget, axn, linear):
    data = matrix(tests=10)
    expected = run(f"axn(retriever=dense, {axn})", data, budget).picks()
    found = run(f"gp(retriever=dense, {linear}, beta=0, query=false)", data, budget).picks()
    assert found.items.tolist() == expected.items.tolist()


@pytest.mark.parametrize("options", ["", ", query=true"])
def test_rounds_extend_what_is_kept_and_change_nothing(monkeypatch, options):
    """Three rounds of one state, each predicted: of all items, of a pool, and of another pool."""
    index, queries, scores = matrix().rows(0, 99)
    predictor = parse_method(f"gp(retriever=dense{options})").plan(index, 24, 0).predictor
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
    assert not any(each.kept for each in fresh.known.values())


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
