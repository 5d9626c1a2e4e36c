"""k above the budget: the answer is filled up with predicted items, marked as such."""

from __future__ import annotations

import numpy as np
import pytest
from synthetic import matrix

from crossknn.linalg import top_k
from crossknn.methods import parse_method
from crossknn.search.loop import simulate
from crossknn.types import NO_ITEM

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
