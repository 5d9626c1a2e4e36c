"""Two scorers agree as far as their ranks do."""

from __future__ import annotations

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.scorers import MatrixScorer
from crossknn_train.agreement import agreement


def test_two_scorers_agree_as_far_as_their_ranks_do():
    scores = np.random.default_rng(0).normal(size=(3, 12)).astype(np.float32)
    queries, items = ["a", "b", "c"], [f"item {i}" for i in range(12)]
    steps: list[tuple[int, int]] = []
    one, other = MatrixScorer(scores), MatrixScorer(2 * scores + 1)
    found = agreement(one, other, queries, items, progress=lambda *step: steps.append(step))
    assert steps[-1] == (72, 72)
    assert found["spearman_mean"] == found["spearman_lowest"] == 1
    assert found["largest_difference"] == pytest.approx(float(np.abs(scores + 1).max()))
    opposite = agreement(one, MatrixScorer(-scores), queries, items, per_query=5)
    assert opposite["spearman_lowest"] == -1
    with pytest.raises(InputError, match="at least one query and two items"):
        agreement(one, other, queries, items[:1])
