"""Methods compared on known scores and on scores computed on demand."""

from __future__ import annotations

import numpy as np
import pytest

from crossknn import CallableScorer
from crossknn.evaluation.compare import compare
from crossknn.methods import parse_methods
from crossknn.retrievers.base import WeightedSum
from crossknn.retrievers.specs import open_retriever
from crossknn.scorers.plain import MatrixScorer
from crossknn.search.fusion import Fusion


@pytest.mark.parametrize("fused", [False, True])
def test_scoring_on_demand_gives_the_measures_of_known_scores(world, fused):
    index, queries, scores, qrels = world
    specs = "rerank(retriever=lsa), axn(retriever=bm25, rounds=4, ridge=0.3), kriging(retriever=lsa, rounds=3)"
    methods = parse_methods(f"{specs}, retrieve(retriever=bm25)")
    fusion = None
    if fused:
        fusion = Fusion(WeightedSum([open_retriever(index, n) for n in ("lsa", "bm25")], (2, 1)))
    options = {"qrels": qrels, "measures": ["nDCG@10", "accuracy_normalised"], "fusion": fusion}
    asked, steps = [], []

    def fn(pairs):
        asked.extend(pairs)
        return [scores[where[query], place[item]] for query, item in pairs]

    where = {text: q for q, text in enumerate(queries.texts)}
    place = {text: i for i, text in enumerate(index.items.texts)}
    scorer, told = CallableScorer(fn), lambda *step: steps.append(step)
    found = list(compare(index, queries, scorer, methods, [10, 30], progress=told, **options))
    _, *known = compare(index, queries, scores, methods, [10, 30], [5], **options)
    for ours, theirs in zip(found, known, strict=True):
        assert (ours.method, ours.budget) == (theirs.method, theirs.budget)
        assert np.array_equal(ours.calls, theirs.calls)
        for name, values in theirs.task.items():
            np.testing.assert_array_equal(ours.task[name], values)
    assert len(asked) == len(set(asked)) < 70 * 3 * 30
    assert steps[-1] == (70 * 3 * 40, 70 * 3 * 40)
    (said,) = found[1].rows()
    assert not {"k", "recall", "ci"} & said.keys()
    assert (said["n_queries"], said["unjudged"], said["calls"]) == (70, 1, 30)
    assert ("fused" in said) == fused
    gold = np.argsort(-scores, axis=1)[:, :10]
    [best] = compare(index, queries, MatrixScorer(scores), parse_methods("exact"), [80], **options)
    assert fused or np.array_equal(best.items[:, :10], gold)


def test_pairs_that_cannot_be_scored_are_replaced(world):
    index, queries, _, qrels = world
    bad = index.items.texts[7]

    def fn(pairs):
        if any(item == bad for _, item in pairs):
            raise ValueError("no")
        return [float(len(item)) for _, item in pairs]

    one = CallableScorer(fn, batch=1)
    methods = parse_methods("rerank(retriever=fixed)")
    (found,) = compare(index, queries.take(range(6)), one, methods, [79], qrels=qrels)
    assert found.calls.tolist() == [79] * 6
    assert 7 not in found.items
