"""Approximate scores beside the exact ones."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import matrix

from crossknn.linalg import least_squares
from crossknn.methods import method
from crossknn.types import NO_ITEM
from crossknn_lab.approximation import approximate, approximation_error, error_by_rank
from crossknn_lab.score_matrix import cur


def test_errors_by_rank_by_hand():
    exact = np.array([[5.0, 1, 3, 2], [1, 2, 3, 4]])
    approx = np.array([[4.0, 1, 3, 4], [1, 2, 1, 4]])
    found = approximation_error(exact, approx, bands=(1, 2))
    assert list(found) == ["1-1", "2-2", "3-4", "all"]
    assert found["1-1"].tolist() == [1, 0]
    assert found["2-2"].tolist() == [0, 2]
    assert found["3-4"].tolist() == [1, 0]
    assert found["all"].tolist() == [0.75, 0.5]
    squared = error_by_rank(exact, approx, bands=(1, 2))
    assert squared == pytest.approx({"1-1": 0.5**0.5, "2-2": 2**0.5, "3-4": 1.0})


def test_bands_beyond_the_items_are_left_out():
    exact = np.zeros((2, 4))
    assert list(approximation_error(exact, exact, bands=(4, 10))) == ["1-4", "all"]


def test_the_approximation_of_anncur_is_cur():
    data = matrix()
    index, queries, scores = data.rows(0, 6)
    approx, scored = approximate(
        method("anncur(anchors=1, rcond=1e-15)"), index, queries, scores, budget=12, seed=0
    )
    center = data.scale.alpha
    shifted, rows, anchors = data.scores - center, np.arange(20), data.anchor_items[:12]
    assert [sorted(row.tolist()) for row in scored] == [sorted(anchors.tolist())] * 6
    assert approx == pytest.approx(cur(shifted, rows, anchors)[20:] + center, abs=1e-3)


def test_the_approximation_rests_on_every_score_of_every_round():
    data = matrix()
    index, queries, scores = data.rows(0, 6)
    for spec in (
        "adacur(retriever=dense, rounds=4)",
        "adacur(retriever=dense, rounds=4, sample=softmax)",
    ):
        approx, scored = approximate(method(spec), index, queries, scores, budget=15, seed=0)
        anchors = data.scores[:20].astype(np.float64) - data.scale.alpha
        for q, items in enumerate(scored):
            exact = scores[q, items].astype(np.float64) - data.scale.alpha
            weights = least_squares(anchors[:, items].T, exact, 1e-6)
            expected = weights @ anchors + data.scale.alpha
            assert approx[q] == pytest.approx(expected, abs=2e-2), spec


def test_one_that_learns_nothing_answers_with_its_first_stage():
    index, queries, scores = matrix().rows(0, 6)
    approx, scored = approximate(
        method("rerank(retriever=bm25)"), index, queries, scores, budget=9, seed=0
    )
    assert np.array_equal(approx, index.retrievers["bm25"].scores(queries))
    assert np.count_nonzero(scored != NO_ITEM) == 6 * 9
