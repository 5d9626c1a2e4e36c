"""Factorization by descent: steps against torch's own, recovery, and what must not move."""

from __future__ import annotations

import numpy as np
import pytest
from fit_helpers import entries

torch = pytest.importorskip("torch")


from crossknn.errors import TrainingError  # noqa: E402
from crossknn.fitting import mf  # noqa: E402
from crossknn.fitting.factors import Targets, error  # noqa: E402
from crossknn.index.base import Scale  # noqa: E402

pytestmark = pytest.mark.torch


def fits(method):
    """`method` on scores, from vectors."""

    def fit(scores, items, queries, *, scale=None, held_out=0.05, **options):
        return method(Targets.of(scores, items, queries, scale=scale, held_out=held_out), **options)

    return fit


mf_trns, mf_ind = fits(mf.mf_trns), fits(mf.mf_ind)


def turned(q=100, n=80, d=8, noise=0.0, seed=0):
    """Unit vectors of an encoder, and scores for which its items have to be turned."""
    rng = np.random.default_rng(seed)
    u, v = (rng.normal(size=(count, d)) for count in (q, n))
    u, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (u, v))
    turn = np.eye(d) + 0.5 * rng.normal(size=(d, d))
    table = u @ turn @ v.T + noise * rng.normal(size=(q, n))
    return u.astype(np.float32), v.astype(np.float32), table


def test_three_steps_are_those_of_torch_on_dense_tables():
    u0, v0, table = turned(q=6, n=5)
    options = {"scale": Scale(), "held_out": 0, "batch": 30, "lr": 0.1, "weight_decay": 0.0}
    fit = mf_trns(entries(table), v0, u0, epochs=3, **options)
    u, v = (torch.tensor(x, requires_grad=True) for x in (u0, v0))
    optimizer = torch.optim.AdamW([u, v], lr=0.1, weight_decay=0.0)
    wanted = torch.tensor(table, dtype=torch.float32)
    for _ in range(3):
        optimizer.zero_grad()
        (u @ v.T - wanted).square().mean().backward()
        optimizer.step()
    np.testing.assert_allclose(fit.queries, u.detach(), atol=1e-5)
    np.testing.assert_allclose(fit.items, v.detach(), atol=1e-5)


def test_what_no_score_says_anything_of_does_not_move():
    u0, v0, table = turned()
    scores = entries(table, 0.3)
    scores = scores.take((scores.item % 4 != 0) & (scores.query != 3))
    fit = mf_trns(scores, v0, u0, weight_decay=5.0, lr=0.01, batch=32)
    assert fit.untouched == 20
    np.testing.assert_array_equal(fit.items[::4], v0[::4])
    np.testing.assert_array_equal(fit.queries[3], u0[3])
    assert (fit.items[1::4] != v0[1::4]).any(axis=1).all()


@pytest.mark.parametrize("fit_with", [mf_trns, mf_ind])
def test_unobserved_entries_are_recovered(fit_with):
    u0, v0, table = turned()
    scores = entries(table, 0.5)
    fit = fit_with(scores, v0, u0, lr=0.01, epochs=150, batch=256)
    unseen = np.ones(table.shape, bool)
    unseen[scores.query, scores.item] = False
    wanted = fit.scale.beta * (table - fit.scale.alpha)
    errors = [
        np.sqrt(np.mean((u @ v.T - wanted)[unseen] ** 2))
        for u, v in ((fit.queries, fit.items), (u0, v0))
    ]
    assert errors[0] < 0.25 * errors[1]
    assert fit.held_out == pytest.approx(errors[0], rel=0.3)


def test_the_vectors_are_those_of_the_best_epoch():
    u0, v0, table = turned(noise=0.1)
    scores = entries(table, 0.2)
    fit = mf_trns(scores, v0, u0, lr=0.02, batch=64, epochs=60)
    errors = fit.details["errors"]
    assert 0 < fit.details["best_epoch"] == np.argmin(errors) + 1 == len(errors) - 2
    held = Targets.of(scores, v0, u0).held
    assert error(held, fit.queries, fit.items) == pytest.approx(min(errors), rel=1e-5)
    noise = entries(np.random.default_rng(4).normal(size=(100, 80)), 0.3)
    none = mf_trns(noise, v0, u0, lr=0.5, epochs=50)
    assert (none.details["best_epoch"], none.details["epochs"]) == (0, 2)
    np.testing.assert_array_equal(none.items, v0)


def test_without_held_out_entries_all_epochs_are_done_and_the_last_is_kept():
    u0, v0, table = turned()
    seen = []
    options = {"epochs": 4, "held_out": 0, "progress": lambda *step: seen.append(step)}
    fit = mf_trns(entries(table, 0.3), v0, u0, **options)
    assert fit.details["best_epoch"] == fit.details["epochs"] == 4
    assert np.isnan(fit.held_out)
    assert not np.array_equal(fit.items, v0)
    assert seen == [(step, 4) for step in (1, 2, 3, 4)]


@pytest.mark.parametrize("skip", [True, False])
def test_numpy_computes_what_torch_does(skip):
    start = turned()[0]
    side = mf.PerceptronSide(start, 16, skip)
    with torch.no_grad():
        expected = side(torch.arange(len(start))).numpy()
    np.testing.assert_allclose(side.vectors(), expected, atol=1e-6)
    # The gate is -5: 0.7% of the perceptron's output.
    assert np.allclose(side.vectors(), start, atol=0.02) == skip


def test_an_error_that_is_no_number_is_said():
    u0, v0, table = turned()
    with pytest.raises(TrainingError, match=r"epoch \d is not a number.*lower lr"):
        mf_trns(entries(table, 0.3), v0, u0, lr=1e30, held_out=0)
