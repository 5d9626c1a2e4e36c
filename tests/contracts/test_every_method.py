"""What holds for every method, on a stored matrix (method-notes: identities 1, 4 and 6)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import ALIGNED_METHODS, METHODS, aligned_matrix, matrix, permuted, run

from crossknn.linalg import top_k
from crossknn.methods import METHODS as REGISTRY
from crossknn.methods import parse_method
from crossknn.spec import parse
from crossknn.types import NO_ITEM

every_method = pytest.mark.parametrize("spec", METHODS + ALIGNED_METHODS)


def matrix_for(spec, **options):
    """A matrix with what the spec needs."""
    return aligned_matrix(**options) if spec in ALIGNED_METHODS else matrix(**options)


def test_the_suite_covers_every_registered_method():
    calling = {name for name, kind in REGISTRY.items() if kind.calls}
    assert {parse(spec).name for spec in METHODS} == calling


@every_method
@settings(max_examples=15, deadline=None)
@given(budget=st.integers(1, 90), seed=st.integers(0, 5))
def test_the_budget_is_spent_exactly_and_nothing_twice(spec, budget, seed):
    data = matrix_for(spec, seed=seed, tests=3)
    search = run(parse_method(spec), data, budget, seed=seed)
    expected = 80 if spec == "exact" else min(budget, 80)
    assert search.n_scored.tolist() == [expected] * 3
    for row in search.picks().items:
        asked = row[row != NO_ITEM]
        assert len(set(asked.tolist())) == len(asked) == expected


@every_method
def test_a_full_budget_is_exact_search(spec):
    data = matrix_for(spec)
    best = run(parse_method(spec), data, 80).best(10)
    truth = top_k(data.scores[data.n_anchors :], 10).items
    assert best.items.tolist() == truth.tolist()


@every_method
def test_a_filter_is_respected(spec):
    data = matrix_for(spec)
    allowed = np.random.default_rng(1).random(80) < 0.4
    search = run(parse_method(spec), data, 30, allowed=allowed)
    picked = search.picks().items
    assert allowed[picked[picked != NO_ITEM]].all()
    count = min(30, int(allowed.sum())) if spec != "exact" else int(allowed.sum())
    assert search.n_scored.tolist() == [count] * data.n_tests


@every_method
def test_permuting_the_items_permutes_the_answer(spec):
    if "random" in spec:
        pytest.skip("random picks are drawn by position")
    data = matrix_for(spec)
    order = np.random.default_rng(2).permutation(80)
    plain = run(parse_method(spec), data, 24).best(8)
    moved = run(parse_method(spec), permuted(data, order), 24).best(8)
    assert order[moved.items].tolist() == plain.items.tolist()


@every_method
def test_a_query_does_not_depend_on_its_batch(spec):
    data = matrix_for(spec)
    together = run(parse_method(spec), data, 24).picks()
    alone = run(parse_method(spec), data, 24, tests=1).picks()
    assert together.items[0].tolist() == alone.items[0].tolist()


@pytest.mark.parametrize(
    "spec",
    [
        "adacur(retriever=dense, rounds=1)",
        "axn(retriever=dense, rounds=1, blend=0.4)",
        "tour(retriever=dense, rounds=1)",
        "axn(retriever=dense, rounds=7, blend=1.0)",
    ],
)
def test_one_round_or_the_parametric_vector_alone_is_reranking(spec):
    data = matrix()
    budget = 21
    reranked = run(parse_method("rerank(retriever=dense)"), data, budget).picks().items
    assert (
        np.sort(run(parse_method(spec), data, budget).picks().items).tolist()
        == np.sort(reranked).tolist()
    )


@every_method
@settings(max_examples=10, deadline=None)
@given(lost=st.sets(st.integers(0, 79), max_size=12), seed=st.integers(0, 3))
def test_pairs_that_cannot_be_scored_are_replaced(spec, lost, seed):
    from crossknn.search.loop import Search

    data = matrix_for(spec, tests=2, seed=seed)
    index, queries, scores = data.rows(0, 2)
    search = Search(parse_method(spec).plan(index, 24, seed), queries, index.n)
    while len(pairs := search.ask()):
        good = np.flatnonzero(~np.isin(pairs.item, list(lost)))
        told = pairs.take(good)
        search.tell(told, scores[told.query, told.item])
    wanted = 80 if spec == "exact" else 24
    assert search.n_scored.tolist() == [min(wanted, 80 - len(lost))] * 2
    picked = search.picks().items
    assert not set(picked[picked != NO_ITEM].tolist()) & lost
