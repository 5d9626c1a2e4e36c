"""Replay on stored matrices: the figures that a right implementation gives, and its oracles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import matrix, run

from crossknn.errors import InputError, SpecError
from crossknn.evaluation.compare import Evaluation
from crossknn.evaluation.measures import recall
from crossknn.evaluation.outcome import outcome, truth_of
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.linalg import top_k
from crossknn.methods import parse_method, parse_methods
from crossknn.retrievers.base import WeightedSum
from crossknn.retrievers.specs import open_retriever
from crossknn.search.fusion import Fusion
from crossknn.spec import parse
from crossknn.types import NO_ITEM
from crossknn_lab.replay import judgements_of, parts_of, replay
from crossknn_lab.rivals.oracles import WithOracles
from crossknn_lab.stored import StoredMatrix


def test_outcomes_keep_every_query():
    data = matrix(tests=70)  # more than one batch
    data = replace(data, labels=top_k(data.scores, 2).items[:, 1])
    parts, axn = parts_of(data), parse_method("axn(retriever=dense, rounds=3)")
    assert [len(part.queries) for part in parts] == [64, 6]
    task = TaskMeasures(Judgements.from_labels(data.labels[data.n_anchors :]), ["RR@10"])
    found = outcome("axn", axn, parts, truth_of(parts, 10), budget=20, ks=[1, 10], task=task)
    assert found.calls.tolist() == [20] * 70
    assert found.seconds.min() > 0
    assert "measures" not in next(replace(found, task={}).rows())
    searched = run(axn, data, 20).best(10).items
    assert np.array_equal(found.recall[10], recall(searched, top_k(data.scores[20:], 10).items))
    places = searched == data.labels[20:, None]
    ranks = np.where(places.any(axis=1), 1 + places.argmax(axis=1), np.inf)
    assert found.task["RR@10"] == pytest.approx(1 / ranks)


def test_recall_of_a_fused_search_is_that_of_the_best_final_scores():
    data = matrix(tests=70)
    _, queries, exact = data.rows(0, 70)
    final = exact + 0.7 * queries.vectors["dense"] @ data.dense_items.T
    final += 0.4 * data.firsts["bm25"][20:]
    truth = np.argsort(-final, axis=1, kind="stable")[:, :5]
    methods = parse_methods("rerank(retriever=dense), axn(retriever=dense, rounds=3), exact")
    stages = [open_retriever(data, name) for name in ("dense", "bm25")]
    evaluation = Evaluation(batches=parts_of(data), ks=[5])
    outcomes = evaluation.outcomes(methods, [20], Fusion(WeightedSum(stages, (0.7, 0.4))))
    rows = [row for found in outcomes for row in found.rows()]
    first = run("rerank(retriever=dense)", data, 20).observed().items
    assert rows[0]["recall"] == pytest.approx(recall(first, truth).mean(), abs=1e-5)
    assert rows[0]["recall"] < rows[1]["recall"] < rows[2]["recall"] == 1
    assert all(row["fused"] for row in rows)
    assert next(replay(data, methods, [20], [5]))["recall"] != rows[0]["recall"]


def picks(spec: str, count: int, *, seed: int = 0, allowed=None) -> np.ndarray:
    index, queries, scores = matrix().rows(0, 6)
    stage = open_retriever(WithOracles(index, scores), parse(spec), seed)
    return stage.top(queries, count, allowed).items


@settings(deadline=None, max_examples=60)
@given(
    kind=st.sampled_from(["topk", "softmax"]),
    masked=st.integers(0, 79),
    epsilon=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]),
    count=st.integers(1, 90),
    seed=st.integers(0, 3),
)
def test_oracles_mask_the_best_and_draw_a_share_by_chance(kind, masked, epsilon, count, seed):
    best = top_k(matrix().rows(0, 6)[2], 80).items
    expected = min(count, 80 - masked)
    greedy = expected - round(epsilon * expected)
    spec = f"oracle_{kind}(masked={masked}, epsilon={epsilon})"
    found = picks(spec, count, seed=seed)
    assert np.array_equal(found, picks(spec, count, seed=seed))
    for row, order in zip(found, best, strict=True):
        assert len(set(row.tolist())) == len(row) == expected
        assert not set(row.tolist()) & set(order[:masked].tolist())
        if kind == "topk":
            assert row[:greedy].tolist() == order[masked : masked + greedy].tolist()
    even = picks(f"oracle_{kind}(masked=3, epsilon=0.5)", 50, allowed=np.arange(80) % 2 == 0)
    assert (even[even != NO_ITEM] % 2 == 0).all()


def test_replay_has_them_wherever_a_retriever_is_named():
    specs = "rerank(retriever=oracle_topk), rerank(retriever=oracle_topk(masked=5))"
    rows = list(replay(matrix(), parse_methods(specs), [20], [5]))
    assert [row["recall"] for row in rows] == [1, 0]
    # Masked items are kept from the anchors only: the approximation may find them (figure 5a).
    masked = parse_methods("adacur(retriever=oracle_topk(masked=5), rounds=1, anchor_share=0.5)")
    (row,) = replay(matrix(noise=0.0, anchors=40), masked, [40], [5])
    assert row["recall"] == 1
    with pytest.raises(SpecError, match="oracle_topk"):
        open_retriever(matrix().rows(0, 2)[0], "oracle_topk(masked=1)")


def test_judgements_of_a_matrix_are_those_of_the_qrels():
    qrels = [[0, 1, 3], [1, 0, 2], [1, 2, 1], [1, 4, 0], [2, 3, 1], [2, -1, 1], [4, 1, 0]]
    ids, labels = ("q0", "a", "b", "c", "d"), np.zeros(5, int)
    data = StoredMatrix(np.zeros((5, 5)), 1, None, None, {}, ids, labels=labels)
    made = judgements_of(replace(data, qrels=np.array(qrels)))
    assert made.rows == ({"0": 2, "2": 1, "4": 0}, {"3": 1, "absent 4": 1}, {}, {"1": 0})
    assert (made.absent, made.unjudged) == (1, 1)
    assert judgements_of(data).rows == ({"0": 1},) * 4  # the labels
    assert judgements_of(replace(data, labels=None)) is None
    with pytest.raises(InputError, match="it needs the key 'item_ids'"):
        judgements_of(data, {"a": {"i": 1}})
