"""Anchors, tests and dev queries of a matrix: disjoint, by seed, each with its own scores."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import aligned_matrix, matrix

from crossknn.errors import InputError
from crossknn_lab.cells import divided

DATA = matrix(anchors=9, tests=5)


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.none(), st.integers(0, 99)), st.integers(1, 9), st.booleans())
def test_every_query_keeps_its_scores_and_is_an_anchor_or_a_test(seed, anchors, dev):
    made, rows = divided(DATA, anchors=anchors, seed=seed, dev=dev)
    assert len(set(rows.tolist())) == len(rows)
    assert made.n_anchors == min(anchors, 6 if dev else 9)
    assert made.n_tests == (3 if dev else 5)
    assert (made.scores == DATA.scores[rows]).all()
    assert (made.query_vectors == DATA.query_vectors[rows]).all()
    assert (made.firsts["bm25"] == DATA.firsts["bm25"][rows]).all()
    assert made.query_ids == tuple(DATA.query_ids[row] for row in rows)
    assert (made.anchor_items is None) == (seed is not None)


@given(st.one_of(st.none(), st.integers(0, 99)))
def test_dev_queries_are_anchors_of_the_same_seed_and_never_tests(seed):
    tests = set(divided(DATA, seed=seed)[1][9:].tolist())
    made, rows = divided(DATA, seed=seed, dev=True)
    assert not tests & set(rows.tolist())
    assert len(rows) == 9
    fewer, few = divided(DATA, anchors=4, seed=seed, dev=True)
    assert (few[fewer.n_anchors :] == rows[made.n_anchors :]).all()


def test_what_is_stored_is_passed_on_as_it_is():
    assert divided(DATA)[0] is DATA
    assert divided(DATA, anchors=9)[0] is DATA


def test_what_cannot_be_divided():
    with pytest.raises(InputError, match="anchors is 10, but the matrix has 9 anchor queries"):
        divided(DATA, anchors=10)
    with pytest.raises(InputError, match="1 anchor queries: settings are chosen on a third"):
        divided(matrix(anchors=1), dev=True)
    fitted = aligned_matrix(anchors=9)
    assert divided(fitted)[0] is fitted
    for options in ({"dev": True}, {"seed": 1}, {"anchors": 3}):
        with pytest.raises(InputError, match=r"fitted vectors \(cur, mf\) were fitted"):
            divided(fitted, **options)
