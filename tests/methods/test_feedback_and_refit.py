"""Qdrant's relevance feedback and ReFIT's distillation: formulas and gradients, checked."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import aligned_matrix, matrix, run

from crossknn.errors import InputError, SpecError
from crossknn.linalg import softmax
from crossknn.methods import method
from crossknn.methods.feedback import distilled, formula
from crossknn.methods.vectors import encoder_predictor
from crossknn.types import Observed


def by_pairs(scores, vectors, query, item, a, b, c):
    """F as the source writes it: a sum over the pairs of scored items."""
    total = a * float(query @ item)
    for positive, better in enumerate(scores):
        for negative, worse in enumerate(scores):
            if better > worse:
                delta = float(vectors[positive] @ item) - float(vectors[negative] @ item)
                total += (better - worse) ** b * c * delta
    return total


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 8),
    seed=st.integers(0, 99),
    a=st.floats(0, 2),
    b=st.floats(0, 3),
    c=st.floats(-2, 2),
)
def test_feedback_is_the_formula_over_all_pairs(count, seed, a, b, c):
    data = matrix(tests=2, seed=seed)
    index, queries, scores = data.rows(0, 2)
    rounded = np.round(scores)  # some pairs have no gap
    predictor = encoder_predictor(index, "dense", partial(formula, a=a, b=b, c=c, pairs=None))
    items = np.tile(np.arange(3, 3 + count), (2, 1))
    told = Observed(items, np.take_along_axis(rounded, items, 1), np.full(2, count))
    mean = predictor.predict(predictor.update(predictor.start(queries), told)).mean
    vectors, query = data.item_vectors.astype(np.float64), queries.vectors["dense"][1]
    expected = [
        by_pairs(rounded[1, items[1]].astype(float), vectors[items[1]], query, v, a, b, c)
        for v in vectors[:5]
    ]
    np.testing.assert_allclose(mean[1, :5], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "spec", ["feedback(retriever=dense, c=0)", "refit(retriever=dense, lr=1e-9)"]
)
def test_without_feedback_they_rerank(spec):
    data = matrix()
    reranked = run(method("rerank(retriever=dense)"), data, 21).picks().items
    assert run(method(spec), data, 21).picks().items.tolist() == reranked.tolist()


@pytest.mark.parametrize("name", ["feedback", "refit"])
def test_the_sample_is_the_first_stages_and_the_rest_comes_in_rounds(name):
    picks = run(method(f"{name}(retriever=bm25, sample=0.3, rounds=2)"), matrix(), 20).picks()
    assert [np.bincount(row).tolist() for row in picks.rounds] == [[0, 6, 7, 7]] * 6
    retriever = run(method("rerank(retriever=bm25)"), matrix(), 6).picks().items
    assert picks.items[:, :6].tolist() == retriever.tolist()


def refitted(steps, lr, count=9):
    """Query 0's vector after distillation, its items' vectors, its exact scores."""
    data = matrix(tests=1)
    index, queries, scores = data.rows(0, 1)
    predictor = encoder_predictor(index, "dense", partial(distilled, steps=steps, lr=lr))
    told = Observed(np.arange(count)[None], scores[:, :count], np.array([count]))
    state = predictor.update(predictor.start(queries), told)
    return state.current[0].astype(np.float64), data.item_vectors[:count], scores[0, :count]


def divergence(query, vectors, scores):
    wanted, had = softmax(scores.astype(np.float64)), softmax(vectors @ query)
    return float((wanted * np.log(wanted / had)).sum())


def test_a_step_follows_the_gradient_of_the_divergence():
    before, vectors, scores = refitted(0, 1.0)
    numeric = [
        (divergence(before + e, vectors, scores) - divergence(before - e, vectors, scores)) / 2e-5
        for e in 1e-5 * np.eye(len(before))
    ]
    after, *_ = refitted(1, 0.1)
    np.testing.assert_allclose(after - before, -0.1 * np.array(numeric), atol=1e-5)


def test_one_step_on_half_of_the_budget_is_tour():
    data = matrix(tests=8)
    tour = run(method("tour(retriever=dense, rounds=2, loss=kl, lr=0.7)"), data, 20).picks()
    refit = run(method("refit(retriever=dense, steps=1, lr=0.7, normalize=none)"), data, 20).picks()
    assert refit.items.tolist() == tour.items.tolist()


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("feedback(b=-1)", "b must be 0 or more"),
        ("feedback(sample=1.5)", "sample must lie between 0 and 1"),
        ("refit(lr=0)", "lr must be above 0"),
        ("refit(steps=0)", "steps must be 1 or more"),
    ],
)
def test_options_out_of_range_are_said(spec, words):
    with pytest.raises(SpecError, match=words):
        run(method(spec), matrix(), 10)


@pytest.mark.parametrize("name", ["feedback", "refit"])
def test_query_vectors_are_needed(name):
    with pytest.raises(InputError, match=rf"{name}.* needs query vectors, and .* 'cur'"):
        run(method(f"{name}(retriever=bm25, vectors=cur)"), aligned_matrix(), 10)
