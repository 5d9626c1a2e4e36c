"""Stored scores."""

import numpy as np
import pytest
from scorer_helpers import collect, grid

from crossknn.errors import InputError, ScorerError
from crossknn.scorers import MatrixScorer
from crossknn.types import Pairs

SCORES = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float16)
TEXTS = ["a", "b", "c", "d"]
ITEMS = [str(i) for i in range(9)]


def test_rows_by_position_are_the_matrix():
    found = collect(MatrixScorer(SCORES), grid(4, 9), TEXTS, ITEMS)
    np.testing.assert_array_equal(found.reshape(4, 9), SCORES)


def test_rows_by_text_follow_the_texts():
    order = [3, 1]
    scorer = MatrixScorer(SCORES, TEXTS)
    found = collect(scorer, grid(2, 9), [TEXTS[r] for r in order], ITEMS)
    np.testing.assert_array_equal(found.reshape(2, 9), SCORES[order])


def test_what_is_not_in_the_matrix_is_refused():
    with pytest.raises(InputError, match="no stored scores for the query 'z'"):
        MatrixScorer(SCORES, TEXTS).score(grid(1, 2), ["z"], ITEMS)
    with pytest.raises(InputError, match="query 4 "):
        MatrixScorer(SCORES).score(grid(5, 2), [*TEXTS, "e"], ITEMS)
    with pytest.raises(InputError, match="item 9 "):
        MatrixScorer(SCORES).score(grid(1, 10), TEXTS, [*ITEMS, "9"])


def test_repeated_texts_need_equal_rows():
    MatrixScorer(np.zeros((2, 3)), ["same", "same"])
    with pytest.raises(InputError, match="rows 0 and 1"):
        MatrixScorer(np.arange(6.0).reshape(2, 3), ["same", "same"])
    with pytest.raises(InputError, match="3 query texts were given for 4 rows"):
        MatrixScorer(SCORES, TEXTS[:3])
    with pytest.raises(InputError, match="must be a matrix"):
        MatrixScorer(np.zeros(3))


def test_a_hole_in_the_matrix_is_an_error():
    holed = SCORES.copy()
    holed[2, 5] = np.nan
    collect(MatrixScorer(holed), Pairs(np.array([2]), np.array([4])), TEXTS, ITEMS)
    with pytest.raises(ScorerError, match="query 2 'c' with item 5 '5'"):
        collect(MatrixScorer(holed), Pairs(np.array([2]), np.array([5])), TEXTS, ITEMS)


def test_fingerprint_follows_the_scores():
    other = SCORES.copy()
    other[0, 0] += 1
    assert MatrixScorer(SCORES).fingerprint == MatrixScorer(SCORES.copy()).fingerprint
    assert MatrixScorer(SCORES).fingerprint != MatrixScorer(other).fingerprint
