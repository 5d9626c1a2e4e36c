"""What was asked, told and given up, against sets and dictionaries that say the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.search.loop import SearchState
from crossknn.types import NO_ITEM, Pairs

N = 12


def pairs(query: int, items) -> Pairs:
    return Pairs(np.full(len(items), query, np.int64), np.array(items, np.int64))


def score(item: int) -> float:
    return float(item % 3)


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=4))
def test_a_state_is_a_list_of_what_was_told_and_a_set_of_what_was_not(rounds):
    """Three new items a round, in an order of their own; each is told or given up."""
    state, order = SearchState(2, N), np.random.default_rng(0).permutation(N)
    told: list[int] = []
    lost: set[int] = set()
    number_of = {}
    for number, fates in enumerate(rounds, start=1):
        new = order[3 * number - 3 : 3 * number]
        state.request(1, new, -new.astype(np.float32), np.full(3, np.nan, np.float32), number)
        number_of |= dict.fromkeys(new.tolist(), number)
        for item, fate in zip(new[::-1].tolist(), fates, strict=True):
            if fate:
                state.observe(pairs(1, [item]), np.array([score(item)]))
        known = {item for item, fate in zip(new[::-1].tolist(), fates, strict=True) if fate}
        told += [item for item in new.tolist() if item in known]
        lost |= set(new.tolist()) - known
        state.fail_unobserved()
    count = len(told)
    assert state.n_scored.tolist() == state.requested.tolist() == [0, count]
    assert state.n_failed.tolist() == [0, len(lost)]
    assert set(state.seen()[1].tolist()) - {NO_ITEM} == set(told) | lost
    assert state.known(1).tolist() == [score(item) for item in told]
    picks, best = state.picks(), state.best(N)
    assert picks.items[1, :count].tolist() == told
    assert picks.rounds[1, :count].tolist() == [number_of[item] for item in told]
    assert picks.approx[1, :count].tolist() == [-item for item in told]
    assert best.items[1, :count].tolist() == sorted(told, key=lambda item: (-score(item), item))
    assert (picks.items[1, count:] == NO_ITEM).all()
    assert (best.items[0] == NO_ITEM).all()


def test_what_was_given_up_cannot_be_told_later():
    state, unknown = SearchState(1, 3), np.full(3, np.nan, np.float32)
    state.request(0, np.array([7, 2, 5]), unknown, unknown, 1)
    state.observe(pairs(0, [2, 5]), np.array([1.0, 4.0]))
    state.fail_unobserved()
    with pytest.raises(InputError, match="query 0 was not asked about item 7"):
        state.observe(pairs(0, [7]), np.array([9.0]))
    assert state.known(0).tolist() == [1.0, 4.0]
