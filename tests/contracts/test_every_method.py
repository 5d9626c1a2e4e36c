"""What holds for every method, on a stored matrix (method-notes: identities 1, 4 and 6)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import ALIGNED_METHODS, METHODS, aligned_matrix, matrix, permuted, run

from crossknn.linalg import top_k
from crossknn.methods import METHODS as REGISTRY
from crossknn.spec import parse
from crossknn.types import NO_ITEM

SPECS = METHODS + ALIGNED_METHODS


def pytest_generate_tests(metafunc):
    """Every test that takes a `spec` runs with each of the module's: the lab's have their own."""
    if "spec" in metafunc.fixturenames:
        metafunc.parametrize("spec", metafunc.module.SPECS)


def matrix_for(spec, **options):
    """A matrix with what the spec needs."""
    return made(spec in ALIGNED_METHODS, **options)


@cache
def made(aligned, **options):
    """The same for all specs: nothing writes to a matrix, and its prior is fitted once."""
    return aligned_matrix(**options) if aligned else matrix(**options)


def test_the_suite_covers_every_registered_method():
    calling = {name for name, kind in REGISTRY.items() if kind.calls}
    assert {parse(spec).name for spec in METHODS} == calling


@settings(max_examples=25, deadline=None)
@given(
    budget=st.integers(1, 90),
    seed=st.integers(0, 5),
    allowed=st.sampled_from((0.4, 1.0)),
    lost=st.just(set()) | st.sets(st.integers(0, 79), max_size=12),
)
def test_the_budget_is_spent_exactly_and_nothing_twice(spec, budget, seed, allowed, lost):
    """Only allowed items are scored, and others take the place of pairs that cannot be scored."""
    data, mask = matrix_for(spec, seed=seed, tests=2), np.random.default_rng(1).random(80) < allowed
    search = run(spec, data, budget, seed=seed, allowed=mask, lost=list(lost))
    free = set(np.flatnonzero(mask).tolist()) - lost
    expected = len(free) if spec == "exact" else min(budget, len(free))
    assert search.n_scored.tolist() == [expected] * 2
    for row in search.picks().items.tolist():
        asked = {item for item in row if item != NO_ITEM}
        assert len(asked) == sum(item != NO_ITEM for item in row) == expected
        assert asked <= free


def test_a_full_budget_is_exact_search(spec):
    data = matrix_for(spec)
    best = run(spec, data, 80).best(10)
    truth = top_k(data.scores[data.n_anchors :], 10).items
    assert best.items.tolist() == truth.tolist()


def test_permuting_the_items_permutes_the_answer(spec):
    if "random" in spec:
        pytest.skip("random picks are drawn by position")
    data = matrix_for(spec)
    order = np.random.default_rng(2).permutation(80)
    plain = run(spec, data, 24).best(8)
    moved = run(spec, permuted(data, order), 24).best(8)
    assert order[moved.items].tolist() == plain.items.tolist()


def test_a_query_does_not_depend_on_its_batch(spec):
    data = matrix_for(spec)
    together = run(spec, data, 24).picks()
    alone = run(spec, data, 24, tests=1).picks()
    assert together.items[0].tolist() == alone.items[0].tolist()


@pytest.mark.parametrize(
    "one_round",
    [
        "adacur(retriever=dense, rounds=1)",
        "axn(retriever=dense, rounds=1, blend=0.4)",
        "tour(retriever=dense, rounds=1)",
        "axn(retriever=dense, rounds=7, blend=1.0)",
    ],
)
def test_one_round_or_the_parametric_vector_alone_is_reranking(one_round):
    data = matrix()
    budget = 21
    reranked = run("rerank(retriever=dense)", data, budget).picks().items
    assert (
        np.sort(run(one_round, data, budget).picks().items).tolist() == np.sort(reranked).tolist()
    )
