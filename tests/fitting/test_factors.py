"""Which pairs are scored, and alternating least squares: the closed form, and what must not move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from fit_helpers import entries
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.fitting import factors
from crossknn.fitting.factors import Targets, error, per_item, per_query, ridge
from crossknn.index.base import Scale
from crossknn.retrievers.base import DenseRetriever, RandomItems
from crossknn.retrievers.lexical import BM25
from crossknn.types import Queries

QUERIES = Queries([f"query {q}" for q in range(7)])


def dense(m):
    """A dense retriever of 600 items, m queries, and the ranking of all items for each."""
    items, vectors = (
        np.random.default_rng(s).standard_normal((k, 5)) for s, k in ((1, 600), (0, m))
    )
    queries = Queries([f"query {q}" for q in range(m)], {"dense": vectors.astype(np.float32)})
    stage = DenseRetriever(items.astype(np.float32), lambda batch: batch.vectors["dense"])
    return stage, queries, np.argsort(-(vectors @ items.T), axis=1)


def rows(pairs, count):
    return pairs.query.reshape(-1, count), pairs.item.reshape(-1, count)


def test_per_query_takes_the_top_of_the_stage_query_by_query():
    stage, queries, best = dense(300)
    seen = []
    plan = per_query(stage, queries, 9, n=600, progress=lambda *step: seen.append(step))
    query, item = rows(plan.pairs, 9)
    assert (query == query[:, :1]).all()
    assert sorted(query[:, 0]) == list(range(300))
    assert query[:, 0].tolist() != list(range(300))
    assert np.array_equal(item, best[query[:, 0], :9])
    assert seen == [(256, 300), (300, 300)]


def test_a_part_of_a_querys_items_is_drawn_from_all_of_them():
    stage, queries, best = dense(40)
    plan = per_query(stage, queries, 120, n=600, random=60)
    query, item = rows(plan.pairs, 120)
    assert all(len(set(row)) == 120 for row in item.tolist())
    rank = np.argmax(best[query[:, 0]][:, None, :] == item[:, :, None], axis=2)
    assert (np.diff(rank[:, 60:]) > 0).all()  # the best of the others, in their order
    assert (rank[:, 60:].max(axis=1) < 100).all()
    assert np.array_equal(plan.random.item.reshape(-1, 60), item[:, :60])
    assert 280 < rank[:, :60].mean() < 320  # of all ranks alike, the best included


def test_per_query_fills_what_the_stage_does_not_find_with_random_items():
    stage = BM25.fit([f"word{i % 40} filler" if i % 40 else "seldom" for i in range(200)])
    queries = Queries(["seldom", "nothing of this", "word3"])
    found = []
    for seed in (0, 0, 1):
        query, item = rows(per_query(stage, queries, 50, n=200, seed=seed).pairs, 50)
        assert all(len(set(row)) == 50 for row in item.tolist())
        found.append(item[query[:, 0] == 0][0].tolist())
    assert set(found[0][:5]) == {0, 40, 80, 120, 160}
    assert found[0] == found[1]
    assert set(found[0]) != set(found[2])
    few = per_query(RandomItems(3, 0), QUERIES, 10, n=3).pairs
    assert sorted(zip(few.query, few.item, strict=True)) == [
        (q, i) for q in range(7) for i in range(3)
    ]


@given(st.integers(1, 30), st.integers(1, 12), st.data())
def test_per_item_gives_each_item_different_queries_in_rounds(n, q, data):
    count = data.draw(st.integers(1, q))
    pairs = per_item(n, q, count, seed=data.draw(st.integers(0, 99))).pairs
    assert len(set(zip(pairs.query, pairs.item, strict=True))) == len(pairs) == n * count
    assert pairs.query.min() >= 0
    assert pairs.query.max() < q
    for one in pairs.item.reshape(count, n):
        assert sorted(one) == list(range(n))


def als(scores, items, queries, *, scale=None, held_out=0.05, bias=0.0, **options):
    """A fit to these scores, from these vectors."""
    targets = Targets.of(scores, items, queries, scale=scale, held_out=held_out)
    return factors.als(targets, bias=bias, **options)


def low_rank(q=120, n=90, d=12, rank=4, noise=0.5):
    """Vectors of the encoder, and a table of rank `rank` that they know with noise."""
    rng = np.random.default_rng(0)
    plane = np.linalg.qr(rng.normal(size=(d, rank)))[0]
    u, v = rng.normal(size=(q, rank)) @ plane.T, rng.normal(size=(n, rank)) @ plane.T
    u0, v0 = (x + noise * rng.normal(size=x.shape) for x in (u, v))
    return u0.astype(np.float32), v0.astype(np.float32), u @ v.T


def misses(fit, table, without=None):
    """Root mean squared error of a fit on a normalised table, `without` some entries."""
    where = np.ones(table.shape, bool)
    if without is not None:
        where[without.query, without.item] = False
    wanted = fit.scale.beta * (table - fit.scale.alpha)
    return float(np.sqrt(np.mean((fit.queries @ fit.items.T - wanted)[where] ** 2)))


@settings(deadline=None)
@given(st.integers(1, 9), st.integers(1, 9), st.floats(0.01, 10), st.integers(0, 99))
def test_ridge_is_least_squares_on_an_augmented_system(b, d, strength, seed):
    rng = np.random.default_rng(seed)
    known, target = rng.normal(size=(3, b, d)), rng.normal(size=(3, b))
    found = ridge(known, target, strength)
    for row in range(3):
        system = np.vstack([known[row], np.sqrt(strength) * np.eye(d)])
        right = np.concatenate([target[row], np.zeros(d)])
        expected = np.linalg.lstsq(system, right, rcond=None)[0]
        np.testing.assert_allclose(found[row], expected, atol=1e-8)


def test_unobserved_entries_of_a_low_rank_table_are_recovered():
    u0, v0, table = low_rank()
    g = entries(table, 0.4)
    fit = als(g, v0, u0, strength=0.01, sweeps=60)
    assert misses(fit, table, g) < 0.1 * misses(replace(fit, items=v0, queries=u0), table, g)
    assert fit.held_out < 0.1 * fit.initial


def test_the_bias_is_the_least_squares_answer_with_one_coordinate_more():
    u0, v0, table = low_rank()
    g = entries(table, 0.3)
    fit = als(g, v0, u0, bias=2.0, sweeps=1, held_out=0, scale=Scale())
    square = (u0**2).sum(1).mean()
    known = np.column_stack([u0, np.full(len(u0), 2 * np.sqrt(square))]).astype(np.float64)
    of = g.item == 7
    start = np.append(v0[7], 0)
    system = known[g.query[of]]
    right = system.T @ (g.score[of] - system @ start)
    step = np.linalg.solve(system.T @ system + 0.3 * 5 * square * np.eye(13), right)
    np.testing.assert_allclose(fit.items[7], start + step, atol=1e-4)
    np.testing.assert_allclose(fit.map(u0), known, rtol=1e-6)


def test_the_vectors_are_those_of_the_best_sweep():
    u0, v0, table = low_rank()
    g = entries(table + 0.5 * np.random.default_rng(9).normal(size=table.shape), 0.3)
    fit = als(g, v0, u0, sweeps=30)
    errors = fit.details["errors"]
    assert 2 < len(errors) < 30
    assert errors[-1] >= errors[-2] == fit.held_out == min(errors)
    held = Targets.of(g, v0, u0).held
    assert error(held, fit.queries, fit.items) == pytest.approx(fit.held_out)


def test_items_without_a_score_stay_where_they_were():
    u0, v0, table = low_rank()
    g = entries(table, 0.4)
    g = g.take((g.item % 3 != 0) & (g.query != 7))
    fit = als(g, v0, u0, held_out=0)
    assert fit.untouched == 30
    np.testing.assert_array_equal(fit.items[::3], v0[::3])
    np.testing.assert_array_equal(fit.queries[7], u0[7])
    assert (fit.items[1::3] != v0[1::3]).any(axis=1).all()


@settings(deadline=None, max_examples=25)
@given(st.floats(0.1, 50), st.floats(-20, 20))
def test_scales_of_scores_and_vectors_do_not_matter(slope, shift):
    u0, v0, table = low_rank(q=20, n=15)
    fit = als(entries(table, 0.5), v0, u0, sweeps=2)
    other = als(entries(table, 0.5, raw=(slope, shift)), v0 / 8, u0 * 8, sweeps=2)
    np.testing.assert_allclose(other.items * 8, fit.items, atol=2e-3)
    assert other.scale.beta == pytest.approx(fit.scale.beta / slope, rel=1e-3)


def test_bad_counts_are_refused():
    u0, v0, table = low_rank()
    for message, call in (
        ("items per query is 0", lambda: per_query(RandomItems(5, 0), QUERIES, 0, n=5)),
        ("8 queries per item .* only 7", lambda: per_item(5, 7, 8)),
        ("0 queries per item", lambda: per_item(5, 7, 0)),
        ("all 1 scores", lambda: als(entries(table).take([0]), v0, u0, held_out=0.99)),
    ):
        with pytest.raises(InputError, match=message):
            call()
