"""Replay on stored matrices: the figures that a right implementation gives, and its oracles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import matrix, run

from crossknn.errors import InputError, SpecError
from crossknn.evaluation.measures import agreement, recall
from crossknn.evaluation.replay import (
    Replayed,
    check,
    compare,
    outcome,
    parts_of,
    replay,
    truth_of,
)
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.linalg import top_k
from crossknn.methods import parse_method, parse_methods
from crossknn.retrievers.base import WeightedSum
from crossknn.retrievers.specs import open_retriever
from crossknn.scorers import CallableScorer, MatrixScorer
from crossknn.search.fusion import Fusion
from crossknn.spec import parse
from crossknn.types import NO_ITEM


def test_outcomes_keep_every_query():
    data = matrix(tests=70)  # more than one batch
    data = replace(data, labels=top_k(data.scores, 2).items[:, 1])
    parts, axn = parts_of(data), parse_method("axn(retriever=dense, rounds=3)")
    assert [len(part.queries) for part in parts] == [64, 6]
    task = TaskMeasures(Judgements.from_labels(data.labels[data.n_anchors :]), ["RR@10"])
    found = outcome("axn", axn, parts, truth_of(parts, 10), budget=20, ks=[1, 10], task=task)
    assert found.calls.tolist() == [20] * 70
    assert found.seconds.min() > 0
    assert "measures" not in next(replace(found, task={}).rows()).as_dict()
    searched = run(axn, data, 20).best(10).items
    assert np.array_equal(found.recall[10], recall(searched, top_k(data.scores[20:], 10).items))
    places = searched == data.labels[20:, None]
    ranks = np.where(places.any(axis=1), 1 + places.argmax(axis=1), np.inf)
    assert found.task["RR@10"] == pytest.approx(1 / ranks)


def fusion_of(index) -> Fusion:
    return Fusion(WeightedSum([open_retriever(index, n) for n in ("dense", "bm25")], (0.7, 0.4)))


def test_recall_of_a_fused_search_is_that_of_the_best_final_scores():
    data = matrix(tests=70)
    _, queries, exact = data.rows(0, 70)
    final = exact + 0.7 * queries.vectors["dense"] @ data.dense_items.T
    final += 0.4 * data.firsts["bm25"][20:]
    truth = np.argsort(-final, axis=1, kind="stable")[:, :5]
    methods = parse_methods("rerank(retriever=dense), axn(retriever=dense, rounds=3), exact")
    options = {"budgets": [20], "ks": [5], "fusion": fusion_of(data)}
    rows = list(replay(data, methods, **options))
    first = run("rerank(retriever=dense)", data, 20).observed().items
    assert rows[0].recall == pytest.approx(recall(first, truth).mean(), abs=1e-5)
    assert rows[0].recall < rows[1].recall < rows[2].recall == 1
    assert all(row.as_dict()["fused"] for row in rows)
    assert next(replay(data, methods, [20], [5])).recall != rows[0].recall


@pytest.mark.parametrize("fused", [False, True])
def test_scoring_on_demand_gives_the_measures_of_known_scores(world, fused):
    index, queries, scores, qrels = world
    specs = "rerank(retriever=lsa), axn(retriever=bm25, rounds=4, ridge=0.3), gp(retriever=lsa, rounds=3)"
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
    (row,) = found[1].rows()
    said = row.as_dict()
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


def test_what_a_method_lacks_is_said_before_anything_is_searched():
    parts = parts_of(replace(matrix(), item_scores=None))
    check(parts, parse_methods("rerank(retriever=dense), adacur(retriever=oracle_topk)"), 10, 0)
    with pytest.raises(InputError, match="itemcur needs item x item scores"):
        check(parts, parse_methods("rerank(retriever=dense), itemcur"), 10, 0)
    with pytest.raises(InputError, match="queries is 0"):
        parts_of(matrix(), 0)


def picks(spec: str, count: int, *, seed: int = 0, allowed=None) -> np.ndarray:
    index, queries, scores = matrix().rows(0, 6)
    stage = open_retriever(Replayed(index, scores), parse(spec), seed)
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
    assert [row.recall for row in rows] == [1, 0]
    # Masked items are kept from the anchors only: the approximation may find them (figure 5a).
    masked = parse_methods("adacur(retriever=oracle_topk(masked=5), rounds=1, anchor_share=0.5)")
    (row,) = replay(matrix(noise=0.0, anchors=40), masked, [40], [5])
    assert row.recall == 1
    with pytest.raises(SpecError, match="oracle_topk"):
        open_retriever(matrix().rows(0, 2)[0], "oracle_topk(masked=1)")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("oracle_topk(mask=3)", "no option 'mask': did you mean masked"),
        ("oracle_topk(epsilon=1.5)", "epsilon must lie in 0 to 1"),
        ("oracle_softmax(masked=-1)", "masked in 0 to 79"),
    ],
)
def test_wrong_options(spec, words):
    with pytest.raises(InputError, match=words):
        picks(spec, 3)


def test_two_scorers_agree_as_far_as_their_ranks_do():
    scores = np.random.default_rng(0).normal(size=(3, 12)).astype(np.float32)
    queries, items = ["a", "b", "c"], [f"item {i}" for i in range(12)]
    steps: list[tuple[int, int]] = []
    one, other = MatrixScorer(scores), MatrixScorer(2 * scores + 1)
    found = agreement(one, other, queries, items, progress=lambda *step: steps.append(step))
    assert steps[-1] == (72, 72)
    assert found["spearman_mean"] == found["spearman_lowest"] == 1
    assert found["largest_difference"] == pytest.approx(float(np.abs(scores + 1).max()))
    opposite = agreement(one, MatrixScorer(-scores), queries, items, per_query=5)
    assert opposite["spearman_lowest"] == -1
    with pytest.raises(InputError, match="at least one query and two items"):
        agreement(one, other, queries, items[:1])
