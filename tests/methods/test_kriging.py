"""Kriging: what it is in the limit, what it must not care about, what it must bear; and when to stop."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from synthetic import first_scores, matrix, run

from crossknn.errors import InputError, SpecError
from crossknn.methods import parse_method
from crossknn.methods.base import Stop
from crossknn.search.loop import simulate
from crossknn_lab.stored import StoredMatrix

WITH, FUSED, *_ = SPECS = (
    "kriging(retriever=dense, mean=dense)",
    "kriging(retriever=hybrid(bm25, dense))",
    "kriging(retriever=dense, use_anchors=false)",
    "kriging(retriever=bm25, mean=bm25, use_anchors=false)",
)
every_spec = pytest.mark.parametrize("spec", SPECS)


# What it must not care about


@every_spec
@pytest.mark.parametrize(("factor", "shift"), [(4.0, -3), (1.0, 256), (2.0**40, 0), (2.0**-40, 0)])
def test_a_shift_and_scale_of_all_scores_changes_no_pick(spec, factor, shift):
    for seed in range(2):
        # Single precision holds such scores, and the means of 16 anchors, when they are shifted.
        data = matrix(seed=seed, anchors=16, tests=4)
        scores, found = (np.round(256 * data.scores) / 256).astype(np.float32), []
        for exact in (scores, (scores + np.float32(shift)) * np.float32(factor)):
            picks = run(spec, replace(data, scores=exact), 24).picks()
            order = np.lexsort((picks.items, picks.rounds))
            parts = (picks.items, picks.approx, picks.rounds)
            found.append([np.take_along_axis(part, order, axis=1) for part in parts])
        (items, approx, rounds), (other_items, other_approx, _) = found
        assert items.tolist() == other_items.tolist()
        near = {"rtol": 1e-4, "atol": 2e-3 * factor}
        later = rounds > 2
        np.testing.assert_allclose(other_approx[later], factor * (approx + shift)[later], **near)


# What it must bear


def changed(data: StoredMatrix, case: str) -> StoredMatrix:
    """The matrix, with what is degenerate in `case`."""
    scores, items, queries = data.scores.copy(), data.dense_items.copy(), data.dense_queries.copy()
    anchors, tests = scores[: data.n_anchors], scores[data.n_anchors :]
    half = len(items) // 2
    match case:
        case "all vectors equal":
            items[:] = items[0]
        case "all vectors zero":
            items[:] = 0
        case "some vectors zero":
            items[::3] = 0
        case "query vectors zero":
            queries[:] = 0
        case "every item twice":
            items[half:], scores[:, half:] = items[:half], scores[:, :half]
        case "equal vectors, other scores":
            items[half:] = items[:half]
        case "constant scores":
            tests[:] = 0.7
        case "constant scores but one":
            tests[:], tests[:, 5] = 0.7, 1.3
        case "an anchor of constant scores":
            anchors[3] = 0.7
        case "each anchor constant":
            anchors[:] = np.arange(len(anchors))[:, None]
        case "equal anchors":
            anchors[:] = anchors[0]
        case "the retriever is exact":
            scores = queries @ items.T
    return replace(data, scores=scores, dense_items=items, dense_queries=queries)


CASES = (
    *("all vectors equal", "all vectors zero", "some vectors zero", "query vectors zero"),
    *("every item twice", "equal vectors, other scores", "constant scores"),
    *("constant scores but one", "an anchor of constant scores", "each anchor constant"),
    *("equal anchors", "the retriever is exact"),
)


def finite(spec, data, budget=24):
    """A search that spends its budget, each item once, on predictions that are numbers."""
    search = run(spec, data, budget)
    picks = search.picks()
    assert search.n_scored.tolist() == [budget] * data.n_tests
    assert all(len(set(row)) == budget for row in picks.items.tolist())
    assert np.isfinite(picks.approx).all()
    return search


@pytest.mark.parametrize("case", CASES)
@every_spec
def test_what_is_degenerate_is_borne(spec, case):
    finite(spec, changed(matrix(tests=3), case))


def without_query_vectors(anchors: int) -> StoredMatrix:
    """Items have vectors, queries have none."""
    data = matrix(anchors=anchors)
    return replace(data, dense_items=None, dense_queries=None).with_vectors("own", data.dense_items)


WORDS = "kriging(retriever=bm25, mean=bm25)", "kriging(retriever=bm25, use_anchors=false)"
ENDS = """mean=hybrid(dense, dense); mean=hybrid(bm25, bm25, dense); mean=fixed
    retriever=fixed; mean=random; retriever=random; mean=hybrid(fixed, random, bm25, dense);
    mean=hybrid(dense, dense), use_anchors=false; rounds=100; rounds=1; shortlist=1"""


@pytest.mark.parametrize(
    ("spec", "data", "budget"),
    [
        *((f"kriging({options})", matrix(), 24) for options in re.split(r";\s*|\n\s*", ENDS)),
        *((spec, matrix(), budget) for spec in SPECS for budget in (1, 2, 4, 9)),
        *((spec, matrix(anchors=count), 24) for spec in (WITH, FUSED) for count in (1, 2, 3, 4, 6)),
        *((spec, without_query_vectors(q), 24) for spec in WORDS for q in (2, 3, 20)),
        *((FUSED, matrix(n=n, anchors=q, tests=2), n) for n, q in ((15, 2), (18, 5), (20, 8))),
        ("kriging(vectors=cur)", matrix().with_vectors("cur", matrix().dense_items), 24),
    ],
)
def test_ends_of_options_budgets_and_anchors_are_borne(spec, data, budget):
    finite(spec, data, budget)


@pytest.mark.parametrize(
    ("spec", "data", "said"),
    [
        ("kriging(target_recall=0.9)", matrix(anchors=1), "on three anchor queries or more"),
        ("kriging(vectors=nope)", matrix(), "no item vectors 'nope'; it has dense"),
        (
            "kriging(use_anchors=false, target_recall=0.9)",
            matrix(),
            "on three anchor queries or more",
        ),
        ("kriging(target_recall=0.9)", matrix(anchors=2), "on three anchor queries or more"),
        ("kriging(target_recall=90)", matrix(), "target_recall must lie between 0 and 1"),
    ],
)
def test_what_cannot_be_is_said(spec, data, said):
    with pytest.raises((InputError, SpecError), match=said):
        run(spec, data, 10)


def test_a_single_anchor_is_searched_without():
    """How items vary together takes two; `auto` searches with what there is."""
    data = matrix(anchors=1)
    index = data.rows(1, 2)[0]
    assert parse_method("auto").prior(index) is None
    assert parse_method("auto").required_artifacts(index) == []
    alone, without = (run(f"kriging({rest})", data, 24) for rest in ("", "use_anchors=false"))
    assert np.array_equal(alone.picks().items, without.picks().items)


# Shortlists


@pytest.mark.parametrize("without", ["SMOOTH", "LINEAR"])
@pytest.mark.parametrize("anchors", ["true", "false"])
def test_what_the_linear_part_ranks_first_joins_a_pool(monkeypatch, without, anchors):
    monkeypatch.setattr(f"crossknn.methods.posterior.{without}", 0.0)
    monkeypatch.setattr("crossknn.methods.kriging.BETA", 0.0)
    index, queries, scores = matrix(n=300).rows(0, 99)
    spec = f"kriging(retriever=dense, use_anchors={anchors}, shortlist=40)"
    plan = parse_method(spec).plan(index, 24, 0)
    assert plan.shortlist == 40
    predictor, observed = plan.predictor, first_scores(scores, 20)
    allowed = np.random.default_rng(0).random(300) < 0.9
    state = predictor.update(predictor.start(queries), observed)
    found = predictor.joining(state, 20, observed.items, allowed)
    assert found.shape == (6, 20)
    for row, items in zip(observed.items, found, strict=True):
        assert len(set(items)) == 20
        assert allowed[items].all()
        assert not set(items) & set(row)
    if without == "SMOOTH":  # where the linear part is all there is
        whole = parse_method(spec.replace(", shortlist=40", "")).plan(index, 24, 0).predictor
        mean = whole.predict(whole.update(whole.start(queries), observed)).mean
        mean[:, ~allowed] = -np.inf
        np.put_along_axis(mean, observed.items, -np.inf, axis=1)
        best = np.argsort(-mean, axis=1)[:, :20]
        assert np.mean([len(set(a) & set(b)) for a, b in zip(found, best, strict=True)]) >= 18
    state = predictor.update(predictor.start(queries), first_scores(np.ones_like(scores), 9))
    assert not predictor.joining(state, 20, observed.items).size


@pytest.mark.parametrize(
    ("options", "budget", "items"),
    [
        ("use_anchors=false", 100, 400),
        ("use_anchors=false", 200, 600),
        ("use_anchors=true", 10, 400),
        ("use_anchors=true", 100, 900),
        ("use_anchors=true", 500, 4500),
        ("use_anchors=true", 1000, 9000),
    ],
)
def test_how_many_items_a_pool_holds(monkeypatch, options, budget, items):
    monkeypatch.setattr("crossknn.methods.base.POOLED", 299)  # so that 300 items are many
    index, _, _ = matrix(n=300).rows(0, 99)
    plan = parse_method(f"kriging(retriever=dense, {options})").plan(index, budget, 0)
    assert plan.shortlist == items


@pytest.mark.parametrize("anchors", ["true", "false"])
def test_a_pool_of_all_items_predicts_as_without_one(anchors):
    index, queries, scores = matrix(n=300).rows(0, 99)
    spec = f"kriging(use_anchors={anchors}, shortlist=299)"
    pooled = parse_method(spec).plan(index, 60, 0).predictor
    whole = parse_method(f"kriging(use_anchors={anchors})").plan(index, 60, 0).predictor
    items = np.tile(np.random.default_rng(0).permutation(300), (6, 1))
    states = [predictor.start(queries) for predictor in (pooled, whole)]
    for b in (8, 12, 30):  # it grows by items and by scores
        observed = first_scores(scores, b)
        states = [p.update(s, observed) for p, s in zip((pooled, whole), states, strict=True)]
        some = items[:, : 100 + 5 * b]
        mean, std = pooled.predict(states[0], some)
        expected = whole.predict(states[1])
        np.testing.assert_allclose(mean, np.take_along_axis(expected.mean, some, 1), atol=2e-3)
        np.testing.assert_allclose(std, np.take_along_axis(expected.std, some, 1), atol=2e-3)


# When to stop


def test_queries_stop_when_they_expect_enough_and_keep_what_they_have():
    data = matrix(n=120, anchors=40, tests=20)
    index, queries, scores = data.rows(0, data.n_tests)
    plan = parse_method("kriging(retriever=dense, rounds=6, k=3)").plan(index, 24, 0)
    whole = simulate(plan, queries, scores)
    some = simulate(replace(plan, stop=Stop(k=3, expected=0.98)), queries, scores)
    assert some.stopped.any()
    assert not some.stopped.all()
    for q in range(data.n_tests):
        count = int(some.n_scored[q])
        assert (count < 24) == some.stopped[q]
        np.testing.assert_array_equal(some.picks().items[q, :count], whole.picks().items[q, :count])
        expected = {int(counts[q]): e[q] for counts, e in reversed(some.expectations)}
        assert all(not e >= 0.98 for before, e in expected.items() if before < count)
        assert not some.stopped[q] or expected[count] >= 0.98
    axn = parse_method("axn(retriever=dense, rounds=6)").plan(index, 24, 0)
    assert not simulate(replace(axn, stop=Stop(k=3, expected=0.0)), queries, scores).stopped.any()
