"""Estimates are calls times the measured rate."""

import time

import numpy as np
import pytest
from index_helpers import FormulaScorer, LengthEncoder, corpus

from crossknn.data.reading import read_items
from crossknn.errors import InputError
from crossknn.index.estimate import estimate
from crossknn.index.item_index import ItemIndex


class SlowScorer(FormulaScorer):
    def score(self, pairs, queries, items, **limits):
        time.sleep(0.002 * len(pairs))
        yield from super().score(pairs, queries, items)


def test_calls_and_seconds():
    scorer = SlowScorer()
    start = time.perf_counter()
    found = estimate(
        read_items(corpus(50)),
        scorer=scorer,
        encoder=LengthEncoder(),
        n_anchors=4,
        budget=30,
        seconds=0.4,
    )
    assert time.perf_counter() - start < 3
    assert (found.n, found.index_calls, found.search_calls) == (50, 200, 30)
    assert 50 < found.pairs_per_second <= 500
    assert np.isclose(found.search_seconds, 30 / found.pairs_per_second)
    assert np.isclose(
        found.index_seconds, 200 / found.pairs_per_second + 50 / found.items_per_second
    )
    assert found.probe_calls == len(scorer.asked)


def test_what_was_not_probed_is_not_guessed():
    found = estimate(ItemIndex.build(corpus(5)), n_anchors=1, budget=100)
    assert (found.index_calls, found.search_calls) == (5, 5)
    assert found.index_seconds is found.search_seconds is found.pairs_per_second is None
    with pytest.raises(InputError, match="budget is 0"):
        estimate(read_items(["x"]), budget=0)
