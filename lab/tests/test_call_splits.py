"""Budgets divided into anchors and reranked items, and what the papers count."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import matrix

from crossknn.errors import InputError
from crossknn.evaluation.measures import recall, recall_at
from crossknn.evaluation.replay import parts_of, replay, truth_of
from crossknn.linalg import top_k
from crossknn.methods import method, methods
from crossknn_lab.score_matrix import cur
from crossknn_lab.splits import best_split, recall_by_split, retrieved


def anncur(share: float):
    return method(f"anncur(anchors={share}, rcond=1e-15)")


def paper_recall(data, k_i: int, k_r: int, k: int) -> np.ndarray:
    """As the reference code of ANNCUR counts: top k_r of the approximation, reranked, top k."""
    center = data.scale.alpha
    anchors = data.anchor_items[:k_i]
    approx = cur(data.scores - center, np.arange(data.n_anchors), anchors)[data.n_anchors :]
    exact = data.scores[data.n_anchors :]
    filled = np.full(exact.shape, -1e30)
    best = top_k(approx, k_r).items
    np.put_along_axis(filled, best, np.take_along_axis(exact, best, axis=1), axis=1)
    return recall(top_k(filled, min(k, k_r)).items, top_k(exact, k).items)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.75])
def test_the_papers_accounting_is_that_of_its_code(share):
    data = matrix(noise=1.5, anchors=30)
    parts = parts_of(data)
    found = recall_by_split(
        anncur, parts, truth_of(parts, 5), budget=24, ks=[1, 5], shares=[share], accounting="paper"
    )
    for k in (1, 5):
        expected = paper_recall(data, round(24 * share), 24 - round(24 * share), k)
        assert found[k][share].tolist() == expected.tolist()


def test_distinct_pairs_never_find_less_than_the_papers():
    data = matrix(noise=2.0, tests=20)
    parts = parts_of(data)
    truth = truth_of(parts, 10)
    options = {"budget": 20, "ks": [10], "shares": [0.3, 0.5, 0.7]}
    ours = recall_by_split(anncur, parts, truth, **options)[10]
    paper = recall_by_split(anncur, parts, truth, accounting="paper", **options)[10]
    assert all((ours[share] >= paper[share]).all() for share in options["shares"])
    assert sum(ours[s].sum() - paper[s].sum() for s in options["shares"]) > 0


def test_distinct_recall_is_that_of_replay():
    data = matrix()
    parts = parts_of(data)
    found = recall_by_split(anncur, parts, truth_of(parts, 5), budget=20, ks=[5], shares=[0.4])
    (row,) = replay(data, methods("anncur(anchors=0.4, rcond=1e-15)"), [20], [5])
    assert float(found[5][0.4].mean()) == pytest.approx(row.recall, abs=1e-5)


def test_a_budget_that_is_all_anchors_retrieves_nothing_in_the_papers_accounting():
    parts = parts_of(matrix())
    options = {"budget": 1, "ks": [1], "shares": [0.9], "accounting": "paper"}
    assert recall_by_split(anncur, parts, truth_of(parts, 1), **options)[1][0.9].tolist() == [0] * 6


def test_the_same_number_retrieved_and_reranked():
    """The first setting: nested in the depth, and a dual encoder's is its own ranking."""
    data = matrix(noise=1.0)
    parts = parts_of(data)
    truth = truth_of(parts, 5)
    ranked = retrieved(method("anncur(anchors=1)"), parts, calls=10, depth=80)
    assert sorted(ranked[0].tolist()) == list(range(80))
    shorter = retrieved(method("anncur(anchors=1)"), parts, calls=10, depth=12)
    assert np.array_equal(ranked[:, :12], shorter)
    assert recall_at(ranked, truth, [80]).tolist() == [[1.0] * 6]
    encoded = retrieved(method("rerank(retriever=dense)"), parts, calls=0, depth=30)
    (row,) = replay(data, methods("rerank(retriever=dense)"), [30], [5])
    assert float(recall_at(encoded, truth, [30]).mean()) == pytest.approx(row.recall, abs=1e-5)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.lists(st.integers(0, 4), min_size=6, max_size=6), min_size=1, max_size=5))
def test_the_oracle_is_never_worse_on_the_test_queries(rows):
    values = {0.1 * (i + 1): np.array(row) / 4 for i, row in enumerate(rows)}
    dev, test = ({s: v[part] for s, v in values.items()} for part in (slice(3), slice(3, 6)))
    found = best_split(dev, test)
    assert found.oracle_recall.mean == max(v.mean() for v in test.values()) >= found.recall.mean
    assert dev[found.chosen].mean() == max(v.mean() for v in dev.values())
    assert found.recall.mean == test[found.chosen].mean()


def test_ties_go_to_the_smaller_share():
    same = {0.5: np.ones(3), 0.2: np.ones(3)}
    assert best_split(same, same).chosen == best_split(same, same).oracle == 0.2


def test_shares_that_do_not_fit_are_refused():
    one = {0.5: np.ones(3)}
    with pytest.raises(InputError, match=r"shares on dev are \[0.5\] and those on test \[0.2\]"):
        best_split(one, {0.2: np.ones(3)})
    parts = parts_of(matrix())
    with pytest.raises(InputError, match="each must lie between 0 and 1"):
        recall_by_split(anncur, parts, truth_of(parts, 1), budget=9, ks=[1], shares=[1.0])
