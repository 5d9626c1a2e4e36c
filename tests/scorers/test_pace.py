"""What rounds a scorer affords, by the measured time of its batches."""

import time

import numpy as np
import pytest
from tiny_models import scores_of

import crossknn as ck
from crossknn.scorers.streaming import Pace

FREE = {"largest": 0, "workers": 1, "apart": False}


def watched(seconds, sizes=(8, 5, 1, 4, 1, 4, 1, 4, *[5] * 16)):
    """A pace that has seen batches of these sizes, of which it was told `seconds(size)`."""
    pace = Pace()
    for size in sizes:
        pace.add(size, 3.0 * size, seconds(size))  # cost 3 a pair
    return pace


@pytest.mark.parametrize(
    ("fixed", "each", "rounds"),
    [
        (0.0, 0.01, 20),  # a model on a CPU
        (0.002, 0.0016, 20),
        (0.06, 0.0, 2),  # a batch of any size takes the same: 0.06 + 0.05 s are allowed
        (0.05, 0.001, 2),  # 0.15 s in one batch, and 0.06 s more
        (0.01, 0.001, 5),  # 0.11 s in one batch, and 0.05 s more
        (0.005, 0.0002, 10),  # 0.025 s in one batch, and 0.05 s more
    ],
)
def test_rounds_take_four_tenths_of_the_time_more_or_50_ms(fixed, each, rounds):
    pace = watched(lambda size: fixed + each * size)
    np.testing.assert_allclose(pace.curve, (fixed, each), atol=1e-9)
    assert pace.rounds(20, 100, 1, **FREE) == rounds
    assert pace.rounds(rounds - 1, 100, 1, **FREE) == rounds - 1
    # Of ten queries each round scores ten times as many pairs.
    assert pace.rounds(20, 100, 10, **FREE) >= rounds
    assert [pace.rounds(20, budget, 1, **FREE) for budget in (0, 1)] == [20, 1]


def test_rounds_as_large_as_batches_may_be_cost_nothing():
    pace = watched(lambda size: 0.06)
    # 384 pairs in batches of 64 take six of them, whatever the rounds; four tenths more are 8.4.
    assert pace.rounds(20, 384, 1, **FREE | {"largest": 64}) == 8
    # Requests of one query each, four at once: eight queries take two requests after each other.
    requests = {"largest": 64, "workers": 4, "apart": True}
    assert pace.rounds(20, 64, 8, **requests) == 2
    assert pace.rounds(20, 64, 8, **FREE | {"largest": 64}) == 11


def test_if_each_pair_is_a_request_rounds_fill_the_workers():
    pace = watched(lambda size: 0.5, sizes=[1] * 20)
    assert pace.curve is None  # of one size alone
    assert pace.rounds(20, 100, 1, **FREE) == 20
    how = {"largest": 1, "workers": 4, "apart": True}
    # 100 pairs take 25 requests after each other; 17 rounds of 5 or 6 pairs take 34.
    assert pace.rounds(20, 100, 1, **how) == 17
    assert pace.rounds(20, 10, 1, **how) == 4


@pytest.mark.parametrize(("workers", "rounds"), [(2, 20), (4, 17), (8, 18), (16, 12)])
def test_rounds_leave_few_of_the_cores_idle(workers, rounds):
    pace = watched(lambda size: 0.01 * size, sizes=[1, *[2, 3] * 9])
    how = {"largest": 1, "workers": workers, "apart": False}
    # 20 rounds take 16 cores as long as 20 pairs, all pairs at once as long as 7.
    assert pace.rounds(20, 100, 1, **how) == rounds
    assert pace.rounds(20, 100, 32, **how) == 20  # many queries leave none idle
    for size in (1, 2, 3) * 22:
        pace.add(size, 3.0 * size, 0.0001 * size)
    assert pace.rounds(20, 100, 1, **how) == 20  # fewer would save less than 50 ms


@pytest.mark.parametrize(("threads", "rounds"), [(1, 20), (2, 20), (16, 12)])
def test_a_cross_encoder_counts_its_cores(threads, rounds):
    scorer = ck.CrossEncoder(threads=threads)
    scorer.pace.each = 0.01
    assert scorer.rounds(20, 100, 1) == rounds


def test_times_that_vary_tenfold_are_no_fixed_time():
    rng = np.random.default_rng(0)
    for _ in range(20):
        pace = watched(lambda size: 0.01 * size * rng.uniform(1, 10), sizes=[8, *[5, 1, 4] * 10])
        assert pace.rounds(20, 100, 1, **FREE) >= 15


def test_a_scorer_that_becomes_slower_is_measured_anew():
    sizes = [5, 1, 4] * 22
    pace = watched(lambda size: 0.001 + 0.002 * size, sizes)
    assert pace.rounds(20, 100, 1, **FREE) == 20
    for size in sizes:
        pace.add(size, 3.0 * size, 0.1 + 0.002 * size)
    np.testing.assert_allclose(pace.curve, (0.1, 0.002))
    assert pace.rounds(20, 100, 1, **FREE) == 2


def sleeping(seconds, **options):
    calls = []

    def fn(pairs):
        calls.append(len(pairs))
        time.sleep(seconds(len(pairs)))
        return [len({*query} & {*item}) + len(item) / 99 for query, item in pairs]

    return ck.CallableScorer(fn, **options), calls


def test_batches_are_divided_only_if_a_search_asks_for_rounds():
    scorer, calls = sleeping(lambda _: 0.005, batch=4)
    scores_of(scorer, ["a"], [*"abcdefgh"] * 4)
    assert calls == [4] * 8
    assert scorer.rounds(20, 100, 1) == 20
    scores_of(scorer, ["a"], [*"abcdefgh"] * 2)
    assert calls[8:] == [1, 3, 1, 3, 1, 3, 4]
    assert scorer.pace.curve is not None


def test_a_search_makes_fewer_rounds_of_a_scorer_with_slow_batches():
    index = ck.ItemIndex.build([f"text {n} on {'abcdefgh'[n % 8]}" for n in range(300)], lsa=8)
    scorer, calls = sleeping(lambda _: 0.06, batch=100)
    searcher = ck.Searcher(index, scorer)
    first = searcher.search("b text", budget=100)
    assert first.n_calls == sum(calls) == 100
    assert 4 <= first.rounds <= 12
    assert searcher.search("c text", budget=100).rounds <= 3
    fixed = searcher.search("d text", budget=100, method="auto(rounds=20)", trace=True)
    assert fixed.rounds == 20
    # The picks of given rounds do not depend on the scorer's speed.
    fast = ck.Searcher(index, sleeping(lambda _: 0.0)[0]).search("d text", budget=100, trace=True)
    assert fast.rounds == 20
    assert [hit.id for hit in fast.trace[0]] == [hit.id for hit in fixed.trace[0]]
    assert fast.to_dict()["rounds"] == 20
