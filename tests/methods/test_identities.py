"""Identities between methods (method-notes: 2, 3, 5)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import aligned_matrix, matrix, run

from crossknn.errors import InputError
from crossknn.methods import parse_method
from crossknn.search.loop import Search
from crossknn.types import Scale


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 50), half=st.integers(2, 15))
def test_adacur_with_one_round_of_fixed_anchors_and_a_split_is_anncur(seed, half):
    data, budget = matrix(seed=seed), 2 * half
    anncur = run("anncur(anchor_share=0.5)", data, budget).picks()
    adacur = run("adacur(retriever=fixed, rounds=1, anchor_share=0.5)", data, budget).picks()
    assert anncur.items.tolist() == adacur.items.tolist()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 50), rounds=st.integers(1, 6))
def test_axn_on_anchor_vectors_that_queries_have_none_beside_is_adacur(seed, rounds):
    data = matrix(seed=seed, noise=0.5)
    center = Scale(alpha=data.anchors.center)
    rows = data.scores[: data.n_anchors] - np.float32(center.alpha)
    fitted = data.with_vectors("cur", rows.T.copy(), scale=center)
    adacur = run(f"adacur(retriever=bm25, rounds={rounds}, rcond=1e-6)", data, 24).picks()
    spec = f"axn(retriever=bm25, rounds={rounds}, blend=0, vectors=cur)"
    axn = run(spec, fitted, 24).picks()
    assert axn.items.tolist() == adacur.items.tolist()
    known = ~np.isnan(adacur.approx)
    np.testing.assert_allclose(axn.approx[known], adacur.approx[known], rtol=1e-3, atol=1e-3)


def test_a_bare_name_means_the_best_settings_that_the_vectors_allow():
    bare, spelled, without = "axn", "axn(ridge=0.3)", "axn(blend=0)"
    data = matrix(tests=5)

    def picks(spec, index=data):
        return run(spec, index, 20).picks().items.tolist()

    assert picks(bare) == picks(spelled) != picks(without)
    unknown = data.with_vectors("cur", data.vectors["dense"].copy())  # of which queries have none
    bare, without = (parse_method(spec) for spec in (bare, without))
    bare, without = (replace(method, vectors="cur") for method in (bare, without))
    assert picks(bare, unknown) == picks(without, unknown)


@pytest.mark.parametrize("spec", ["anncur(anchor_share=0.5)", "adacur(retriever=random, rounds=2)"])
@pytest.mark.parametrize("rank", [1, 3, 6])
def test_a_matrix_of_low_rank_is_recovered(spec, rank):
    rng = np.random.default_rng(rank)
    data = matrix(tests=8)
    low = (rng.normal(size=(28, rank)) @ rng.normal(size=(rank, 80))).astype(np.float32)
    # A centre of 0 keeps the rank; the scale of the dual encoder would add one.
    data = replace(data, scores=low - low[:20].mean(), dense_items=None, dense_queries=None)
    budget = 4 * (rank + 1)
    best = run(spec, data, budget).best(2 * rank)
    truth = np.sort(data.scores[20:], axis=1)[:, ::-1][:, : 2 * rank]
    np.testing.assert_allclose(best.scores, truth, rtol=1e-4)


MISSING = (
    ("adacur(retriever=bm25)", "adacur needs exact scores of anchor queries"),
    ("axn(retriever=bm25)", "this index has no item vectors"),
    ("rerank(retriever=dense)", "no retriever 'dense'"),
)
"""Of a matrix with nothing but test queries' scores."""


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        *MISSING,
        ("rerank(retriever=cur)", "no query vectors beside its item vectors 'cur'"),
        ("axn(retriever=bm25, vectors=cur, blend=0.5)", "axn.* needs query vectors, but .* 'cur'"),
        ("axn(retriever=bm25, vectors=cur, ridge=0.3)", "axn.* needs query vectors, but .* 'cur'"),
        ("tour(retriever=bm25, vectors=cur)", "tour needs query vectors, but .* 'cur'"),
        ("axn(ridge=0)", "ridge must be above 0, and replaces blend"),
        ("axn(ridge=0.3, blend=0.5)", "ridge must be above 0, and replaces blend"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_scored(spec, words):
    data = replace(matrix(), n_anchors=0, artifacts={}, dense_items=None)
    index, queries, _ = (data if (spec, words) in MISSING else aligned_matrix()).rows(0, 2)
    with pytest.raises(InputError, match=words):
        Search(parse_method(spec).plan(index, 10, 0), queries, index.n).ask()
