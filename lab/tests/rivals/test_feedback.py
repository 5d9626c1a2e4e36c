"""Rivals that move the query's vector or ask reformulations of it; and what rivals refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rival_references.reformulations import bounded
from synthetic import aligned_matrix, matrix, run

from crossknn.errors import InputError
from crossknn_lab.rivals.reformir import weights_of


@pytest.mark.parametrize(
    ("spec", "other"),
    [
        ("feedback(retriever=dense, c=0)", "rerank(retriever=dense)"),
        ("refit(retriever=dense, lr=1e-9)", "rerank(retriever=dense)"),
        (
            "refit(retriever=dense, retriever_share=0.5, rounds=1, steps=1, lr=0.7, normalize=none)",
            "tour(retriever=dense, rounds=2, loss=kl, lr=0.7)",
        ),
    ],
)
def test_feedback_in_the_limit(spec, other):
    items, expected = (run(s, matrix(), 20).picks().items for s in (spec, other))
    assert items.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("fixeditem", "fixeditem needs item x item scores"),
        ("itemcur", "itemcur needs item x item scores"),
        ("feedback(retriever=bm25, vectors=cur)", "feedback.* needs query vectors, but .* 'cur'"),
        ("refit(retriever=bm25, vectors=cur)", "refit.* needs query vectors, but .* 'cur'"),
        ("feedback(b=-1)", "b must be 0 or more"),
        ("refit(lr=0)", "lr must be above 0"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_scored(spec, words):
    with pytest.raises(InputError, match=words):
        run(spec, replace(aligned_matrix(), artifacts={}), 10)


@settings(max_examples=60, deadline=None)
@given(b=st.integers(1, 30), lists=st.integers(1, 5), seed=st.integers(0, 999))
def test_weights_are_the_bounded_least_squares(b, lists, seed):
    rng = np.random.default_rng(seed)
    columns = np.where(rng.random((b, lists)) < 0.4, 0, rng.random((b, lists)))
    columns[:, -1] = columns[:, 0]  # lists that agree share their weight
    targets = rng.random(b)
    weights = weights_of(columns, targets)
    np.testing.assert_allclose(weights, bounded(columns, targets), atol=1e-6)
    assert weights[0] == pytest.approx(weights[-1], abs=1e-6)


def test_lists_that_end_leave_the_rest_to_the_retriever():
    data = matrix()
    search = run("reformir(retriever=dense, depth=1, batch=40)", data, 80)
    assert not np.isnan(search.picks().approx).any()  # none in item order
    assert search.n_scored.tolist() == [80] * 6


def test_reformir_needs_no_query_vectors():
    data = matrix()
    rows = data.with_vectors("rows", data.scores[:20].T.copy())
    plain, moved = (
        run(f"reformir(retriever=bm25, vectors=rows, batch=5, blend={blend})", rows, 30)
        for blend in (0.1, 0.9)
    )
    assert plain.picks().items.tolist() == moved.picks().items.tolist()
    bare = replace(data, dense_items=None, dense_queries=None)
    with pytest.raises(InputError, match="no item vectors"):
        run("reformir(retriever=bm25)", bare, 10)
