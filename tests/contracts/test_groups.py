"""Searches for groups: what holds for every method, and a search in plain loops beside ours."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import METHODS, matrix, run
from test_every_method import made

from crossknn.methods import parse_method
from crossknn.search.groups import Groups
from crossknn.types import NO_ITEM, Observed

N, K = 80, 5
OF = np.random.default_rng(3).integers(0, 30, N)


@pytest.mark.parametrize("spec", METHODS)
@settings(max_examples=8, deadline=None)
@given(budget=st.integers(1, N + 5), seed=st.integers(0, 3), allowed=st.sampled_from((0.4, 1.0)))
def test_the_budget_is_spent_and_nothing_scored_twice(spec, budget, seed, allowed):
    mask = np.random.default_rng(1).random(N) < allowed
    search = run(spec, made(False), budget, seed=seed, allowed=mask, groups=Groups(OF, K))
    expected = int(mask.sum()) if spec == "exact" else min(budget, int(mask.sum()))
    for row in search.picks().items.tolist():
        asked = [item for item in row if item != NO_ITEM]
        assert len(asked) == len({*asked}) == expected
        assert mask[asked].all()


@pytest.mark.parametrize("spec", METHODS)
def test_groups_of_one_item_are_items(spec):
    alone = run(spec, made(False), 30)
    grouped = run(spec, made(False), 30, groups=Groups(np.arange(N), K))
    np.testing.assert_array_equal(grouped.picks().items, alone.picks().items)


def best_groups(scores, items):
    """The best groups among scored items, and the best score of each, by plain loops."""
    best = {}
    for item in items:
        best[OF[item]] = max(best.get(OF[item], -math.inf), scores[item])
    return sorted(best, key=lambda group: -best[group])


def in_order_of_use(ranked, closed):
    """The items of a ranking, best first, as a search for groups takes them."""
    count, places = {}, []
    for rank, item in enumerate(ranked, start=1):
        group = OF[item]
        count[group] = count.get(group, 0) + 1
        places.append((math.inf if group in closed else rank * count[group], rank, item))
    return [item for *_, item in sorted(places)]


@pytest.mark.parametrize(
    "spec",
    [
        "rerank(retriever=dense)",
        "adacur(retriever=dense, rounds=3)",
        "axn(retriever=dense, rounds=5, blend=0.5)",
        "tour(retriever=dense, loss=mse, rounds=3)",
        "kriging(retriever=dense, rounds=4)",
        "kriging(retriever=bm25, rounds=5, use_anchors=false)",
    ],
)
def test_items_are_those_of_a_search_in_plain_loops(spec):
    data, method, budget = made(False), parse_method(spec), 40
    index, queries, scores = data.rows(0, data.n_tests)
    ours = run(spec, data, budget, groups=Groups(OF, K)).picks().items
    plan = method.plan(index, budget, 0)
    ranking, state = plan.retriever.top(queries, N), plan.predictor.start(queries)
    asked = [[] for _ in range(len(queries))]
    for round, size in enumerate(plan.batches):
        if round:
            known = np.array(asked)
            told = np.take_along_axis(scores, known, axis=1)
            counts = np.full(len(asked), known.shape[1])
            state = plan.predictor.update(state, Observed(known, told, counts))
            value = plan.predictor.acquisition(plan.predictor.predict(state))
        for q, items in enumerate(asked):
            ranked = ranking.items[q].tolist()
            if round:
                ranked = [i for i in np.argsort(-value[q], kind="stable") if i not in items]
            closed = best_groups(scores[q], items)[:K]
            items += in_order_of_use(ranked, closed)[:size]
    assert [row[:budget].tolist() for row in ours] == asked


def test_with_all_items_scored_the_answer_is_exact():
    search = run("exact", made(False), N, groups=Groups(OF, K))
    found, members = Groups(OF, K).best(search.best(N), 3)
    _, _, scores = made(False).rows(0, made(False).n_tests)
    for q, row in enumerate(scores):
        order = best_groups(row, range(N))[:K]
        assert OF[found.items[q]].tolist() == order
        expected = []
        for group in order:
            own = sorted(np.flatnonzero(group == OF).tolist(), key=lambda item: -row[item])
            expected += own[:3]
        assert [i for i in members.items[q].tolist() if i != NO_ITEM] == expected


def test_more_groups_are_found_than_by_a_search_for_items():
    data = matrix(n=600, tests=30, d=16, noise=1.0)
    of = (data.dense_items @ data.dense_items[:60].T).argmax(axis=1)  # alike, as in practice
    scores = data.rows(0, 30)[2]
    exact = np.array([[row[of == group].max() for group in range(60)] for row in scores])
    true = np.argsort(-exact, axis=1)[:, :10]

    def recall(groups):
        search = run("kriging(retriever=dense, rounds=10)", data, 25, groups=groups)
        found, _ = Groups(of, 10).best(search.best(25))
        rows = zip(found.items, true.tolist(), strict=True)
        return np.mean([len({*of[row[row >= 0]].tolist()} & {*best}) for row, best in rows]) / 10

    assert recall(Groups(of, 10)) > recall(None) + 0.03


def test_a_group_below_the_least_score_stays_open():
    items, final = np.array([[0, 1, 2]]), np.array([[3.0, np.nan, 1.0]], np.float32)
    of = np.array([0, 1, 2, 0, 2])
    assert Groups(of, 9)._best(items[0], final[0]).tolist() == [0, 2]
    assert Groups(of, 9, 2.0)._best(items[0], final[0]).tolist() == [0]
    assert Groups(of, 1)._best(items[0], final[0]).tolist() == [0]
