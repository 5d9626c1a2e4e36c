"""Means over seeds and paired differences: by query, against counting one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.evaluation.measures import paired
from crossknn.evaluation.outcome import Outcome
from crossknn_lab.cells import CellResult
from crossknn_lab.table import Entry, Group, Table, compared, mean_rows, tidy


def entry(recalls: dict[int, float] | None, *, seed: int = 0, **labels) -> Entry:
    """An entry with the recall (k = 10) of queries by their place; None for one that has failed."""
    result = None
    if recalls is not None:
        recall = np.array(list(recalls.values()), np.float64)
        made = {"recall": {10: np.nan_to_num(recall)}, "task": {"accuracy": recall}}
        made |= {"calls": np.full(len(recall), 50), "seconds": np.full(len(recall), 0.5)}
        outcome = Outcome(method="m", budget=50, seed=seed, index_calls=7, **made)
        queries = np.array(list(recalls), np.int64)
        result = CellResult(queries=queries, outcome=outcome, rows=tuple(outcome.rows()), code="")
    given = {"data": "d", "items": 100, "method": "m", "spec": "m", "values": {}, "chosen": False}
    given |= {"anchors": 0, "budget": 50, "cell": "", "error": "" if result else "there is none"}
    return Entry(seed=seed, result=result, **(given | labels))


def table(*entries: Entry, **options) -> Table:
    given = {"dev": (), "k": (10,), "grid": (), "notes": ()}
    return Table(entries=entries, **(given | options))


BY_SEED = st.lists(
    st.dictionaries(st.integers(0, 9), st.floats(0, 1), min_size=1), min_size=1, max_size=4
)


@settings(deadline=None)
@given(BY_SEED)
def test_each_query_counts_once_with_the_mean_of_its_seeds(seeds):
    group = Group(entries=tuple(entry(v, seed=s) for s, v in enumerate(seeds)))
    queries, values = group.per_query(10)
    assert queries.tolist() == sorted(set().union(*seeds))
    expected = [np.mean([values[q] for values in seeds if q in values]) for q in queries]
    assert values == pytest.approx(expected)
    assert group.mean(10).mean == pytest.approx(np.mean(values))


@settings(max_examples=20, deadline=None)
@given(BY_SEED, st.randoms(use_true_random=False))
def test_differences_are_of_the_same_query_and_seed(seeds, random):
    others = [{q: random.random() for q in values} for values in seeds]
    a = Group(entries=tuple(entry(v, seed=s) for s, v in enumerate(seeds)))
    b = Group(entries=tuple(entry(v, seed=s) for s, v in enumerate(others)))
    found = compared(a, b, 10)
    assert found == paired(a.per_query(10)[1] - b.per_query(10)[1])
    assert compared(a, a, 10).difference == 0
    assert compared(b, a, 10).difference == pytest.approx(-found.difference)


def test_only_seeds_that_both_have_are_compared():
    a = Group(entries=(entry({0: 1.0, 1: 1.0}), entry({2: 0.0}, seed=1)))
    b = Group(entries=(entry({0: 0.5, 1: 0.0}), entry(None, seed=1)))
    found = compared(a, b, 10)
    assert (found.difference, found.n) == (0.75, 2)
    with pytest.raises(InputError, match="nothing to compare"):
        compared(a, Group(entries=(entry({0: 1.0}, seed=5),)), 10)
    with pytest.raises(InputError, match="'d' and 'e' are different queries"):
        compared(a, Group(entries=(entry({0: 1.0}, data="e"),)), 10)


def test_queries_without_a_value_are_left_out_of_a_measure_and_counted():
    values = {0: 1.0, 1: np.nan, 2: 0.0, 3: 0.0}
    (row,) = mean_rows(table(entry(values), entry({0: 1.0, 2: 1.0}, seed=1)))
    assert (row["accuracy"], row["accuracy_n"], row["n_queries"]) == (0.5, 3, 4)
    assert (row["accuracy_low"], row["accuracy_high"]) == (0, 1)  # of 0, 0.5 and 1
    assert tidy(table(entry(values)))[0]["accuracy_n"] == 3
    a = Group(entries=(entry(values),))
    b = Group(entries=(entry({0: 0.0, 1: 0.0, 2: 0.0, 3: np.nan}),))
    assert compared(a, b, "accuracy").n == 2


def test_rows_count_seeds_that_failed_and_measure_against_the_baseline():
    made = table(
        entry({0: 0.5, 1: 0.5}, method="a", spec="a"),
        entry(None, seed=1, method="a", spec="a"),
        entry({0: 1.0, 1: 0.5}, method="b({x})", spec="b(1)", values={"x": 1}, chosen=True),
        entry({0: 1.0, 1: 0.5}, seed=1, method="b({x})", spec="b(2)", values={"x": 2}, chosen=True),
        entry(None, method="c", spec="c"),
        entry({0: 0.0, 1: 0.0}, method="a", spec="a", budget=100),
        grid=("x",),
        baseline="a",
    )
    rows = mean_rows(made)
    keys = ("method", "spec", "budget", "seeds", "failed", "n_queries", "recall", "difference")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ("a", "a", 50, 2, 1, 2, 0.5, None),
        ("b({x})", "b(1); b(2)", 50, 2, 0, 2, 0.75, 0.25),
        ("c", "c", 50, 1, 1, 0, None, None),
        ("a", "a", 100, 1, 0, 2, 0.0, None),
    ]
    assert (rows[1]["calls"], rows[1]["index_calls"]) == (50, 7)
    with pytest.raises(InputError, match="has no baseline 'z'"):
        mean_rows(replace(made, baseline="z"))
