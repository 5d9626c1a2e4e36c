"""Rank, spectrum, distribution and CUR of score matrices: mathematics first."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import matrix

from crossknn.errors import InputError
from crossknn.evaluation.replay import replay
from crossknn.index.stored import StoredMatrix
from crossknn.methods import method, methods
from crossknn.types import Observed
from crossknn_lab.score_matrix import (
    components,
    cur,
    cur_error,
    cur_grid,
    effective_rank,
    error_by_rank,
    oracle_cur,
    rank,
    score_density,
    singular_values,
    spectrum_components,
    spectrum_rank,
    summarize,
)


def low_rank(r: int, m: int = 40, n: int = 70, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([r, seed])
    return (rng.normal(size=(m, r)) @ rng.normal(size=(r, n))).astype(np.float32)


@given(r=st.integers(1, 20), seed=st.integers(0, 20))
@settings(max_examples=25, deadline=None)
def test_the_rank_of_a_product_is_its_inner_dimension(r, seed):
    scores = low_rank(r, seed=seed)
    assert rank(scores) == r
    assert components(scores, 1 - 1e-9) == r
    assert r / 2 < effective_rank(scores) <= r + 0.01 or r == 1
    assert rank(scores + 3) <= r + 1  # a mean is one more dimension at most


def test_the_rank_is_numpy_s_in_float32():
    scores = np.eye(50) * np.geomspace(1, 1e-9, 50)
    assert rank(scores) == np.linalg.matrix_rank(scores.astype(np.float32))
    assert rank(scores) < np.linalg.matrix_rank(scores) == 50


def test_the_effective_rank_counts_equal_directions():
    assert effective_rank(np.eye(17)) == pytest.approx(17)
    assert effective_rank(5 * np.eye(17)) == pytest.approx(17)
    assert effective_rank(np.outer(np.arange(1.0, 9), np.arange(1.0, 30))) == pytest.approx(1)
    assert effective_rank(np.zeros((3, 4))) == 0
    # Roy & Vetterli: exp of the entropy of (0.5, 0.25, 0.25).
    assert effective_rank(np.diag([2.0, 1, 1])) == pytest.approx(2**1.5)


def test_components_hold_a_share_of_the_squared_norm():
    scores = np.diag([3.0, 2, 1, 1])  # squares 9 4 1 1 of 15
    assert [components(scores, s) for s in (0.5, 0.6, 0.61, 13 / 15, 0.9, 1.0)] == [
        1,
        1,
        2,
        2,
        3,
        4,
    ]
    assert components(np.zeros((3, 4)), 0.9) == 0
    with pytest.raises(InputError, match=r"share is 1\.5"):
        components(scores, 1.5)
    with pytest.raises(InputError, match="has the shape"):
        effective_rank(np.zeros(4))


def test_centring_subtracts_each_query_s_mean():
    scores = low_rank(3)
    shifted = scores + np.arange(40)[:, None]
    np.testing.assert_allclose(
        singular_values(shifted, center=True), singular_values(scores, center=True), atol=1e-3
    )
    assert components(shifted, 0.9) == 1 < components(shifted, 0.9, center=True)


def test_the_summary_agrees_with_its_parts():
    scores = matrix(noise=0.5).scores
    found = summarize(scores)
    values = singular_values(scores, center=True)
    assert (found.n_queries, found.n_items) == scores.shape
    assert (found.mean, found.std) == pytest.approx((scores.mean(), scores.std()), rel=1e-5)
    assert found.rank == rank(scores)
    assert found.effective_rank == spectrum_rank(values)
    assert found.components[99] == spectrum_components(values, 0.99)


def test_densities_are_centred_by_query_and_integrate_to_one():
    rng = np.random.default_rng(0)
    scores = rng.exponential(2.0, size=(30, 4000)) + 100 * rng.normal(size=(30, 1))
    plain, standard = score_density(scores), score_density(scores, standardize=True)
    for found in (plain, standard):
        assert (found.density * np.diff(found.edges)).sum() == pytest.approx(1)
        middle = (found.edges[1:] + found.edges[:-1]) / 2
        assert (middle * found.density * np.diff(found.edges)).sum() == pytest.approx(0, abs=0.05)
        assert found.skewness == pytest.approx(2, abs=0.1)  # of an exponential
    assert plain.unit == 1
    assert standard.unit == pytest.approx(2, rel=0.02)
    np.testing.assert_allclose(plain.edges, standard.edges * standard.unit)
    assert score_density(np.ones((2, 5)), standardize=True).skewness == 0


@given(r=st.integers(1, 8), extra=st.integers(0, 10), seed=st.integers(0, 20))
@settings(max_examples=25, deadline=None)
def test_cur_recovers_a_matrix_of_low_rank(r, extra, seed):
    scores = low_rank(r, seed=seed)
    rng = np.random.default_rng(seed)
    rows, columns = rng.permutation(40)[: r + extra], rng.permutation(70)[: r + extra]
    assert cur_error(scores, oracle_cur(scores, rows, columns)) < 1e-5
    # ANNCUR inverts what rounding to float32 added, so it needs a cut or a spare anchor.
    assert cur_error(scores, cur(scores, rows, columns, rcond=1e-5)) < 1e-2


@given(k_q=st.integers(1, 30), k_i=st.integers(1, 50), seed=st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_the_oracle_is_the_best_of_all_curs(k_q, k_i, seed):
    rng = np.random.default_rng(seed)
    scores = low_rank(6, seed=seed) + 0.5 * rng.normal(size=(40, 70)) + 2
    rows, columns = rng.permutation(40)[:k_q], rng.permutation(70)[:k_i]
    best = oracle_cur(scores, rows, columns)
    known = scores[:, columns] @ np.linalg.pinv(scores[:, columns]) @ scores
    known = known @ np.linalg.pinv(scores[rows]) @ scores[rows]
    np.testing.assert_allclose(best, known, atol=1e-6)
    for rcond in (1e-15, 1e-2):
        assert (
            cur_error(scores, best)
            <= cur_error(scores, cur(scores, rows, columns, rcond=rcond)) + 1e-9
        )


def test_cur_is_what_anncur_predicts():
    data = replace(matrix(tests=8), item_vectors=None, query_vectors=None)
    index, queries, exact = data.rows(0, 8)
    columns = np.arange(5, 17)
    plan = method("anncur(rcond=1e-15)").plan(index, 12, 0)
    seen = Observed(np.tile(columns, (8, 1)), exact[:, columns], np.full(8, 12))
    state = plan.predictor.update(plan.predictor.start(queries), seen)
    centred = data.scores.astype(np.float64) - index.anchors.center
    approx = cur(centred, np.arange(20), columns)[20:] + index.anchors.center
    np.testing.assert_allclose(plan.predictor.predict(state).mean, approx, rtol=1e-3, atol=1e-3)


def test_errors_by_exact_rank():
    scores = np.tile(np.arange(40.0), (3, 1))
    approx = scores.copy()
    approx[:, -10:] -= 2  # the ten best
    assert error_by_rank(scores, approx, (10, 30)) == {"1-10": 2.0, "11-30": 0.0, "31-40": 0.0}
    assert list(error_by_rank(scores, approx)) == ["1-10", "11-40"]
    assert cur_error(scores, approx) == pytest.approx(np.sqrt(3 * 10 * 4) / np.linalg.norm(scores))


def test_a_grid_on_a_matrix_of_low_rank_is_solved_above_it():
    cells = cur_grid(low_rank(5), [3, 10], [3, 20], k=5, retrieved=5, draws=2)
    by_size = {(c.k_q, c.k_i): c for c in cells}
    assert list(by_size) == [(3, 3), (3, 20), (10, 3), (10, 20)]
    assert by_size[10, 20].recall == 1
    assert by_size[10, 20].error < 1e-3
    assert by_size[3, 20].error > 0.1
    assert (by_size[3, 3].n_queries, by_size[10, 3].n_queries) == (37, 30)
    assert cells == cur_grid(low_rank(5), [3, 10], [3, 20], k=5, retrieved=5, draws=2)


def test_the_grid_collapses_on_its_diagonal_and_the_oracle_does_not():
    rng = np.random.default_rng(0)
    scores = low_rank(40, 80, 300) + rng.normal(size=(80, 300))
    plain = {(c.k_q, c.k_i): c for c in cur_grid(scores, [30], [10, 30, 120], retrieved=30)}
    oracle = cur_grid(scores, [30], [10, 30, 120], retrieved=30, oracle=True)
    assert plain[30, 30].error > 3 * max(plain[30, 10].error, plain[30, 120].error)
    assert plain[30, 30].recall < plain[30, 120].recall
    assert oracle[0].error >= oracle[1].error >= oracle[2].error
    assert all(o.error <= p.error + 0.02 for o, p in zip(oracle, plain.values(), strict=True))


def test_centring_makes_the_error_relative_to_what_remains():
    scores = low_rank(5) + 100
    (raw,) = cur_grid(scores, [4], [20], retrieved=20)
    (centred,) = cur_grid(scores, [4], [20], retrieved=20, center=True)
    assert raw.error < 0.1 < centred.error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k_qs": [40]}, "anchor queries must be 1 to 39 of the 40 queries"),
        ({"k_qs": []}, "at least one number"),
        ({"k_is": [71]}, "anchor items must be 1 to 70"),
        ({"k": 0}, "k is 0"),
        ({"k": 71}, "k is 71, above the number of items, 70"),
        ({"draws": 0}, "draws is 0"),
    ],
)
def test_a_grid_that_does_not_fit(options, words):
    with pytest.raises(InputError, match=words):
        cur_grid(low_rank(3), **{"k_qs": [5], "k_is": [5], **options})


@pytest.mark.shared
def test_the_collapse_on_a_real_matrix(shared):
    scores = StoredMatrix.load(shared / "matrices" / "scifact.npz").scores
    cells = {c.k_i: c for c in cur_grid(scores, [50], [25, 50, 100], draws=1)}
    assert cells[50].recall < cells[25].recall - 0.1
    assert cells[100].recall > cells[25].recall
    found = summarize(scores)
    assert (found.rank, found.components[90]) == (175, 40)


def test_item_item_methods_run_on_a_stored_matrix(tmp_path):
    made = matrix()
    assert made.item_scores is not None
    np.savez(
        tmp_path / "m.npz",
        scores=made.scores,
        item_score_items=made.item_scores.items,
        item_scores=made.item_scores.scores,
    )
    data = StoredMatrix.load(tmp_path / "m.npz")
    rows = list(replay(data, methods("fixeditem, itemcur"), [20, 80], [5]))
    assert [(r.method, r.budget) for r in rows] == [
        ("fixeditem", 20),
        ("fixeditem", 80),
        ("itemcur", 20),
        ("itemcur", 80),
    ]
    assert rows[1].recall == rows[3].recall == 1
