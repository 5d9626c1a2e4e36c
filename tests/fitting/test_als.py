"""Alternating least squares: the closed form, and what a fit must and must not do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crossknn.errors import InputError
from crossknn.fitting import als as method
from crossknn.fitting.als import ridge
from crossknn.fitting.factors import Targets, error, inner_products
from crossknn.index.base import Scale
from crossknn.scores.store import SparseScores
from crossknn.types import Pairs


def als(scores, items, queries, *, scale=None, held_out=0.05, seed=0, bias=0.0, **options):
    """A fit to these scores, from these vectors."""
    targets = Targets.of(scores, items, queries, scale=scale, held_out=held_out, seed=seed)
    return method.als(targets, bias=bias, **options)


def entries(table, share=1.0, *, seed=0, raw=(1.0, 0.0)):
    """A random share of a table's entries, as raw scores `raw[0] * value + raw[1]`."""
    q, n = table.shape
    query, item = np.nonzero(np.random.default_rng(seed).random((q, n)) < share)
    score = raw[0] * table[query, item] + raw[1]
    return SparseScores.of([f"query {r}" for r in range(q)], n, Pairs(query, item), score)


def low_rank(q=120, n=90, d=12, rank=4, noise=0.5, seed=0):
    """Vectors of the encoder, and a table of rank `rank` that they know with noise."""
    rng = np.random.default_rng(seed)
    plane = np.linalg.qr(rng.normal(size=(d, rank)))[0]
    u, v = rng.normal(size=(q, rank)) @ plane.T, rng.normal(size=(n, rank)) @ plane.T
    u0, v0 = (x + noise * rng.normal(size=x.shape) for x in (u, v))
    return u0.astype(np.float32), v0.astype(np.float32), u @ v.T


def misses(fit, table, where):
    """Root mean squared error of a fit on entries of a normalised table."""
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
    unseen = np.ones(table.shape, bool)
    unseen[g.query, g.item] = False
    fit = als(g, v0, u0, strength=0.01, sweeps=60)
    before = misses(replace(fit, items=v0, queries=u0), table, unseen)
    assert misses(fit, table, unseen) < 0.1 * before
    assert fit.held_out < 0.1 * fit.initial


def test_where_scores_are_few_the_encoder_helps():
    u0, v0, table = low_rank(noise=0.2)
    g = entries(table, 0.05)
    rng = np.random.default_rng(5)
    chance = [rng.permutation(x.ravel()).reshape(x.shape) for x in (v0, u0)]
    everywhere = np.ones(table.shape, bool)
    known, random = als(g, v0, u0), als(g, *chance)
    errors = [misses(f, table, everywhere) / f.scale.beta for f in (known, random)]
    assert errors[0] < 0.6 * errors[1]


def test_a_sweep_lowers_what_is_minimised():
    u0, v0, table = low_rank()
    g = entries(table, 0.3)

    def objective(fit):
        """`strength * mean squared length`, of one side, weighs the distances of the other."""
        goal = fit.scale.beta * (g.score - fit.scale.alpha)
        miss = inner_products(fit.queries, fit.items, g.query, g.item) - goal
        to_items, to_queries = (0.3 * (x**2).sum(1).mean() for x in (u0, v0))
        moved = to_items * ((fit.items - v0) ** 2).sum()
        return (miss**2).sum() + moved + to_queries * ((fit.queries - u0) ** 2).sum()

    fits = [als(g, v0, u0, sweeps=s, held_out=0) for s in (1, 2, 3, 6)]
    values = [objective(replace(fits[0], items=v0, queries=u0)), *map(objective, fits)]
    assert (np.diff(values) < 0).all()


def liked(q=40, n=200, d=6, seed=0):
    """Vectors that know nothing, and a table of items that every query likes as much."""
    rng = np.random.default_rng(seed)
    u0, v0 = (rng.normal(size=(rows, d)).astype(np.float32) for rows in (q, n))
    return u0, v0, np.tile(rng.normal(size=n), (q, 1))


def test_a_bias_learns_which_items_are_liked_whatever_the_query():
    u0, v0, table = liked()
    g = entries(table, 0.25)
    unseen = np.ones(table.shape, bool)
    unseen[g.query, g.item] = False
    scale = Scale(alpha=0.0, beta=1.0)
    biased, plain = (als(g, v0, u0, bias=bias, scale=scale) for bias in (2.0, 0.0))
    assert misses(biased, table, unseen) < 0.5 * misses(plain, table, unseen)
    of_no_query = biased.map(np.zeros((1, 6), np.float32)) @ biased.items.T
    assert np.corrcoef(of_no_query[0], table[0])[0, 1] > 0.9


def test_the_bias_is_the_least_squares_answer_with_one_coordinate_more():
    u0, v0, table = low_rank()
    g = entries(table, 0.3)
    fit = als(g, v0, u0, bias=2.0, sweeps=1, held_out=0, scale=Scale(alpha=0.0, beta=1.0))
    square = (u0**2).sum(1).mean()
    known = np.column_stack([u0, np.full(len(u0), 2 * np.sqrt(square))]).astype(np.float64)
    of = g.item == 7
    start = np.append(v0[7], 0)
    system = known[g.query[of]]
    right = system.T @ (g.score[of] - system @ start)
    step = np.linalg.solve(system.T @ system + 0.3 * 5 * square * np.eye(13), right)
    np.testing.assert_allclose(fit.items[7], start + step, atol=1e-4)
    np.testing.assert_allclose(fit.map(u0), known, rtol=1e-6)


def test_an_infinite_strength_leaves_the_vectors():
    u0, v0, table = low_rank()
    fit = als(entries(table, 0.3), v0, u0, strength=1e9)
    np.testing.assert_allclose(fit.items, v0, atol=1e-6)
    np.testing.assert_allclose(fit.queries, u0, atol=1e-6)


def test_noise_leaves_the_vectors_because_held_out_entries_do():
    u0, v0, _ = low_rank()
    noise = np.random.default_rng(8).normal(size=(120, 90))
    fit = als(entries(noise, 0.1), v0, u0)
    assert fit.details["sweeps"] == 1
    assert fit.held_out == fit.initial
    np.testing.assert_array_equal(fit.items, v0)


def test_the_vectors_are_those_of_the_best_sweep():
    u0, v0, table = low_rank()
    g = entries(table + 0.5 * np.random.default_rng(9).normal(size=table.shape), 0.3)
    fit = als(g, v0, u0, sweeps=30)
    errors = fit.details["errors"]
    assert 2 < len(errors) < 30
    assert errors[-1] >= errors[-2] == fit.held_out == min(errors)
    held = Targets.of(g, v0, u0, scale=None, held_out=0.05, seed=0).held
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


def test_permuting_the_items_permutes_their_vectors():
    u0, v0, table = low_rank()
    order = np.random.default_rng(2).permutation(90)
    back = np.argsort(order)
    g = entries(table, 0.3)
    moved = SparseScores.of(g.queries, g.n, Pairs(g.query, back[g.item]), g.score)
    fit, other = als(g, v0, u0, held_out=0), als(moved, v0[order], u0, held_out=0)
    np.testing.assert_allclose(other.items, fit.items[order], atol=1e-3)


@settings(deadline=None, max_examples=25)
@given(st.floats(0.1, 50), st.floats(-20, 20))
def test_the_scale_of_raw_scores_does_not_matter(slope, shift):
    u0, v0, table = low_rank(q=20, n=15)
    fit = als(entries(table, 0.5), v0, u0, sweeps=2)
    other = als(entries(table, 0.5, raw=(slope, shift)), v0, u0, sweeps=2)
    np.testing.assert_allclose(other.items, fit.items, atol=2e-3)
    assert other.scale.beta == pytest.approx(fit.scale.beta / slope, rel=1e-3)


def test_the_length_of_the_encoders_vectors_does_not_matter():
    u0, v0, table = low_rank()
    g = entries(table, 0.3)
    fit, other = als(g, v0, u0), als(g, v0 / 8, u0 * 8)
    np.testing.assert_allclose(other.items * 8, fit.items, atol=1e-3)


def test_targets_have_the_mean_and_deviation_of_the_inner_products():
    u0, v0, table = low_rank()
    g = entries(table, 0.3, raw=(3.0, -7.0))
    targets = Targets.of(g, v0, u0, scale=None, held_out=0.0, seed=0)
    products = (u0 @ v0.T)[g.query, g.item]
    assert targets.fitted.score.mean() == pytest.approx(products.mean(), abs=1e-5)
    assert targets.fitted.score.std() == pytest.approx(products.std(), rel=1e-5)
    assert np.isnan(targets.initial)  # nothing was held out


def test_what_cannot_be_fitted():
    u0, v0, table = low_rank()
    g = entries(table, 0.3)
    broken = v0.copy()
    broken[4, 1] = np.nan
    for message, arguments, options in (
        (r"item vectors have the shape \(89, 12\).*\(90, d\)", (g, v0[1:], u0), {}),
        (r"query vectors have the shape \(121, 12\)", (g, v0, np.vstack([u0, u0[:1]])), {}),
        ("item vectors have 11 dimensions and query vectors 12", (g, v0[:, 1:], u0), {}),
        ("vector of item 4 holds", (g, broken, u0), {}),
        ("no train query has a score", (g.take(np.zeros(0, int)), v0, u0), {}),
        ("all 1 scores", (g.take(np.array([0])), v0, u0), {"held_out": 0.99}),
        ("held_out is 1", (g, v0, u0), {"held_out": 1}),
        ("strength is 0", (g, v0, u0), {"strength": 0}),
        ("bias -1", (g, v0, u0), {"bias": -1}),
        ("sweeps 0", (g, v0, u0), {"sweeps": 0}),
    ):
        with pytest.raises(InputError, match=message):
            als(*arguments, **options)
