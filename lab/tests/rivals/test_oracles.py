"""The oracle samplers: the distribution of what they draw against the reference's."""

from __future__ import annotations

import numpy as np
import pytest
from references import cur
from references.test_samplers import DRAWS, assert_same, assert_shares_same
from rival_references import oracle

from crossknn.types import Queries
from crossknn_lab.rivals.oracles import OracleRetriever, OracleSoftMax, OracleTopK


@pytest.mark.parametrize(("masked", "share"), [(0, 0.0), (3, 0.5), (5, 1.0)])
def test_the_oracles_draw_as_the_reference_does(masked, share):
    rng = np.random.default_rng(1)
    exact, query, count = rng.normal(size=(1, 20)).astype(np.float32), Queries(["q"]), 6

    def drawn(kind):
        options = kind(masked=masked, epsilon=share)
        oracles = (OracleRetriever(options, exact, seed) for seed in range(DRAWS))
        return np.array([one.top(query, count).items[0] for one in oracles])

    row, greedy, soft = exact[0].astype(np.float64), drawn(OracleTopK), drawn(OracleSoftMax)
    included = np.bincount(greedy.ravel(), minlength=20)
    expected = oracle.topk_inclusion(row, count, masked, share)
    certain = expected == 1
    assert (included[certain] == DRAWS).all()
    assert_same(included[~certain], DRAWS * expected[~certain])
    if share < 1:
        hidden = np.argsort(-row)[:masked]
        first = np.bincount(soft[:, 0], minlength=20)
        assert_same(first, DRAWS * cur.masked_softmax(row, hidden))
    due = [oracle.softmax_draw(row, count, masked, share, rng) for _ in range(4000)]
    assert_shares_same(soft, due, 20)
