"""Settings are chosen on queries that are neither anchors nor tests at that time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import aligned_matrix, matrix

from crossknn.errors import InputError, SpecError
from crossknn.evaluation.replay import replay
from crossknn.methods import methods
from crossknn_lab.choose import choose, highest
from crossknn_lab.sweep_data import divided

SPECS = [
    "rerank(retriever=bm25)",
    "axn(retriever=bm25, rounds=4)",
    "adacur(retriever=bm25, rounds=4)",
]
DATA = matrix(anchors=30, tests=6, n=120)


def test_the_highest_mean_recall_on_the_dev_queries_wins_at_each_budget():
    found = choose(DATA, SPECS, [10, 40], [1, 10], seed=3)
    dev, _ = divided(DATA, dev=True)
    rows = list(replay(dev, methods("; ".join(SPECS)), [10, 40], [1, 10], seed=3))
    for budget, choice in found.items():
        mean = {
            spec: np.mean([r.recall for r in rows if (r.method, r.budget) == (spec, budget)])
            for spec in SPECS
        }
        assert choice.spec == max(mean, key=mean.get)
        assert choice.recall == pytest.approx(mean, abs=1e-5)
        assert choice.n_queries == 10
    assert len({choice.spec for choice in found.values()}) == 2, "budgets differ here"


def test_test_queries_have_no_say():
    other = replace(DATA, scores=DATA.scores.copy())
    other.scores[30:] = np.random.default_rng(0).normal(size=(6, 120))
    assert choose(DATA, SPECS, [10, 40], [10]) == choose(other, SPECS, [10, 40], [10])


def test_dev_queries_are_no_anchors_meanwhile():
    # With its own scores among the anchors' a query would be found whole.
    exact = matrix(anchors=6, tests=2, n=60, d=30, noise=2.0)
    assert (
        choose(exact, ["adacur(retriever=random, rounds=2)"], [20], [20])[20].recall[
            "adacur(retriever=random, rounds=2)"
        ]
        < 0.9
    )


def test_fewer_dev_queries_and_methods_without_calls():
    found = choose(
        DATA, ["retrieve(retriever=bm25)", "retrieve(retriever=dense)"], [10, 20], [5], queries=4
    )
    assert list(found) == [0]
    assert found[0].n_queries == 4


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(), st.integers(0, 3))))
def test_of_equals_the_first_is_taken(values):
    found = highest(values)
    assert set(found) == {key for key, _, _ in values}
    for key, what in found.items():
        mine = [(value, w) for k, w, value in values if k == key]
        top = max(value for value, _ in mine)
        assert what == next(w for value, w in mine if value == top)


def test_what_cannot_be_chosen():
    with pytest.raises(InputError, match="there is nothing to choose from"):
        choose(DATA, [], [10], [1])
    with pytest.raises(SpecError, match="no option 'round'"):
        choose(DATA, ["axn(round=1)"], [10], [1])
    with pytest.raises(InputError, match="2 are needed at least"):
        choose(matrix(anchors=1), SPECS, [10], [1])
    with pytest.raises(InputError, match="were fitted to all its anchor queries"):
        choose(aligned_matrix(), SPECS, [10], [1])
