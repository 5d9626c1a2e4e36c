"""Anchor items chosen by their exact scores (ADACUR 3.2)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import matrix

from crossknn.errors import InputError, SpecError
from crossknn.evaluation.measures import exact_top
from crossknn.evaluation.oracle import OracleIndex
from crossknn.evaluation.replay import answer, replay
from crossknn.methods import method, methods
from crossknn.retrievers.specs import open_retriever
from crossknn.spec import parse
from crossknn.types import NO_ITEM


def picks(spec: str, count: int, *, seed: int = 0, allowed=None) -> np.ndarray:
    index, queries, scores = matrix().rows(0, 6)
    stage = open_retriever(OracleIndex(index, scores), parse(spec), seed)
    return stage.top(queries, count, allowed).items


def test_top_items_after_the_masked_ones():
    scores = matrix().rows(0, 6)[2]
    assert picks("oracle_topk", 7).tolist() == exact_top(scores, 7).tolist()
    assert picks("oracle_topk(masked=4)", 7).tolist() == exact_top(scores, 11)[:, 4:].tolist()


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(["topk", "softmax"]),
    masked=st.integers(0, 79),
    epsilon=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
    count=st.integers(1, 90),
    seed=st.integers(0, 3),
)
def test_items_differ_none_is_masked_and_the_share_of_chance_is_exact(
    kind, masked, epsilon, count, seed
):
    best = exact_top(matrix().rows(0, 6)[2], 80)
    expected = min(count, 80 - masked)
    greedy = expected - round(epsilon * expected)
    for row, order in zip(
        picks(f"oracle_{kind}(masked={masked}, epsilon={epsilon})", count, seed=seed),
        best,
        strict=True,
    ):
        assert len(set(row.tolist())) == len(row) == expected
        assert not set(row.tolist()) & set(order[:masked].tolist())
        if kind == "topk":
            assert row[:greedy].tolist() == order[masked : masked + greedy].tolist()


def test_softmax_samples_in_proportion_to_the_exponential():
    data = matrix()
    index, queries, scores = data.rows(0, 1)
    p = np.exp(scores[0] - scores[0].max())
    p /= p.sum()
    stages = (
        open_retriever(OracleIndex(index, scores), parse("oracle_softmax"), seed)
        for seed in range(600)
    )
    counts = np.bincount([int(s.top(queries, 1).items[0, 0]) for s in stages], minlength=80) / 600
    assert counts == pytest.approx(p, abs=4 * float(np.sqrt(p * (1 - p) / 600).max()))


def test_chance_is_by_seed_and_covers_the_items():
    first, again, other = (picks("oracle_topk(epsilon=1)", 10, seed=s) for s in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    drawn = np.concatenate(
        [picks("oracle_topk(masked=5, epsilon=1)", 40, seed=s) for s in range(9)]
    )
    best = exact_top(matrix().rows(0, 6)[2], 80)
    assert all({*drawn[q::6].ravel().tolist()} == {*best[q, 5:].tolist()} for q in range(6))


def test_a_filter_is_kept():
    allowed = np.arange(80) % 2 == 0
    for row in picks("oracle_softmax(masked=3, epsilon=0.5)", 50, allowed=allowed):
        assert (row[row != NO_ITEM] % 2 == 0).all()


def test_replay_has_them_wherever_a_first_stage_is_named():
    specs = (
        "rerank(retriever=oracle_topk), rerank(retriever=oracle_topk(masked=5)), "
        "adacur(retriever=oracle_softmax(epsilon=0.5), rounds=1, split=0.5), "
        "anncur(retriever=oracle_topk(masked=5, epsilon=0.5)), rerank(retriever=hybrid(oracle_topk, dense))"
    )
    rows = list(replay(matrix(), methods(specs), [20], [5]))
    assert [row.calls for row in rows] == [20.0] * 5
    assert [rows[0].recall, rows[1].recall] == [1, 0]


def test_masked_items_can_still_be_reranked():
    """They are kept from the anchors only: the approximation may find them (figure 5a)."""
    data = matrix(noise=0.0, anchors=40)
    (row,) = replay(
        data, methods("adacur(retriever=oracle_topk(masked=5), rounds=1, split=0.5)"), [40], [5]
    )
    assert row.recall == 1


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("oracle_topk(mask=3)", "no option 'mask': did you mean masked"),
        ("oracle_topk(epsilon=1.5)", "epsilon must lie between 0 and 1"),
        ("oracle_softmax(masked=-1)", "masked must be 0 or more"),
        ("oracle_topk(masked=80)", "masks all 80 items"),
    ],
)
def test_wrong_options(spec, words):
    with pytest.raises(InputError, match=words):
        picks(spec, 3)


def test_a_search_that_does_not_know_the_scores_has_none():
    index, queries, scores = matrix().rows(0, 2)
    spec = "rerank(retriever=oracle_topk(masked=1))"
    with pytest.raises(SpecError, match="oracle_topk"):
        method(spec).plan(index, 10, 0)
    assert answer(method(spec), index, queries, scores, budget=10, k=1, seed=0).calls == 20
