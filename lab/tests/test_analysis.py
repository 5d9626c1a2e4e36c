"""Rank, spectrum, distribution and CUR of score matrices, and what methods approximate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import matrix

from crossknn.evaluation.measures import recall
from crossknn.evaluation.outcome import truth_of
from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn_lab import analysis
from crossknn_lab.replay import parts_of


def cur(scores, rows, columns, *, rcond=1e-15):
    """C pinv(A) R by NumPy's own pseudo-inverse."""
    scores = np.asarray(scores, np.float64)
    inverse = np.linalg.pinv(scores[rows][:, columns], rcond=rcond)
    return scores[:, columns] @ inverse @ scores[rows]


def low_rank(r: int, m: int = 40, n: int = 70, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([r, seed])
    return (rng.normal(size=(m, r)) @ rng.normal(size=(r, n))).astype(np.float32)


@given(r=st.integers(1, 20), seed=st.integers(0, 20))
@settings(max_examples=25, deadline=None)
def test_the_rank_of_a_product_is_its_inner_dimension(r, seed):
    scores = low_rank(r, seed=seed)
    assert analysis.rank(scores) == r
    assert analysis.components(analysis.singular_values(scores), 1 - 1e-9) == r
    assert r / 2 < analysis.effective_rank(analysis.singular_values(scores)) <= r + 0.01 or r == 1
    assert analysis.rank(scores + 3) <= r + 1  # a mean is one more dimension at most


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        (5 * np.eye(17), 17),
        (np.outer(np.arange(1.0, 9), np.arange(1.0, 30)), 1),
        (np.zeros((3, 4)), 0),
        (np.diag([2.0, 1, 1]), 2**1.5),  # Roy & Vetterli: exp of the entropy of (0.5, 0.25, 0.25)
    ],
)
def test_the_effective_rank_counts_equal_directions(scores, expected):
    assert analysis.effective_rank(analysis.singular_values(scores)) == pytest.approx(expected)


def test_components_hold_a_share_of_the_squared_norm():
    values = analysis.singular_values(np.diag([3.0, 2, 1, 1]))  # squares 9 4 1 1 of 15
    shares = (0.5, 0.6, 0.61, 13 / 15, 0.9, 1.0)
    assert [analysis.components(values, share) for share in shares] == [1, 1, 2, 2, 3, 4]
    assert analysis.components(np.zeros(3), 0.9) == 0


def test_densities_are_centred_by_query_and_integrate_to_one():
    rng = np.random.default_rng(0)
    scores = rng.exponential(2.0, size=(30, 4000)) + 100 * rng.normal(size=(30, 1))
    found = analysis.score_density(scores)
    middle = (found.edges[1:] + found.edges[:-1]) / 2
    moments = [(middle**n * found.density * np.diff(found.edges)).sum() for n in range(3)]
    assert moments == pytest.approx([1, 0, 1], abs=0.05)
    assert found.skewness == pytest.approx(2, abs=0.1)  # of an exponential
    assert analysis.score_density(np.ones((2, 5))).skewness == 0


@given(k_q=st.integers(1, 30), k_i=st.integers(1, 50), seed=st.integers(0, 30))
@settings(max_examples=40, deadline=None)
def test_the_oracle_is_the_best_of_all_curs(k_q, k_i, seed):
    rng = np.random.default_rng(seed)
    of_rank_6 = low_rank(6, seed=seed)
    scores = of_rank_6 + 0.5 * rng.normal(size=(40, 70)) + 2
    rows, columns = rng.permutation(40)[:k_q], rng.permutation(70)[:k_i]
    best = analysis.oracle_cur(scores, rows, columns)
    known = scores[:, columns] @ np.linalg.pinv(scores[:, columns]) @ scores
    known = known @ np.linalg.pinv(scores[rows]) @ scores[rows]
    np.testing.assert_allclose(best, known, atol=1e-6)
    for rcond in (1e-15, 1e-2):
        other = cur(scores, rows, columns, rcond=rcond)
        assert analysis.cur_error(scores, best) <= analysis.cur_error(scores, other) + 1e-9
    if min(k_q, k_i) > 6:
        assert analysis.cur_error(of_rank_6, analysis.oracle_cur(of_rank_6, rows, columns)) < 1e-5


def test_the_grid_collapses_on_its_diagonal_and_the_oracle_does_not():
    rng = np.random.default_rng(0)
    scores = low_rank(40, 80, 300) + rng.normal(size=(80, 300))
    plain, oracle = (
        analysis.cur_grid(scores, [30], [10, 30, 120], retrieved=30, oracle=known)
        for known in (False, True)
    )
    assert plain[1].error > 3 * max(plain[0].error, plain[2].error)
    assert plain[1].recall < plain[2].recall
    assert oracle[0].error >= oracle[1].error >= oracle[2].error
    assert all(o.error <= p.error + 0.02 for o, p in zip(oracle, plain, strict=True))


ANNCUR = parse_method("anncur(anchor_share=1, rcond=1e-15)")


def paper_recall(data, k_i: int, k_r: int, k: int) -> np.ndarray:
    """As the reference code of ANNCUR counts: top k_r of the approximation, reranked, top k."""
    center = data.anchors.center
    anchors = data.anchor_items[:k_i]
    approx = cur(data.scores - center, np.arange(data.n_anchors), anchors)[data.n_anchors :]
    exact = data.scores[data.n_anchors :]
    filled = np.full(exact.shape, -1e30)
    best = top_k(approx, k_r).items
    np.put_along_axis(filled, best, np.take_along_axis(exact, best, axis=1), axis=1)
    return recall(top_k(filled, min(k, k_r)).items, top_k(exact, k).items)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_the_papers_accounting_is_that_of_its_code(share):
    data = matrix(noise=1.5, anchors=30)
    parts = parts_of(data)
    options = {"budget": 24, "ks": [1, 5], "shares": [share]}
    found = analysis.recall_by_split(ANNCUR, parts, truth_of(parts, 5), **options)
    for k in (1, 5):
        expected = paper_recall(data, round(24 * share), 24 - round(24 * share), k)
        assert found[k][share].tolist() == expected.tolist()
