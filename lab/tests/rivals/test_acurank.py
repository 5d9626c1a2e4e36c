"""AcuRank: the retriever's order, and how many calls each query gets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from references.agreement import DATA, batches_of
from references.problem import Problem
from rival_references.acurank import n_uncertain as by_reference
from scipy.special import ndtr
from synthetic import run

import crossknn as ck
from crossknn.retrievers.base import ItemPriors
from crossknn_lab.rivals.acurank import level
from crossknn_lab.stored import StoredMatrix

BUDGET, BATCH, TESTS = 120, 12, 20


@pytest.mark.parametrize("name", ["medquad-two", "wordnet-artifact"])
@pytest.mark.parametrize(("uncertain", "tolerance", "k"), [(10, 0.05, 10), (1, 0.05, 5)])
def test_queries_end_where_the_reference_says(name, uncertain, tolerance, k):
    """Query by query, the same items in the same number of batches, more than three at times."""
    data, rounds = StoredMatrix.load(DATA / f"{name}.npz"), []
    vectors, queries = (a.astype(np.float64) for a in (data.dense_items, data.dense_queries))
    spec = f"acurank(retriever=dense, batch={BATCH}, uncertain={uncertain}, tolerance={tolerance}, k={k})"
    picks = run(spec, data, BUDGET, tests=TESTS).picks()
    for query in range(TESTS):
        row = data.n_anchors + query
        problem = Problem(retriever=vectors @ queries[row])
        batches = batches_of(picks, query, data.scores[row].astype(np.float64))
        asked = {"k": k, "tolerance": tolerance, "candidates": max(100, BUDGET)}
        ends = [
            BATCH * r == BUDGET or by_reference(problem, batches[:r], **asked) < uncertain
            for r in range(1, len(batches) + 1)
        ]
        assert ends == [False] * (len(batches) - 1) + [True]
        order = np.argsort(-problem.retriever, kind="stable")
        for r, batch in enumerate(batches):
            assert set(batch.items.tolist()) == set(order[r * BATCH : (r + 1) * BATCH].tolist())
        rounds.append(len(batches))
    assert max(rounds) > 3
    assert len(set(rounds)) > 2


def test_a_searcher_says_that_queries_ended_and_of_which_top_k():
    """The retriever ranks as the scorer does, so after a few calls nothing is uncertain."""
    texts = [f"car {'very ' * (i % 50)}{i}" for i in range(120)]
    index = ck.ItemIndex.build(texts)
    views = np.array([len(text) for text in texts], np.float32)
    index.add_retriever("views", ItemPriors(views))
    scorer = ck.CallableScorer(lambda pairs: [len(t) + 0.01 * (len(t) % 3) for _, t in pairs])
    searcher = ck.Searcher(index, scorer, "acurank(retriever=views, batch=10, uncertain=1, k=2)")
    found = searcher.search("car", k=3, budget=60)
    assert found.stopped_by == "target"
    assert found.n_calls == 10
    assert "k=3" in found.method


@given(st.integers(0, 999), st.integers(1, 30), st.integers(1, 12))
def test_above_the_level_of_the_kth_best_k_items_are_expected(seed, c, k):
    rng = np.random.default_rng(seed)
    known, mean, std = rng.normal(size=5), rng.normal(size=c), rng.uniform(0.05, 1, c)

    def expected(score):
        return (known > score).sum() + ndtr((mean - score) / std).sum()

    found = level(known, mean, std, k)
    if k < c + 5:
        assert expected(found + 1e-3) - 1e-2 <= k <= expected(found - 1e-3) + 1e-2
