"""Which pairs are scored, and factorizations of the scores: what is recovered, what must not move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.fitting.factors import Targets, als, error, per_item, per_query
from crossknn.retrievers.base import ArrayStore, DenseRetriever, RandomItems
from crossknn.retrievers.lexical import BM25
from crossknn.scores.sparse import SparseScores
from crossknn.types import Pairs, Queries, Scale

QUERIES = Queries([f"query {q}" for q in range(7)])


def dense(m):
    """A dense retriever of 600 items, m queries, and the ranking of all items for each."""
    items, vectors = (
        np.random.default_rng(s).standard_normal((k, 5)) for s, k in ((1, 600), (0, m))
    )
    queries = Queries([f"query {q}" for q in range(m)], {"dense": vectors.astype(np.float32)})
    stage = DenseRetriever(
        ArrayStore(items.astype(np.float32)), lambda batch: batch.vectors["dense"]
    )
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
    assert sorted(few.query * 3 + few.item) == list(range(21))


@given(st.integers(1, 30), st.integers(1, 12), st.data())
def test_per_item_gives_each_item_different_queries_in_rounds(n, q, data):
    count = data.draw(st.integers(1, q))
    pairs = per_item(n, q, count, seed=data.draw(st.integers(0, 99))).pairs
    assert len(set(zip(pairs.query, pairs.item, strict=True))) == len(pairs) == n * count
    assert pairs.query.min() >= 0
    assert pairs.query.max() < q
    for one in pairs.item.reshape(count, n):
        assert sorted(one) == list(range(n))


def fitted(method, scores, items, queries, *, scale=None, held_out=0.05, bias=0.0, **options):
    """What `als`, or a method of `crossknn_lab.mf`, makes of scores and vectors."""
    targets = Targets.of(scores, items, queries, scale=scale, held_out=held_out)
    if method == "als":
        return als(targets, bias=bias, **options)
    return getattr(pytest.importorskip("crossknn_lab.mf"), method)(targets, **options)


METHODS = FREE = ["als"]
"""The lab's tests run the same with its own ways to factorize."""


def pytest_generate_tests(metafunc):
    if "method" in metafunc.fixturenames:
        metafunc.parametrize("method", metafunc.module.METHODS)
    elif "free" in metafunc.fixturenames:
        metafunc.parametrize("free", metafunc.module.FREE)


def entries(table, share=1.0):
    """A random share of a table's entries."""
    query, item = np.nonzero(np.random.default_rng(0).random(table.shape) < share)
    texts = [f"query {row}" for row in range(len(table))]
    return SparseScores.of(texts, table.shape[1], Pairs(query, item), table[query, item])


def turned(q=100, n=80, d=8, noise=0.0):
    """Unit vectors of an encoder, and scores for which its items have to be turned."""
    rng = np.random.default_rng(0)
    u, v = (rng.normal(size=(count, d)) for count in (q, n))
    u, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (u, v))
    turn = np.eye(d) + 0.5 * rng.normal(size=(d, d))
    table = u @ turn @ v.T + noise * rng.normal(size=(q, n))
    return u.astype(np.float32), v.astype(np.float32), table


def test_unobserved_entries_are_recovered(method):
    u0, v0, table = turned()
    scores = entries(table, 0.5)
    options = {"lr": 0.01, "epochs": 150, "batch": 256}
    if method == "als":
        options = {"strength": 0.01, "sweeps": 60}
    fit = fitted(method, scores, v0, u0, **options)
    unseen = np.ones(table.shape, bool)
    unseen[scores.query, scores.item] = False
    wanted = fit.scale.beta * (table - fit.scale.alpha)
    errors = [
        np.sqrt(np.mean((u @ v.T - wanted)[unseen] ** 2))
        for u, v in ((fit.queries, fit.items), (u0, v0))
    ]
    assert errors[0] < 0.25 * errors[1]
    assert fit.held_out == pytest.approx(errors[0], rel=0.3)


def test_what_no_score_says_anything_of_does_not_move(free):
    u0, v0, table = turned()
    scores = entries(table, 0.3)
    scores = scores.take((scores.item % 4 != 0) & (scores.query != 3))
    options = {} if free == "als" else {"weight_decay": 5.0, "lr": 0.01, "batch": 32}
    fit = fitted(free, scores, v0, u0, **options)
    assert fit.untouched == 20
    np.testing.assert_array_equal(fit.items[::4], v0[::4])
    np.testing.assert_array_equal(fit.queries[3], u0[3])
    assert (fit.items[1::4] != v0[1::4]).any(axis=1).all()


def test_vectors_in_half_precision_stay_in_their_file(method, tmp_path):
    u0, v0, table = turned()
    scores, half = entries(table, 0.1), v0.astype(np.float16)
    np.save(tmp_path / "items.npy", half)
    mapped = np.load(tmp_path / "items.npy", mmap_mode="r")
    targets = Targets.of(scores, mapped, u0)
    assert targets.items is mapped
    one, other = (
        fitted(method, scores, items, u0, bias=2.0 * (method == "als"))
        for items in (mapped, half.astype(np.float32))
    )
    np.testing.assert_allclose(one.items, other.items, atol=1e-5)
    assert one.items.dtype == np.float32
    np.testing.assert_allclose(one.details["errors"], other.details["errors"], rtol=1e-4)


def test_the_vectors_are_those_of_the_least_error_on_what_is_held_out(free):
    u0, v0, table = turned(d=24, noise=0.2)
    scores = entries(table, 0.3)
    options = {"lr": 0.02, "batch": 64, "epochs": 60}
    if free == "als":
        options = {"strength": 0.02, "sweeps": 60}
    fit = fitted(free, scores, v0, u0, **options)
    errors = fit.details["errors"]
    assert 2 < len(errors) < 60
    assert np.argmin(errors) == len(errors) - (2 if free == "als" else 3)  # patience
    held = Targets.of(scores, v0, u0).held
    assert error(held, fit.queries, fit.items) == pytest.approx(min(errors), rel=1e-5)
    noise = entries(np.random.default_rng(4).normal(size=(100, 80)), 0.3)
    options = {"strength": 1e-6} if free == "als" else {"lr": 0.5, "epochs": 50}
    np.testing.assert_array_equal(fitted(free, noise, v0, u0, **options).items, v0)


def test_a_sweep_is_least_squares_on_an_augmented_system():
    """Of items with fewer scores than dimensions, and with more."""
    u0, v0, table = turned()
    g = entries(table, 0.1)
    fit = fitted("als", g, v0, u0, bias=2.0, sweeps=1, held_out=0, scale=Scale())
    square = (u0**2).sum(1).mean()
    known = np.column_stack([u0, np.full(len(u0), 2 * np.sqrt(square))]).astype(np.float64)
    assert {*(np.bincount(g.item) < 9)} == {True, False}
    for item, start in enumerate(np.pad(v0, ((0, 0), (0, 1)))):
        of = g.item == item
        system = np.vstack([known[g.query[of]], np.sqrt(0.3 * 5 * square) * np.eye(9)])
        right = np.append(g.score[of] - known[g.query[of]] @ start, np.zeros(9))
        step = np.linalg.lstsq(system, right, rcond=None)[0]
        np.testing.assert_allclose(fit.items[item], start + step, atol=1e-4)
    np.testing.assert_allclose(fit.map(u0), known, rtol=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.1, 50), st.floats(-20, 20))
def test_scales_of_scores_and_vectors_do_not_matter(slope, shift):
    u0, v0, table = turned(q=20, n=15)
    fit = fitted("als", entries(table, 0.5), v0, u0, sweeps=2)
    other = fitted("als", entries(slope * table + shift, 0.5), v0 / 8, u0 * 8, sweeps=2)
    np.testing.assert_allclose(other.items * 8, fit.items, atol=2e-3)
    assert other.scale.beta == pytest.approx(fit.scale.beta / slope, rel=1e-3)


def test_bad_counts_are_refused():
    u0, v0, table = turned()
    for message, call in (
        ("items per query is 0", lambda: per_query(RandomItems(5, 0), QUERIES, 0, n=5)),
        ("8 queries per item .* only 7", lambda: per_item(5, 7, 8)),
        ("0 queries per item", lambda: per_item(5, 7, 0)),
        ("all 1 scores", lambda: Targets.of(entries(table).take([0]), v0, u0, held_out=0.99)),
    ):
        with pytest.raises(InputError, match=message):
            call()
