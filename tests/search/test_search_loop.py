"""The loop itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import matrix

from crossknn.errors import InputError, ScorerError
from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn.methods.base import Plan, expected_recall
from crossknn.methods.rerank import FirstStageScores
from crossknn.search.loop import Search, simulate
from crossknn.types import NO_ITEM, Pairs, Queries
from crossknn_lab.stored import StoredRetriever


@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=7, max_size=7), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_top_k_is_a_stable_sort(rows, count):
    scores = np.array(rows, np.float32)
    scores[scores == -3] = -np.inf
    found = top_k(scores, count).items
    for row, items in zip(scores, found, strict=True):
        order = [i for i in np.argsort(-row, kind="stable") if row[i] > -np.inf][:count]
        assert items[items != NO_ITEM].tolist() == order


def started(budget: int = 12, **options):
    index, queries, scores = matrix(tests=2).rows(0, 2)
    plan = parse_method("axn(retriever=dense, rounds=3)").plan(index, budget, 0)
    return Search(plan, queries, index.n, **options), scores


def planned(retriever, batches):
    return Plan(retriever=retriever, predictor=FirstStageScores(retriever), batches=batches)


def test_a_first_stage_that_runs_short_is_topped_up_in_item_order():
    cheap = np.full((1, 6), -np.inf, np.float32)
    cheap[0, [4, 2]] = [2, 1]
    search = Search(planned(StoredRetriever("x"), (5,)), Queries(["q"], {"x": cheap}), 6)
    assert search.ask().item.tolist() == [4, 2, 0, 1, 3]


N = 48


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), max_size=4), st.integers(0, 9))
def test_a_search_is_a_list_of_what_was_told_and_a_set_of_what_was_not(rounds, seed):
    """Three items a round in the retriever's order; each is told, or not, and then it has failed."""
    order = np.random.default_rng(seed).permutation(N)
    cheap = np.zeros((2, N), np.float32)
    cheap[1, order] = -np.arange(N)
    plan = planned(StoredRetriever("x"), (3,) * (len(rounds) + 1))
    search = Search(plan, Queries(["other", "this"], {"x": cheap}), N)
    search.end(0)
    told, lost, number_of = [], set(), {}
    for number, fates in enumerate(rounds, start=1):
        pairs = search.ask()
        assert set(pairs.query.tolist()) == {1}
        assert pairs.item.tolist() == order[len(number_of) :][: len(pairs)].tolist()
        number_of |= dict.fromkeys(pairs.item.tolist(), number)
        kept = np.flatnonzero(np.resize(fates, len(pairs)))[::-1]
        search.tell(pairs.take(kept), (pairs.item[kept] % 3).astype(np.float32))
        told += pairs.item[np.sort(kept)].tolist()
        lost = set(number_of) - set(told)
    asked = search.ask()
    assert not set(asked.item.tolist()) & set(number_of)
    assert search.n_scored.tolist() == [0, len(told)]
    assert search.n_failed == len(lost)
    picks, best = search.picks(), search.best(N)
    count = len(told)
    assert picks.items[1, :count].tolist() == told == search.observed().items[1, :count].tolist()
    assert picks.rounds[1, :count].tolist() == [number_of[item] for item in told]
    assert picks.approx[1, :count].tolist() == cheap[1, told].tolist()
    assert best.items[1, :count].tolist() == sorted(told, key=lambda item: (-(item % 3), item))
    assert (picks.items[1, count:] == NO_ITEM).all()
    assert (best.items[0] == NO_ITEM).all()
    if lost:
        late = Pairs(np.array([1]), np.array([min(lost)]))
        with pytest.raises(InputError, match=f"query 1 was not asked about item {min(lost)}"):
            search.tell(late, np.zeros(1))


def test_what_is_not_a_score_is_refused():
    search, _ = started()
    pairs = search.ask()
    with pytest.raises(ScorerError, match="3 scores were given for"):
        search.tell(pairs, np.zeros(3))
    bad = np.zeros(len(pairs))
    bad[1] = np.nan
    with pytest.raises(ScorerError, match=f"query 0 and item {pairs.item[1]} is nan"):
        search.tell(pairs, bad)
    stranger = Pairs(np.array([0]), np.setdiff1d(np.arange(80), pairs.item)[:1])
    with pytest.raises(InputError, match="was not asked about item"):
        search.tell(stranger, np.zeros(1))
    with pytest.raises(InputError, match="the filter has shape"):
        started(allowed=np.ones(3, np.bool_))


def test_expected_recall_by_hand():
    best = np.array([3.0, 2.0, 1.0])
    assert expected_recall(best, np.zeros(9), np.full(9, 0.1)) == 1
    assert expected_recall(best, np.full(9, 9.0), np.full(9, 0.1)) == pytest.approx(0, abs=0.01)
    assert expected_recall(best, np.zeros(0), np.zeros(0)) == 1
    # Poisson: 0, 1, 2 or more of them with the mean 1, where exactly one is certain.
    found = expected_recall(best[::-1], np.array([2.5]), np.array([1e-6]))
    assert found == pytest.approx(np.mean([np.exp(-1), np.exp(-1) * 2, 1]), abs=1e-6)


# k above the budget: filled up with predicted items

SPECS = ("auto", "axn(ridge=0.3)", "adacur", "gar(batch=5)", "rerank(retriever=dense)")


def searched(spec: str, budget: int, **options):
    data = matrix(anchors=24, tests=6)
    index, queries, scores = data.rows(0, data.n_tests)
    return simulate(parse_method(spec).plan(index, budget, 0), queries, scores, **options), scores


@pytest.mark.parametrize("spec", SPECS)
def test_scored_items_come_first_and_unscored_ones_by_prediction(spec):
    search, _ = searched(spec, 10)
    found, best = search.filled(30), search.best(30)
    assert best.items.shape[1] == 10
    assert found.items[:, :10].tolist() == best.items.tolist()
    assert all(len(set(row)) == 30 for row in found.items.tolist())
    assert np.isnan(found.scores[:, 10:]).all()
    assert (np.diff(found.approx[:, 10:], axis=1) <= 0).all()
    assert not (found.items == NO_ITEM).any()


def test_predicted_items_are_likelier_true_than_the_retrievers_next():
    search, scores = searched("auto", 10)
    truth = top_k(scores, 30).items
    retrieved = searched("retrieve(retriever=dense)", 10)[0].best(30).items

    def recall(items):
        return np.mean([np.isin(t, i).mean() for t, i in zip(truth, items, strict=True)])

    assert recall(search.filled(30).items) > recall(retrieved)


@given(st.lists(st.integers(-1, 12), max_size=9), st.integers(1, 45))
def test_a_hurried_search_keeps_its_budget_in_fewer_rounds(rounds, budget):
    cheap = np.arange(N, dtype=np.float32)[None]
    plan = planned(StoredRetriever("x"), (3,) * (budget // 3) + (budget % 3,) * (budget % 3 > 0))
    search, sizes, most = Search(plan, Queries(["q"], {"x": cheap}), N), [], 99
    for allowed in [*rounds, *[99] * 20]:
        search.hurry(allowed)
        most = min(most, max(allowed, 1) + len(sizes))
        pairs = search.ask()
        sizes += [len(pairs)] * (len(pairs) > 0)
        search.tell(pairs, np.zeros(len(pairs)))
    assert sum(sizes) == budget
    assert len(sizes) <= most


@pytest.mark.parametrize(
    ("rounds", "sizes"), [(12, [8] + [1] * 10 + [2]), (2, [10, 10]), (1, [20])]
)
def test_a_large_first_round_takes_none_from_the_others(rounds, sizes):
    plan = planned(StoredRetriever("x"), (8, *[1] * 12))
    search, asked = Search(plan, Queries(["q"], {"x": np.zeros((1, N), np.float32)}), N), []
    search.hurry(rounds)
    while len(pairs := search.ask()):
        asked.append(len(pairs))
        search.tell(pairs, np.zeros(len(pairs)))
    assert asked == sizes
