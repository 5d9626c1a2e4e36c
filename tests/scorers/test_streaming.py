"""What every scorer does: batches that fail, what is not a score, deadlines; stored scores."""

import threading
import time

import numpy as np
import pytest
from tiny_models import collect, grid, scores_of

from crossknn import CallableScorer
from crossknn.errors import InputError, ScorerError
from crossknn.scorers.plain import MatrixScorer
from crossknn.scorers.streaming import NothingScoredError
from crossknn.types import Pairs

QUERIES = ["q0", "q1"]
ITEMS = [f"item {i}" for i in range(20)]


def by_text(pairs):
    return [float(q[1:]) * 100 + float(i.split()[1]) for q, i in pairs]


EXPECTED = np.array([q * 100.0 + i for q in range(2) for i in range(20)])


@pytest.mark.parametrize(("bad", "batch"), [({7}, 50), ({0, 1, 19}, 7), ({*range(1, 20)}, 20)])
def test_a_bad_item_never_fails_the_others_and_is_logged(caplog, bad, batch):
    def fn(pairs):
        if any(int(i.split()[1]) in bad for _, i in pairs):
            raise ValueError("cannot read this")
        return by_text(pairs)

    found = scores_of(CallableScorer(fn, "mine", batch=batch), QUERIES, ITEMS)
    expected = np.where(np.isin(np.tile(np.arange(20), 2), list(bad)), np.nan, EXPECTED)
    np.testing.assert_array_equal(found, expected)
    [record] = caplog.records  # one for all pairs of a call
    assert record.getMessage() == (
        f"the scorer 'mine' could not score {2 * len(bad)} pairs, the first the query 'q0' with the "
        f"item 'item {min(bad)}' (position {min(bad)}): ValueError: cannot read this"
    )


def test_out_of_memory_is_retried_smaller_and_remembered():
    sizes = []

    def fn(pairs):
        sizes.append(len(pairs))
        if len(pairs) > 5:
            raise MemoryError
        return by_text(pairs)

    found = scores_of(CallableScorer(fn, batch=20), QUERIES, ITEMS)
    np.testing.assert_array_equal(found, EXPECTED)
    assert sizes[:3] == [20, 10, 5]
    assert max(sizes[3:]) == 5


@pytest.mark.parametrize(("m", "n_failed"), [(1, 20), (2, 32)])
def test_every_pair_failing_is_an_error_with_the_last_cause(m, n_failed):
    def fn(pairs):
        raise KeyError("no such model")

    message = f"any of {n_failed} pairs; the last failure: KeyError: 'no such model'"
    with pytest.raises(NothingScoredError, match=message):
        collect(CallableScorer(fn), grid(m, 20), QUERIES, ITEMS)


@pytest.mark.parametrize(
    "answer", [lambda n: [1.0] * (n - 1), lambda n: 1.0, lambda n: np.zeros((n, 2))]
)
def test_wrong_counts(answer):
    column = CallableScorer(lambda pairs: np.array(by_text(pairs))[:, None])
    np.testing.assert_array_equal(scores_of(column, QUERIES, ITEMS), EXPECTED)
    scorer = CallableScorer(lambda pairs: answer(len(pairs)))
    with pytest.raises(ScorerError, match="scores of 20 pairs and gave"):
        collect(scorer, grid(1, 20), QUERIES, ITEMS)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_what_is_not_finite_is_an_error_naming_query_and_item(value):
    def fn(pairs):
        return [value if i == "item 3" else 0.0 for _, i in pairs]

    with pytest.raises(
        ScorerError, match=r"the query 'q1' with the item 'item 3' \(position 3\)"
    ) as caught:
        collect(CallableScorer(fn), Pairs(np.ones(20, int), np.arange(20)), QUERIES, ITEMS)
    assert caught.value.query == 1


def test_stopping_between_batches_computes_no_more():
    asked = []

    def fn(pairs):
        asked.append(len(pairs))
        return by_text(pairs)

    stream = CallableScorer(fn, batch=4).score(grid(2, 20), QUERIES, ITEMS)
    next(stream)
    next(stream)
    stream.close()
    assert asked == [4, 4]


def test_with_little_time_batches_shrink_to_what_fits():
    clock = []

    def fn(pairs):
        time.sleep(0.01 * len(pairs))
        clock.append(len(pairs))
        return by_text(pairs)

    scorer = CallableScorer(fn, batch=40)
    began = time.monotonic()
    list(scorer.score(grid(2, 20), QUERIES, ITEMS, time_left=0.2))
    assert clock[0] == 4
    assert 4 <= sum(clock) < 40
    assert time.monotonic() - began < 1
    cancel = threading.Event()
    stream = scorer.score(grid(2, 20), QUERIES, ITEMS, cancel=cancel)
    cancel.set()
    assert list(stream) == []


SCORES = np.random.default_rng(0).normal(size=(4, 9)).astype(np.float16)


def test_a_matrix_is_looked_up_by_position():
    texts, places = list("abcde"), [str(i) for i in range(10)]
    found = scores_of(MatrixScorer(SCORES), texts[:4], places[:9])
    np.testing.assert_array_equal(found.reshape(4, 9), SCORES)
    for m, n, what in ((5, 9, "query 4"), (4, 10, "item 9")):
        with pytest.raises(InputError, match=f"no stored scores for {what}, only for"):
            MatrixScorer(SCORES).score(grid(m, n), texts, places)
