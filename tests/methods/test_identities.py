"""Identities between methods (method-notes: 2, 3, 5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import aligned_matrix, matrix, run

from crossknn.errors import InputError
from crossknn.index.base import Scale
from crossknn.methods import method
from crossknn.methods.axn import ridge_to
from crossknn.search.loop import Search


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 50), half=st.integers(2, 15))
def test_adacur_with_one_round_of_fixed_anchors_and_a_split_is_anncur(seed, half):
    data, budget = matrix(seed=seed), 2 * half
    anncur = run(method("anncur(anchors=0.5)"), data, budget).picks()
    adacur = run(method("adacur(retriever=fixed, rounds=1, split=0.5)"), data, budget).picks()
    assert anncur.items.tolist() == adacur.items.tolist()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 50), rounds=st.integers(1, 6))
def test_axn_on_anchor_vectors_that_queries_have_none_beside_is_adacur(seed, rounds):
    data = matrix(seed=seed, noise=0.5)
    center = Scale(alpha=data.scale.alpha)
    rows = data.scores[: data.n_anchors] - np.float32(center.alpha)
    fitted = data.with_vectors("cur", rows.T.copy(), scale=center)
    adacur = run(method(f"adacur(retriever=bm25, rounds={rounds})"), data, 24).picks()
    spec = f"axn(retriever=bm25, rounds={rounds}, blend=0, vectors=cur)"
    axn = run(method(spec), fitted, 24).picks()
    assert axn.items.tolist() == adacur.items.tolist()
    known = ~np.isnan(adacur.approx)
    np.testing.assert_allclose(axn.approx[known], adacur.approx[known], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spec", ["anncur(anchors=0.5)", "adacur(retriever=random, rounds=2)"])
@pytest.mark.parametrize("rank", [1, 3, 6])
def test_a_matrix_of_low_rank_is_recovered(spec, rank):
    rng = np.random.default_rng(rank)
    data = matrix(tests=8)
    low = (rng.normal(size=(28, rank)) @ rng.normal(size=(rank, 80))).astype(np.float32)
    # A centre of 0 keeps the rank; the scale of the dual encoder would add one.
    data = replace(data, scores=low - low[:20].mean(), item_vectors=None, query_vectors=None)
    budget = 4 * (rank + 1)
    best = run(method(spec), data, budget).best(2 * rank)
    truth = np.sort(data.scores[20:], axis=1)[:, ::-1][:, : 2 * rank]
    np.testing.assert_allclose(best.scores, truth, rtol=1e-4)


def collapse(rcond: float) -> dict[int, float]:
    """Mean squared error of ANNCUR's approximation with 30 anchor queries, by anchor items."""
    rng = np.random.default_rng(0)
    data = matrix(n=300, anchors=30, tests=20, d=40, noise=1.0)
    errors = {}
    for k_i in (10, 30, 120):
        index, queries, scores = data.rows(0, 20)
        plan = method(f"anncur(rcond={rcond})").plan(index, k_i, 0)
        items = np.tile(rng.permutation(300)[:k_i], (20, 1))
        from crossknn.types import Observed

        seen = Observed(items, np.take_along_axis(scores, items, 1), np.full(20, k_i))
        state = plan.predictor.update(plan.predictor.start(queries), seen)
        errors[k_i] = float(((plan.predictor.predict(state).mean - scores) ** 2).mean())
    return errors


def test_anncur_collapses_where_anchor_items_are_as_many_as_anchor_queries():
    reference = collapse(1e-15)
    assert reference[30] > 3 * reference[10]
    assert reference[30] > 3 * reference[120]
    assert collapse(0.1)[30] < 0.5 * reference[30]


@settings(max_examples=30, deadline=None)
@given(b=st.sampled_from([1, *range(3, 13)]), seed=st.integers(0, 99), ridge=st.floats(0.05, 5))
def test_ridge_is_universal_kriging_by_the_textbook(b, seed, ridge):
    # Not b = 2, where the textbook's normal equations are nearly singular.
    rng = np.random.default_rng(seed)
    vectors, prior, scores = rng.normal(size=(b, 5)), rng.normal(size=5), rng.normal(size=b)
    vector, offset = ridge_to(vectors, scores, prior, ridge)
    new = rng.normal(size=(7, 5))
    covariance = vectors @ vectors.T + ridge * np.eye(b)
    drift = np.column_stack([np.ones(b), vectors @ prior])
    inverse = np.linalg.inv(covariance)
    weights = np.linalg.pinv(drift.T @ inverse @ drift) @ drift.T @ inverse @ scores
    mean = np.column_stack([np.ones(7), new @ prior]) @ weights
    mean += new @ vectors.T @ inverse @ (scores - drift @ weights)
    np.testing.assert_allclose(new @ vector + offset, mean, rtol=1e-4, atol=1e-4)


@given(seed=st.integers(0, 50), shift=st.floats(-50, 50), factor=st.floats(0.1, 10))
@settings(max_examples=20, deadline=None)
def test_ridge_does_not_care_about_the_scale_of_the_scores(seed, shift, factor):
    rng = np.random.default_rng(seed)
    vectors, prior, scores = rng.normal(size=(8, 5)), rng.normal(size=5), rng.normal(size=8)
    vector, offset = ridge_to(vectors, scores, prior, 0.3)
    moved, moved_offset = ridge_to(vectors, factor * scores + shift, prior, 0.3)
    np.testing.assert_allclose(moved, factor * vector, atol=1e-7)
    assert moved_offset == pytest.approx(factor * offset + shift, abs=1e-6)


def test_methods_say_what_they_need():
    data = replace(matrix(), n_anchors=0, item_scores=None, item_vectors=None)
    for spec, words in {
        "adacur(retriever=bm25)": "adacur needs the scores of anchor queries",
        "fixeditem": "fixeditem needs item x item scores",
        "itemcur": "itemcur needs item x item scores",
        "axn(retriever=bm25)": "this index has no item vectors",
        "kriging(retriever=bm25)": "this index has no item vectors",
        "rerank(retriever=dense)": "no retriever 'dense'; it has bm25, fixed, random",
        "axn(retriever=random, normalize=anchors)": "no item vectors",
    }.items():
        with pytest.raises(InputError, match=words):
            run(method(spec), data, 10)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("rerank(retriever=cur)", "no query vectors beside its item vectors 'cur'"),
        ("axn(retriever=bm25, vectors=cur, blend=0.5)", "axn.* needs query vectors, and .* 'cur'"),
        ("axn(retriever=bm25, vectors=cur, ridge=0.3)", "axn.* needs query vectors, and .* 'cur'"),
        ("tour(retriever=bm25, vectors=cur)", "tour needs query vectors, and .* 'cur'"),
    ],
)
def test_what_needs_query_vectors_says_so_before_anything_is_scored(spec, words):
    index, queries, _ = aligned_matrix().rows(0, 2)
    with pytest.raises(InputError, match=words):
        Search(method(spec).plan(index, 10, 0), queries, index.n).ask()
