"""Replay on stored matrices: the figures that a right implementation gives."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from synthetic import METHODS, matrix, run

from crossknn.errors import InputError
from crossknn.evaluation.measures import exact_top, recall
from crossknn.evaluation.replay import answer, check, outcome, parts_of, replay, truth_of
from crossknn.evaluation.task import Judgements, TaskMeasures
from crossknn.index.stored import StoredMatrix
from crossknn.methods import method, methods
from crossknn.types import NO_ITEM

# Recall in percent at k = 1, 10, 100 from the table beside the stored matrices.
FIGURES = {
    "wordnet-act": {
        ("rerank(retriever=dense)", 100): (96.0, 53.5, 19.7),
        ("rerank(retriever=bm25)", 100): (90.0, 36.7, 11.9),
        ("rerank(retriever=hybrid(bm25, dense))", 200): (97.0, 60.0, 25.6),
        ("anncur(anchors=0.5)", 100): (34.0, 33.6, 28.1),
        ("anncur(anchors=0.5)", 200): (50.0, 48.9, 45.7),
        ("adacur(retriever=dense, rounds=5)", 50): (93.0, 58.7, 21.2),
        ("adacur(retriever=dense, rounds=5)", 200): (98.0, 81.3, 48.3),
        ("axn(retriever=dense, rounds=5, blend=0.0)", 100): (99.0, 65.5, 25.1),
        ("axn(retriever=dense, rounds=5, blend=0.8)", 200): (99.0, 69.9, 32.8),
        ("axn(retriever=dense, rounds=10, blend=0.5)", 50): (98.0, 60.9, 19.2),
        ("axn(retriever=hybrid(bm25, dense), rounds=10, blend=0.5)", 100): (99.0, 69.2, 27.3),
        ("axn(retriever=dense, rounds=10, blend=0.5, rcond=0.01)", 200): (100.0, 75.7, 36.8),
        # The prototype's linear and RBF covariance; a linear one alone does nearly as well.
        ("axn(retriever=dense, rounds=10, ridge=0.3)", 200): (100.0, 79.2, 43.2),
    },
    "scifact": {
        ("rerank(retriever=dense)", 500): (76.7, 57.0, 37.4),
        ("rerank(retriever=hybrid(bm25, dense))", 100): (63.3, 36.8, 15.4),
        ("anncur(anchors=0.5)", 200): (45.6, 39.8, 26.2),
        ("adacur(retriever=dense, rounds=5)", 200): (96.7, 80.4, 50.1),
        ("axn(retriever=dense, rounds=5, blend=0.5)", 100): (68.9, 42.8, 19.7),
        ("axn(retriever=hybrid(bm25, dense), rounds=10, blend=0.5)", 200): (73.3, 52.2, 29.8),
    },
}


@pytest.mark.shared
@pytest.mark.parametrize("name", FIGURES)
def test_the_figures_beside_the_stored_matrices(shared, name):
    data = StoredMatrix.load(shared / "matrices" / f"{name}.npz")
    for (spec, budget), expected in FIGURES[name].items():
        rows = list(replay(data, methods(spec), [budget], [1, 10, 100]))
        found = [100 * row.recall for row in rows]
        # One query more or less at k = 1 is 1.11 points with the 90 queries of scifact.
        one = 100 / rows[0].n_queries
        assert found[0] == pytest.approx(expected[0], abs=max(1.0, one) + 0.06), (spec, budget)
        assert found[1:] == pytest.approx(expected[1:], abs=1.05), (spec, budget)


def test_rows_say_what_was_done():
    rows = list(
        replay(matrix(), methods("axn(retriever=dense,rounds=3), exact"), [10], [1, 5], queries=4)
    )
    assert [(r.method, r.k, r.budget, r.n_queries, r.calls) for r in rows] == [
        ("axn(retriever=dense, rounds=3)", 1, 10, 4, 10.0),
        ("axn(retriever=dense, rounds=3)", 5, 10, 4, 10.0),
        ("exact", 1, 10, 4, 80.0),
        ("exact", 5, 10, 4, 80.0),
    ]
    assert rows[2].recall == rows[3].recall == 1
    assert all(r.ci[0] <= r.recall <= r.ci[1] and r.seconds > 0 for r in rows)


def test_what_makes_no_calls_is_replayed_once():
    rows = list(
        replay(
            matrix(), methods("retrieve(retriever=dense), rerank(retriever=dense)"), [10, 20], [5]
        )
    )
    assert [(r.method, r.budget, r.calls) for r in rows] == [
        ("retrieve(retriever=dense)", 0, 0.0),
        ("rerank(retriever=dense)", 10, 10.0),
        ("rerank(retriever=dense)", 20, 20.0),
    ]


def test_labels_bring_the_tasks_own_measures():
    """The same run's accuracy: gold items are the exact best of half of the test queries."""
    data = matrix()
    best = exact_top(data.scores, 1)[:, 0]
    labels = np.where(np.arange(26) % 2 == 0, best, NO_ITEM)
    data = replace(data, labels=labels)
    task = TaskMeasures(Judgements.of_matrix(data), ["accuracy", "accuracy_normalised", "RR@10"])
    exact, reranked, only = replay(
        data,
        methods("exact, rerank(retriever=dense), retrieve(retriever=dense)"),
        [5],
        [1],
        task=task,
    )
    assert exact.measures == {"accuracy": 1.0, "accuracy_normalised": 1.0, "RR@10": 1.0}
    assert exact.measures_n == {"accuracy": 3, "accuracy_normalised": 3, "RR@10": 3}
    assert (exact.unjudged, exact.n_queries) == (3, 6)
    index, queries, scores = data.rows(0, 6)
    scored = answer(
        method("rerank(retriever=dense)"), index, queries, scores, budget=5, k=1, seed=0
    ).scored
    inside = [labels[20 + q] in scored[q] for q in (0, 2, 4)]
    assert reranked.measures["accuracy"] == round(sum(inside) / 3, 5)  # scored golds are on top
    assert reranked.measures_n["accuracy_normalised"] == sum(inside) < 3
    assert only.measures["RR@10"] < 1
    low, high = reranked.measures_ci["accuracy"]
    assert low <= reranked.measures["accuracy"] <= high
    row = json.loads(json.dumps(reranked.as_dict()))
    assert row["measures"]["accuracy"] == reranked.measures["accuracy"]
    assert row["unjudged"] == 3


def test_a_measure_without_any_value_is_null():
    data = replace(matrix(), labels=np.full(26, NO_ITEM))
    task = TaskMeasures(Judgements.of_matrix(data), ["accuracy"])
    (row,) = replay(data, methods("rerank(retriever=dense)"), [5], [1], task=task)
    assert row.measures == {"accuracy": None}
    assert '"measures_ci": {"accuracy": null}' in json.dumps(row.as_dict())


def test_rows_without_judgements_are_as_they_were():
    (row,) = replay(matrix(), methods("rerank(retriever=dense)"), [5], [1])
    assert list(row.as_dict()) == [
        *("method", "k", "budget", "recall", "ci", "n_queries", "calls", "seconds", "seed"),
        "index_calls",
    ]


def test_rows_say_what_the_scores_that_were_read_had_cost():
    rows = list(
        replay(
            matrix(),
            methods("rerank(retriever=dense), adacur(retriever=dense), itemcur"),
            [20],
            [5],
        )
    )
    assert [row.index_calls for row in rows] == [0, 20 * 80, 15 * 80]


def test_outcomes_keep_every_query():
    data = matrix(tests=70)  # more than one batch
    data = replace(data, labels=exact_top(data.scores, 2)[:, 1])
    parts = parts_of(data)
    assert [len(queries) for _, queries, _ in parts] == [64, 6]
    task = TaskMeasures(Judgements.of_matrix(data), ["RR@10"])
    axn = method("axn(retriever=dense, rounds=3)")
    truth = truth_of(parts, 10)
    found = outcome("axn", axn, parts, truth, budget=20, ks=[1, 10], task=task)
    arrays = (*found.recall.values(), *found.task.values(), found.calls, found.seconds)
    assert [values.shape for values in arrays] == [(70,)] * 5
    one, ten = found.rows()
    assert one.recall == round(float(found.recall[1].mean()), 5)
    assert ten.recall == round(float(found.recall[10].mean()), 5)
    searched = run(axn, data, 20).best(10).items
    assert np.array_equal(found.recall[10], recall(searched, exact_top(data.scores[20:], 10)))
    places = searched == data.labels[20:, None]
    ranks = np.where(places.any(axis=1), 1 + places.argmax(axis=1), np.inf)
    assert found.task["RR@10"] == pytest.approx(1 / ranks)


def test_what_a_method_lacks_is_said_before_anything_is_searched():
    parts = parts_of(replace(matrix(), item_scores=None))
    check(parts, methods("rerank(retriever=dense), adacur(retriever=oracle_topk)"), 10, 0)
    with pytest.raises(InputError, match="itemcur needs item x item scores"):
        check(parts, methods("rerank(retriever=dense), itemcur"), 10, 0)
    with pytest.raises(InputError, match="queries is 0"):
        parts_of(matrix(), 0)


def test_a_k_above_the_budget_caps_recall():
    (row,) = replay(matrix(), methods("rerank(retriever=dense)"), [5], [20])
    assert 0 < row.recall <= 5 / 20


def test_a_matrix_without_item_pairs_is_refused_by_name(tmp_path):
    np.savez(tmp_path / "m.npz", scores=np.random.default_rng(0).normal(size=(4, 9)), n_anchors=2)
    data = StoredMatrix.load(tmp_path / "m.npz")
    with pytest.raises(InputError, match="fixeditem needs item x item scores"):
        list(replay(data, methods("fixeditem"), [4], [1]))


def test_files_survive_the_round_trip(tmp_path):
    made = matrix()
    np.savez(
        tmp_path / "m.npz",
        scores=made.scores,
        n_anchors=made.n_anchors,
        item_vectors=made.item_vectors,
        query_vectors=made.query_vectors,
        first_bm25=made.firsts["bm25"],
        anchor_items=made.anchor_items,
        query_ids=np.array(made.query_ids),
        item_score_items=made.item_scores.items,
        item_scores=made.item_scores.scores,
    )
    known = methods("; ".join(METHODS))
    rows = [
        list(replay(data, known, [20], [5]))
        for data in (made, StoredMatrix.load(tmp_path / "m.npz"))
    ]
    assert [r.recall for r in rows[0]] == [r.recall for r in rows[1]]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros(3)}, "has no matrix 'scores'"),
        ({"scores": np.zeros((3, 4)), "n_anchors": 3}, "n_anchors is 3, with 3 queries"),
        (
            {"scores": np.zeros((3, 4)), "item_vectors": np.zeros((3, 2))},
            r"'item_vectors' has the shape \(3, 2\); it must be \(4 items, dimensions\): mend it",
        ),
        ({"scores": np.full((3, 4), np.nan)}, r"'scores' is nan at \(0, 0\)"),
        (
            {"scores": np.zeros((3, 4)), "anchor_items": [0, 0]},
            "'anchor_items' must hold positions",
        ),
        (
            {"scores": np.zeros((3, 4)), "item_vectors": np.zeros((4, 2))},
            "needs both 'item_vectors'",
        ),
        (
            {"scores": np.zeros((3, 4)), "labels": [0, 4, -1]},
            "'labels' has 4, which is no item: give positions of items, 0 to 3, or -1",
        ),
        ({"scores": np.zeros((3, 4), int)}, "'scores' must be floating point"),
        (
            {"scores": np.zeros((3, 4)), "first_bm25": np.zeros((2, 4))},
            r"'first_bm25' has the shape \(2, 4\)",
        ),
    ],
)
def test_a_wrong_file_is_answered_in_a_sentence(tmp_path, arrays, words):
    np.savez(tmp_path / "m.npz", **arrays)
    with pytest.raises(InputError, match=words):
        StoredMatrix.load(tmp_path / "m.npz")


def test_what_is_not_a_matrix_file(tmp_path):
    (tmp_path / "m.npz").write_bytes(b"PK\x03\x04 but no more")
    with pytest.raises(InputError, match=r"is not a readable \.npz file"):
        StoredMatrix.load(tmp_path / "m.npz")
    np.save(tmp_path / "plain.npy", np.zeros((3, 4)))
    with pytest.raises(InputError, match=r"is not a readable \.npz file"):
        StoredMatrix.load(tmp_path / "plain.npy")
    with pytest.raises(InputError, match="there is no file"):
        StoredMatrix.load(tmp_path / "absent.npz")
