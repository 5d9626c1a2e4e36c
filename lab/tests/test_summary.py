"""The answers in short: means over matrices by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from study_helpers import TINY, study

from crossknn.evaluation.measures import bootstrap_sets, compare_sets
from crossknn_lab.report.exhibits import EXHIBITS, summary
from crossknn_lab.report.exhibits.found import one
from crossknn_lab.report.numbers import percent, points
from crossknn_lab.report.page import Figure, TableOf
from crossknn_lab.report.sweep_view import View
from crossknn_lab.table import differences


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A study of two matrices, and what the answers say of it."""
    preset = replace(TINY, k=(1, 10), budgets=(12, 20), rounds=(1, 2, 10), blends=(0.0, 0.8))
    found = study(tmp_path_factory.mktemp("summary"), preset, names=("alpha", "beta"))
    return found, summary.answers(found)


def tables(blocks) -> list[TableOf]:
    return [block for block in blocks if isinstance(block, TableOf)]


def test_the_answers_come_first():
    assert EXHIBITS[0] is summary.EXHIBITS[0]


def test_a_method_has_the_mean_over_the_matrices(made):
    found, blocks = made
    table = tables(blocks)[0]
    assert "k = 10, mean over 2 matrices" in table.caption
    row = next(row for row in table.rows if row[0] == "`rerank chosen`")
    groups = [
        one(found, "rivals", "rerank(retriever={stage})", data=d, budget=20)
        for d in ("alpha", "beta")
    ]
    values = [group.per_query(10)[1] for group in groups]
    assert row[1] == "no"
    assert row[3] == percent(bootstrap_sets(values))
    assert bootstrap_sets(values).mean == pytest.approx(np.mean([v.mean() for v in values]))


def test_methods_stand_from_the_best_to_the_worst_and_exact_search_is_none_of_them(made):
    _, blocks = made
    rows = tables(blocks)[0].rows
    means = [np.mean([float(cell.split()[0]) for cell in row[2:]]) for row in rows]
    assert (np.diff(means) < 0.1).all()  # they are rounded
    assert "exact" not in " ".join(row[0] for row in rows)
    assert {row[0]: row[1] for row in rows}["`anncur`"] == "yes"


def test_a_question_is_answered_by_the_mean_of_paired_differences(made):
    found, blocks = made
    table = tables(blocks)[-1]
    row = next(r for r in table.rows if r[0].startswith("ANNCUR over") and r[1] == 10)
    pairs = [
        [one(found, "questions", name, data=data, budget=12) for name in pair]
        for pair in [
            ("anncur(anchors=0.5, retriever=dense, rcond=0.03)", "rerank(retriever=dense)")
        ]
        for data in ("alpha", "beta")
    ]
    assert row[2] == points(compare_sets([differences(a, b, 10) for a, b in pairs]))


def test_the_best_is_compared_with_the_best_of_another_family_on_each_matrix(made):
    found, _ = made
    field = summary.Field(found, View.of(found.table("rivals")))
    best = field.names[0]
    pairs = field.against_others(best, 20, 10, paying=True)
    assert len(pairs) == 2
    for place, (group, other) in enumerate(pairs):
        assert group is field.groups[best][20][place]
        values = {
            name: at[20][place].mean(10).mean
            for name, at in field.groups.items()
            if name.split("(")[0] != best.split("(")[0]
        }
        assert other.mean(10).mean == max(values.values())


def test_those_without_offline_calls_are_compared_among_themselves(made):
    found, _ = made
    field = summary.Field(found, View.of(found.table("rivals")))
    field.names.sort(key=field.paying.__contains__, reverse=True)  # so that the first does pay
    (_, best, every), (title, name, paying) = field.leaders()
    assert (best in field.paying, every) == (True, True)
    assert (name in field.paying, paying) == (False, False)
    assert "without offline calls" in title
    others = field.against_others(name, 20, 10, paying=False)
    assert [other.cost("index_calls") for _, other in others] == [0, 0]


def test_the_picture_says_in_words_what_it_shows(made):
    _, blocks = made
    picture = blocks[0]
    assert isinstance(picture, Figure)
    assert "rerank" in picture.alt
    assert "from the best to the worst" in picture.alt
