"""How kriging divides a budget: equal rounds, the first never too small to fit a trend."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from synthetic import matrix

from crossknn.methods import method

INDEX, _, _ = matrix().rows(0, 1)


@given(budget=st.integers(1, 400), rounds=st.integers(1, 30))
def test_the_first_round_is_never_too_small_for_a_trend_and_all_is_spent(budget, rounds):
    batches = method(f"kriging(retriever=dense, rounds={rounds})").plan(INDEX, budget, 0).batches
    assert sum(batches) == budget
    assert len(batches) <= rounds
    assert batches[0] == min(max(budget // rounds, 8), budget)
    later = batches[1:]
    assert all(a - 1 <= b <= a for a, b in pairwise(later))
    assert not later or min(later) >= 1
