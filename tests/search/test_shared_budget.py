"""Expected recall, and budgets that queries share: none is lost, and doubt is where they go."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from synthetic import matrix

import crossknn as ck
from crossknn.errors import InputError
from crossknn.methods import parse_method
from crossknn.search.loop import Search
from crossknn.search.sharing import (
    SharedBudget,
    allocate,
    expected_recall,
    level,
    shared,
    z_scores,
)

SPECS = (
    "kriging(retriever=dense, rounds=4)",
    "kriging(retriever=dense, rounds=6, use_anchors=false, shortlist=20)",
    "gp(retriever=dense, rounds=3, beta=0)",
    "acurank(retriever=dense, batch=3, shortlist=20)",
)
WORLD = matrix(n=40, anchors=12, tests=6)


def started(spec, total, *, k=3, m=WORLD.n_tests, data=WORLD, allowed=None, stop=None):
    index, queries, scores = data.rows(0, m)
    plan = replace(
        parse_method(spec).plan(index, total // m, 0), share=SharedBudget(total=total, k=k)
    )
    if stop is not None:
        plan = replace(plan, stop=stop)
    return Search(plan, queries, index.n, allowed=allowed), scores


def test_expected_recall_by_hand():
    best = np.array([3.0, 2.0, 1.0])
    assert expected_recall(best, np.zeros(9), np.full(9, 0.1)) == 1
    assert expected_recall(best, np.full(9, 9.0), np.full(9, 0.1)) == pytest.approx(0, abs=0.01)
    assert expected_recall(best, np.zeros(0), np.zeros(0)) == 1
    # Poisson: 0, 1, 2 or more of them with the mean 1, where exactly one is certain.
    found = expected_recall(best[::-1], np.array([2.5]), np.array([1e-6]))
    assert found == pytest.approx(np.mean([np.exp(-1), np.exp(-1) * 2, 1]), abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 50)), min_size=1, max_size=9),
    st.integers(0, 300),
)
def test_parts_are_whole_and_sum_to_what_there_is_room_for(rows, count):
    weights, room = np.array([w for w, _ in rows]), np.array([r for _, r in rows])
    given_out = allocate(weights, room, count)
    assert given_out.sum() == min(count, room.sum())
    assert (given_out >= 0).all()
    assert (given_out <= room).all()
    if count and weights.sum() > 0 and (room >= count).all():  # within one of the proportion
        assert (np.abs(given_out - count * weights / weights.sum()) < 1 + 1e-6).all()


@given(st.integers(0, 999), st.integers(1, 30), st.integers(1, 12))
def test_above_the_level_of_the_kth_best_k_items_are_expected(seed, c, k):
    rng = np.random.default_rng(seed)
    known, mean, std = rng.normal(size=5), rng.normal(size=c), rng.uniform(0.05, 1, c)

    def expected(score):
        return (known > score).sum() + ndtr((mean - score) / std).sum()

    found = level(known, mean, std, k)
    if k < c + 5:
        assert expected(found + 1e-3) - 1e-2 <= k <= expected(found - 1e-3) + 1e-2
    standing = z_scores(known, mean, std, k, len(mean))
    np.testing.assert_array_equal(z_scores(known, mean, std, k, 3), standing[:3])
    missing = min(max(k - 5, 0), c)
    assert np.isposinf(standing[:missing]).all()
    np.testing.assert_allclose(standing[missing:], np.sort((mean - found) / std)[::-1][missing:])


def test_a_plan_follows_the_best_standings_and_gives_the_unknown_an_equal_part():
    standing = [np.array([3.0, 2.0, 1.0]), np.array([-1.0, -2.0, -3.0])]
    room = np.array([9, 9, 9])
    assert shared(standing, room[:2], 3, 3).tolist() == [3, 0]
    assert shared(standing, room[:2], 2, 4).tolist() == [2, 0]
    assert shared([None, None, None], room, 6, 18).tolist() == [2, 2, 2]
    assert shared(standing, np.array([1, 9]), 3, 3).tolist() == [1, 2]


@settings(max_examples=25, deadline=None)
@given(
    spec=st.sampled_from(SPECS),
    m=st.integers(1, 6),
    per=st.integers(1, 60),
    extra=st.integers(0, 5),
    seed=st.integers(0, 9),
    lost=st.sampled_from((0.0, 0.1, 1.0)),
    filtered=st.booleans(),
)
def test_the_sum_is_the_total_unless_nothing_is_left(spec, m, per, extra, seed, lost, filtered):
    rng, total = np.random.default_rng(seed), m * per + min(extra, m - 1)
    allowed = rng.random(40) < 0.5 if filtered else None
    search, scores = started(spec, total, k=min(3, per), m=m, allowed=allowed)
    asked = set()
    while len(pairs := search.ask()):
        assert search.n_scored.sum() + len(pairs) <= total
        new = set(zip(pairs.query.tolist(), pairs.item.tolist(), strict=True))
        assert not new & asked
        asked |= new
        told = pairs.take(np.flatnonzero(rng.random(len(pairs)) >= lost))
        search.tell(told, scores[told.query, told.item])
    n_scored = search.n_scored
    gone = np.bincount([q for q, _ in asked], minlength=m) - n_scored
    assert n_scored.sum() <= total
    assert (n_scored <= search.budget).all()
    if n_scored.sum() < total:
        np.testing.assert_array_equal(n_scored, np.minimum(search.budget, search.available - gone))


def test_what_cannot_be_shared_is_said():
    with pytest.raises(
        InputError, match="total_budget is 5, less than one call for each query: give 6"
    ):
        started(SPECS[0], 5)


@pytest.fixture(scope="module")
def searcher():
    items = [{"id": f"d{i}", "text": f"part {i} {'x' * (i % 7)} of {i % 5}"} for i in range(60)]
    index = ck.ItemIndex.build(items, lsa=4)
    overlap = lambda pairs: [len(set(q) & set(t)) + len(t) / 9 for q, t in pairs]  # noqa: E731
    return ck.Searcher(index, overlap, "kriging(rounds=4)")


@pytest.mark.parametrize("together", [1 << 26, 60 * 3])
def test_a_searcher_spends_the_total_also_in_parts(searcher, monkeypatch, together):
    monkeypatch.setattr("crossknn.search.searcher._CELLS", together)
    seen = []
    texts = [f"part {i} of {'x' * i}" for i in range(8)]
    found = searcher.search(
        texts, k=4, budget=ck.Budget(total=99), progress=lambda *done: seen.append(done)
    )
    assert found.n_calls == found.n_scored == 99
    assert found.budget == 12
    assert all(len(hits) == 4 for hits in found)
    assert seen[-1] == (99, 99)
