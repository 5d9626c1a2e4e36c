"""Searches among known scores are the loop of ask and tell, to its end."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import matrix, run

from crossknn.methods import method
from crossknn.search.loop import simulate


@pytest.mark.parametrize(
    "spec",
    ["rerank(retriever=dense)", "axn(retriever=dense, rounds=3)", "kriging(retriever=dense)"],
)
def test_it_asks_what_the_loop_asks_and_tells_each_pair_its_own_score(spec):
    data, chosen = matrix(n=40, anchors=12, tests=5), method(spec)
    index, queries, scores = data.rows(0, data.n_tests)
    found = simulate(chosen.plan(index, 15, 0), queries, scores)
    picks, same = found.picks(), run(chosen, data, 15).picks()
    np.testing.assert_array_equal(picks.items, same.items)
    np.testing.assert_array_equal(picks.scores, np.take_along_axis(scores, picks.items, axis=1))
    assert found.n_scored.tolist() == [15] * data.n_tests
    assert not len(found.ask())
