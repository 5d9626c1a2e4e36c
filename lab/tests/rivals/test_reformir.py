"""ReformIR: the weights of its lists, and the searches that they come to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rival_references.reformulations import bounded
from synthetic import matrix, run

from crossknn.errors import InputError, SpecError
from crossknn_lab.rivals.reformir import weights_of


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


def test_it_needs_item_vectors_but_none_of_queries():
    data = matrix()
    with pytest.raises(InputError, match="no item vectors"):
        run("reformir(retriever=bm25)", replace(data, dense_items=None, dense_queries=None), 10)
    rows = data.with_vectors("rows", data.scores[:20].T.copy())
    plain, moved = (
        run(f"reformir(retriever=bm25, vectors=rows, batch=5, blend={blend})", rows, 30)
        for blend in (0.1, 0.9)
    )
    assert plain.picks().items.tolist() == moved.picks().items.tolist()
    with pytest.raises(SpecError, match="blend must lie between 0 and 1"):
        run("reformir(blend=2)", data, 10)
    with pytest.raises(SpecError, match="feedback must be 1 or more"):
        run("reformir(feedback=0)", data, 10)
