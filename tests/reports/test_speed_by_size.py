"""The time that `auto` takes to choose grows with the items, without a cliff at 50,000."""

import numpy as np
import pytest
from synthetic import matrix

from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn.methods.base import POOLED
from crossknn.search.loop import simulate


@pytest.mark.parametrize("n", [6_000, POOLED, POOLED + 1, 49_999, 50_000, 50_001])
def test_a_round_predicts_all_of_few_items_or_a_pool_of_many(n):
    """`auto` predicted all of 50,000 items in every round (577 ms) and a pool of 50,100 (233)."""
    index, _, _ = matrix(n=n, anchors=0, tests=1).rows(0, 1)
    pool = parse_method("auto").plan(index, 100, 0).shortlist
    assert (pool is None) == (n <= POOLED)
    assert pool is None or pool <= 1600


def test_the_pool_finds_what_predicting_all_finds(monkeypatch):
    index, queries, scores = matrix(n=POOLED + 500, anchors=0, tests=8).rows(0, 8)
    recalls = []
    for bound in (50_000, POOLED):
        monkeypatch.setattr("crossknn.methods.base.POOLED", bound)
        best = simulate(parse_method("auto").plan(index, 100, 0), queries, scores).best(100).items
        rows = [
            [np.isin(true[:k], found[:k]).mean() for k in (10, 100)]
            for true, found in zip(top_k(scores, 100).items, best, strict=True)
        ]
        recalls.append(np.mean(rows, axis=0))
    assert (recalls[1] >= recalls[0] - 0.01).all(), recalls
