"""The time that `auto` takes to choose grows with the items, without a cliff at 50,000."""

import numpy as np
import pytest

from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn.methods.base import POOLED
from crossknn.search.loop import simulate
from crossknn_lab.stored import StoredMatrix

D = 16


def matrix(n, m=8):
    """Clusters of items, and scores that vectors and BM25 explain in part."""
    rng = np.random.default_rng(0)
    items = rng.normal(size=(40, D))[rng.integers(40, size=n)] + 0.7 * rng.normal(size=(n, D))
    items = (items / np.linalg.norm(items, axis=1, keepdims=True)).astype(np.float32)
    queries = items[:m] + np.float32(0.05)
    words = (queries @ items.T + 0.1 * rng.normal(size=(m, n))).astype(np.float32)
    hidden = rng.normal(size=(D, D)).astype(np.float32) / 3
    return StoredMatrix(
        scores=(5 * queries @ (items + np.tanh(items @ hidden)).T).astype(np.float32),
        n_anchors=0,
        dense_items=items,
        dense_queries=queries,
        firsts={"bm25": words},
        query_ids=tuple(map(str, range(m))),
        anchor_items=np.arange(min(n, 500)),
    )


@pytest.mark.parametrize("n", [6_000, POOLED, POOLED + 1, 49_999, 50_000, 50_001])
def test_a_round_predicts_all_of_few_items_or_a_pool_of_many(n):
    """`auto` predicted all of 50,000 items in every round (577 ms) and a pool of 50,100 (233)."""
    index, _, _ = matrix(n, m=1).rows(0, 1)
    pool = parse_method("auto").plan(index, 100, 0).shortlist
    assert (pool is None) == (n <= POOLED)
    assert pool is None or pool <= 1600


def test_the_pool_finds_what_predicting_all_finds(monkeypatch):
    index, queries, scores = matrix(POOLED + 500).rows(0, 8)
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
