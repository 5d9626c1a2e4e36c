"""The task's own measures against cases worked out by hand."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

from crossknn.errors import InputError
from crossknn.evaluation.task import DEFAULT, Judgements, TaskMeasures

QRELS = {"q1": {"a": 2, "c": 1, "x": 0}, "q2": {"d": 1, "gone": 1}, "q4": {"b": 0}}
QUERIES = ("q1", "q2", "q3", "q4")
ITEMS = ("a", "b", "c", "d", "x")
RANKED = np.array([[1, 2, 0, 4], [1, 0, 2, -1], [3, 2, 1, 0], [1, 0, 2, 3]])


def judged() -> Judgements:
    return Judgements.from_qrels(QRELS, QUERIES, ITEMS)


def test_what_is_left_out_is_counted():
    made = judged()
    assert (made.unjudged, made.absent) == (1, 1)
    first, second = made.notes()
    assert first.startswith("1 of 4 queries have no judgements and are left out")
    assert second.startswith("1 judged items are not among the items")
    assert (made.take([0, 1]).unjudged, made.take([0, 1]).notes()) == (0, [second])
    values = TaskMeasures(made, ["R@2", "accuracy", "accuracy_normalised"]).values(RANKED)
    assert values["R@2"] == pytest.approx([0.5, 0, np.nan, 0], nan_ok=True)  # "gone" is a miss
    assert values["accuracy"] == pytest.approx([0, 0, np.nan, 0], nan_ok=True)
    assert values["accuracy_normalised"] == pytest.approx([0, *[np.nan] * 3], nan_ok=True)


def by_definition(name: str, answer: list[int], row: dict[str, int]) -> float:
    """A measure of one query, from its definition; gains are the grades (trec_eval)."""
    kind, _, cut = name.partition("@")
    relevant = sorted((grade for grade in row.values() if grade > 0), reverse=True)
    k = int(cut or len(relevant))  # Rprec: as many as are relevant
    grades = [max(row.get(str(item), 0), 0) for item in answer if item >= 0][:k]
    hits = sum(grade > 0 for grade in grades)
    if kind == "nDCG":
        found, ideal = (
            sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains[:k]))
            for gains in (grades, relevant)
        )
        return found / ideal if ideal else 0.0
    if kind == "RR":
        return max((1 / (rank + 1) for rank, grade in enumerate(grades) if grade > 0), default=0.0)
    return hits / (k if kind == "P" else len(relevant)) if relevant else 0.0


def test_measures_by_their_definitions():
    rng = np.random.default_rng(5)
    rows = []
    for _ in range(60):
        items = rng.choice(200, rng.integers(0, 40), replace=False)
        grades = rng.integers(-1, 4, len(items)).tolist()
        names = [str(i) if i < 180 else f"absent {i}" for i in items]
        rows.append(dict(zip(names, grades, strict=True)))
    answers = np.argsort(rng.random((60, 180)), axis=1)[:, :110]
    answers[np.arange(110) >= rng.integers(0, 150, 60)[:, None]] = -1  # short answers
    names = [*DEFAULT, "R@5", "nDCG@100", "Rprec", "P@5", "RR@100"]
    found = TaskMeasures(Judgements(tuple(rows)), names).values(answers)
    for name in names:
        wanted = [
            by_definition(name, answer, row) if row else np.nan
            for answer, row in zip(answers.tolist(), rows, strict=True)
        ]
        np.testing.assert_allclose(found[name], wanted, rtol=1e-6)


def test_accuracy_and_its_normalised_form_by_hand():
    """Of five mentions three golds are retrieved and one is on top: 1/5 and 1/3 (CMC, table 2)."""
    labels = np.array([0, 1, 2, 3, 4])
    found = np.array([[0, 9], [9, 1], [9, 8], [9, 8], [9, 8]])
    scored = np.array([[0, 9, 8], [9, 1, 8], [2, 9, 8], [9, 8, 7], [9, 8, 7]])
    task = TaskMeasures(Judgements.from_labels(labels), ["accuracy", "accuracy_normalised"])
    values = task.values(found, scored)
    assert values["accuracy"].tolist() == [1, 0, 0, 0, 0]
    normalised = values["accuracy_normalised"]
    assert normalised == pytest.approx([1, 0, 0, np.nan, np.nan], nan_ok=True)


def test_the_order_of_an_answer_counts_where_scores_tie():
    """Names of items must not break ties: ir-measures would, by the name."""
    task = TaskMeasures(Judgements.from_labels(np.array([10, 9])), ["RR@10"])
    assert task.values(np.array([[10, 9], [10, 9]]))["RR@10"].tolist() == [1.0, 0.5]


@pytest.mark.parametrize("name", ["nDGC@10", "ndcg@10", "nDCG@0", "nDCG@2.5", "P", "1 + 1"])
def test_measures_that_are_none(name):
    with pytest.raises(InputError, match=f"unknown measure '{re.escape(name)}'"):
        TaskMeasures(judged(), [name])


def test_what_is_refused():
    with pytest.raises(InputError, match="no measure is given"):
        TaskMeasures(judged(), [])
    with pytest.raises(InputError, match="the qrels judge none of the queries"):
        Judgements.from_qrels(QRELS, ["other"], ITEMS)
    with pytest.raises(InputError, match=r"the grade -200000; it must be 100000 at most"):
        Judgements.from_qrels({"q1": {"a": -200_000}}, QUERIES, ITEMS)
