"""Exact search by brute force: paid once, whatever interrupts it."""

from __future__ import annotations

import multiprocessing
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import matrix

from crossknn.errors import InputError, ScorerError
from crossknn.evaluation.ground_truth import GroundTruth, brute_force, dense_scores
from crossknn.types import Pairs

ITEMS = [f"item {i % 7} {'x' * (i % 3)}" for i in range(23)]  # some texts come twice
QUERIES = ["one", "two", "three", "one"]


def exact(query: str, item: str) -> float:
    return float(np.float32((hash_of(query) * 31 + hash_of(item) * 17) % 101) / 7)


def hash_of(text: str) -> int:
    return sum((i + 1) * ord(c) for i, c in enumerate(text))


class Counting:
    """A scorer that counts the pairs it is asked for, and may end its process after some."""

    def __init__(self, fingerprint="counting", *, die_after=None, leave_out=None):
        self.fingerprint, self.die_after, self.leave_out = fingerprint, die_after, leave_out
        self.asked: list[tuple[str, str]] = []

    def score(self, pairs: Pairs, queries, items, **limits):
        for p, (q, i) in enumerate(zip(pairs.query, pairs.item, strict=True)):
            pair = (queries[q], items[i])
            if pair == self.leave_out:
                continue
            if len(self.asked) == self.die_after:
                os._exit(9)  # no clean-up of any kind
            self.asked.append(pair)
            yield np.array([p]), np.array([exact(*pair)], np.float32)


def expected() -> np.ndarray:
    return np.array([[exact(q, i) for i in ITEMS] for q in QUERIES], np.float32)


def test_scores_are_exact_and_equal_texts_are_paid_once():
    scorer = Counting()
    scores = dense_scores(scorer, QUERIES, ITEMS)
    assert np.array_equal(scores, expected())
    assert len(scorer.asked) == len({*scorer.asked}) == 3 * len({*ITEMS})


@settings(deadline=None, max_examples=25)
@given(k=st.integers(1, 30), seed=st.integers(0, 99))
def test_the_top_is_that_of_sorting_everything(k, seed):
    scores = np.random.default_rng(seed).integers(0, 6, (3, 20)).astype(np.float32)
    texts = [str(i) for i in range(20)]
    truth = GroundTruth.of_scores(scores, k, queries=["a", "b", "c"], items=texts, scorer="s")
    order = [sorted(range(20), key=lambda i, row=row: (-row[i], i))[:k] for row in scores]
    assert truth.items.tolist() == order
    assert np.array_equal(truth.scores, np.take_along_axis(scores, truth.items, axis=1))


def pay(folder, die_after):
    dense_scores(Counting(die_after=die_after), QUERIES, ITEMS, folder=folder)


def test_a_killed_run_goes_on_and_nothing_is_paid_twice(tmp_path):
    folder = tmp_path / "exact"
    process = multiprocessing.get_context("fork").Process(target=pay, args=(folder, 20))
    process.start()
    process.join()
    assert process.exitcode == 9
    scorer = Counting()
    scores = dense_scores(scorer, QUERIES, ITEMS, folder=folder)
    assert np.array_equal(scores, expected())
    assert len(scorer.asked) == 3 * len({*ITEMS}) - 20


def test_other_runs_share_what_was_paid_and_pay_for_new_queries_only(tmp_path):
    folder = tmp_path / "exact"
    dense_scores(Counting(), QUERIES, ITEMS, folder=folder)
    again, more = Counting(), Counting()
    scores = dense_scores(again, ["three", "one"], ITEMS, folder=folder)
    assert np.array_equal(scores, expected()[[2, 0]])
    assert again.asked == []
    dense_scores(more, ["three", "four"], ITEMS, folder=folder)
    assert {query for query, _ in more.asked} == {"four"}


def test_scores_on_the_disk_are_mapped_and_not_changed(tmp_path):
    scores = dense_scores(Counting(), ["one", "two"], ITEMS, folder=tmp_path / "exact")
    assert isinstance(scores, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        scores[0, 0] = 1


def test_scores_of_another_cross_encoder_are_refused(tmp_path):
    dense_scores(Counting("a"), ["one"], ITEMS, folder=tmp_path / "exact")
    with pytest.raises(InputError, match="are of another cross-encoder"):
        dense_scores(Counting("b"), ["one"], ITEMS, folder=tmp_path / "exact")


def test_a_pair_without_a_score_is_named():
    with pytest.raises(ScorerError, match="query 1 and item 3 could not be scored"):
        dense_scores(Counting(leave_out=("two", ITEMS[3])), QUERIES, ITEMS)


def test_a_ground_truth_survives_the_disk_and_is_shared(tmp_path):
    made = brute_force(Counting(), QUERIES, ITEMS, 5)
    made.save(tmp_path / "truth.npz")
    truth = GroundTruth.load(tmp_path / "truth.npz")
    assert (len(truth), truth.k) == (4, 5)
    order = np.argsort(-expected(), axis=1, kind="stable")[:, :5]
    assert np.array_equal(truth.items, order)
    part = truth.of(["three", "two"], ITEMS, "counting")
    assert np.array_equal(part.items, order[[2, 1]])
    assert np.array_equal(part.scores, made.scores[[2, 1]])
    assert np.array_equal(part.top(2), order[[2, 1], :2])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["truth.npz"]


def test_a_ground_truth_of_something_else_is_refused(tmp_path):
    truth = brute_force(Counting(), QUERIES, ITEMS, 5)
    for changed, words in (
        ((["one"], ITEMS[1:], "counting"), "is of other items"),
        ((["one"], ITEMS, "other"), r"another cross-encoder \(counting, not other\)"),
        ((["one"], ITEMS, None), "another cross-encoder"),
        ((["one", "nine"], ITEMS, "counting"), "lacks 1 of 2 queries, the first of them 'nine'"),
    ):
        with pytest.raises(InputError, match=words):
            truth.of(*changed)
    with pytest.raises(InputError, match="k is 6, and the ground truth holds the 5 best"):
        truth.top(6)
    with pytest.raises(InputError, match=r"must end in \.npz"):
        truth.save(tmp_path / "truth.json")
    with pytest.raises(InputError, match="cannot be written"):
        truth.save(tmp_path / "absent" / "truth.npz")
    np.savez(tmp_path / "m.npz", scores=np.zeros((2, 3)))
    with pytest.raises(InputError, match="holds no ground truth; it has the keys scores"):
        GroundTruth.load(tmp_path / "m.npz")


def test_a_stored_matrix_gives_that_of_its_test_queries():
    data = matrix()
    truth = GroundTruth.of_matrix(data, 7)
    assert truth.queries == data.query_ids[20:]
    order = np.argsort(-data.scores[20:], axis=1, kind="stable")[:, :7]
    assert np.array_equal(truth.items, order)
