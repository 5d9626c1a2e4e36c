"""Diagnoses: figures by their definitions, from the searches that a user would make."""

from __future__ import annotations

import json

import numpy as np
import pytest

import crossknn as ck
from crossknn.errors import InputError
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.evaluation.verdict import RERANK, RETRIEVER, SEARCH, Way
from crossknn.extend import Queries, open_retriever
from crossknn.scorers.plain import MatrixScorer

METHOD = "axn(retriever=lsa, rounds=3, ridge=0.3)"


def test_figures_by_their_definitions(world):
    index, queries, scores, qrels = world
    steps, options = [], {"budgets": [30, 15], "method": METHOD}
    found = ck.diagnose(
        *(index, MatrixScorer(scores), queries, qrels),
        **options,
        progress=lambda *step: steps.append(step),
    )
    assert steps[-1] == (69 * 45 * 2, 69 * 45 * 2)
    first = open_retriever(index, "lsa").top(Queries(queries.texts), 80).items
    assert [*found.values] == [15, 30]
    for budget, values in found.values.items():
        gold = [set(map(int, qrels[f"q{q}"])) for q in range(69)]
        reach = [len(g - {*first[q, :budget].tolist()}) / len(g) for q, g in enumerate(gold)]
        assert found.reach[budget].mean == pytest.approx(np.mean(reach))
        trust = np.mean(values[RERANK]) - np.mean(values[RETRIEVER])
        assert found.trust[budget].difference == pytest.approx(trust)
    assert found.queries == 69
    shown = str(found).splitlines()
    assert shown[0] == found.sentence
    assert shown[1].split() == ["calls", "retriever", "rerank", "search", "reach"]
    assert f"{found.reach[15].mean:.0%}" in shown[2]
    assert shown[-1].split()[:5] == ["30", "rerank", "-", "retriever", f"{trust:+.3f}"]
    said = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert said["sentence"].startswith(said["verdict"]["sentence"])
    assert set(said["verdict"]) == {"decision", "way", "budget", "than", "gain", "sentence"}


def test_fused_ways_are_those_of_a_fused_search(world):
    known, queries, scores, qrels = world
    index, scorer = ck.ItemIndex.build(known.items, lsa=6), MatrixScorer(scores)
    ck.fit_fusion(index, scorer, queries)
    method = "kriging(rounds=2, vectors=lsa)"
    found = ck.diagnose(index, scorer, queries, qrels, budgets=[20], method=method)
    assert (found.retriever, len(found.values[20])) == ("bm25", 6)
    task = TaskMeasures(Judgements.from_qrels(qrels, queries.ids, index.items.ids), ["nDCG@10"])
    searcher = ck.Searcher(index, scorer, fuse="auto")
    for way, spec in ((Way("rerank", fused=True), "rerank"), (Way("search", fused=True), method)):
        hits = searcher.search(queries, k=10, budget=20, method=spec)
        items = np.array([[index.items.position(hit.id) for hit in row] for row in hits])
        [ours] = task.values(items).values()
        np.testing.assert_allclose(found.values[20][way], ours[:69])
    plain = ck.diagnose(index, scorer, queries, qrels, budgets=[20], method=method, fuse=None)
    assert {*plain.values[20]} == {RETRIEVER, RERANK, SEARCH}
    for way, values in plain.values[20].items():
        np.testing.assert_array_equal(values, found.values[20][way])


def test_a_fusion_of_another_cross_encoder_is_not_read(world):
    known, queries, scores, qrels = world
    index = ck.ItemIndex.build(known.items, lsa=3)
    fitted = {"weights": {"bm25": 1}, "deviations": {"exact": 1, "bm25": 1}}
    index.put_artifact("fusion", fitted | {"fingerprint": "another"}, {})
    found = ck.diagnose(index, MatrixScorer(scores), queries, qrels, budgets=[80], method=METHOD)
    assert not any(way.fused for way in found.values[80])
    assert found.sentence.endswith("searching can hardly find more.")  # of 80 items


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"qrels": {f"q{q}": {"1": 1} for q in range(4)}}, "in the index, and got 4"),
        ({"qrels": {f"q{q}": {"1": 0} for q in range(9)}}, "in the index, and got 0"),
        ({"qrels": {f"q{q}": {"gone": 1} for q in range(9)}}, "in the index, and got 0"),
        ({"qrels": {"other": {"1": 1}}}, "the qrels judge none"),
        ({"queries": ["a", "b"]}, "queries with ids"),
        ({"budgets": [20, 81]}, "give budgets of at most 80"),
        ({"budgets": [0]}, "a budget is 0"),
        ({"budgets": []}, "give budgets"),
        ({"measure": "nDCG@x"}, "unknown measure 'nDCG@x'"),
        ({"method": "retrieve(retriever=lsa)"}, "a method with calls"),
        ({"method": "adacur"}, "anchor"),
        ({"fuse": {"dense": 1}}, "which the index lacks"),
    ],
)
def test_what_cannot_be_diagnosed_is_refused_before_anything_is_scored(world, options, words):
    index, queries, _, qrels = world
    scored = []
    given = {"queries": queries, "qrels": qrels, "method": METHOD, "budgets": [20]} | options
    with pytest.raises(InputError, match=words) as raised:
        ck.diagnose(index, lambda pairs: scored.append(pairs), **given)
    assert not scored
    assert "\n" not in str(raised.value)
