"""Factorization by descent: gradients by hand, steps against torch's own, and what must not move."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")


from crossknn.errors import InputError, TrainingError  # noqa: E402
from crossknn.fitting import mf  # noqa: E402
from crossknn.fitting.factors import Targets  # noqa: E402
from crossknn.fitting.mf import descend, entries, squared_error  # noqa: E402
from crossknn.index.base import Scale  # noqa: E402
from crossknn.scores.store import SparseScores  # noqa: E402
from crossknn.types import Pairs  # noqa: E402

pytestmark = pytest.mark.torch

CPU = torch.device("cpu")


def fits(method):
    """`method` on scores, from vectors."""

    def fit(scores, items, queries, *, scale=None, held_out=0.05, seed=0, **options):
        targets = Targets.of(scores, items, queries, scale=scale, held_out=held_out, seed=seed)
        return method(targets, seed=seed, **options)

    return fit


mf_trns, mf_ind = fits(mf.mf_trns), fits(mf.mf_ind)


def scores_of(table, share=1.0, *, seed=0):
    """A random share of a table's entries."""
    q, n = table.shape
    query, item = np.nonzero(np.random.default_rng(seed).random((q, n)) < share)
    texts = [f"query {r}" for r in range(q)]
    return SparseScores.of(texts, n, Pairs(query, item), table[query, item])


def turned(q=100, n=80, d=8, noise=0.0, seed=0):
    """Unit vectors of an encoder, and scores for which its items have to be turned."""
    rng = np.random.default_rng(seed)
    u, v = (rng.normal(size=(count, d)) for count in (q, n))
    u, v = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (u, v))
    turn = np.eye(d) + 0.5 * rng.normal(size=(d, d))
    table = u @ turn @ v.T + noise * rng.normal(size=(q, n))
    return u.astype(np.float32), v.astype(np.float32), table


def targets_of(u0, v0, scores):
    """Scores as they are, all to be fitted."""
    return Targets(v0, u0, Scale(), scores, scores.take(np.zeros(0, int)), float("nan"))


def step(factors, targets, *, learning_rate=0.1, weight_decay=0.0, epochs=1):
    """Descend in steps of all entries."""
    batch = len(targets.fitted)
    return descend(
        factors,
        targets,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        epochs=epochs,
        batch=batch,
        seed=0,
    )


def test_loss_and_gradient_by_hand():
    """u = (1, 2), v1 = (3, 4), v2 = (1, 0): products 11 and 1, scores 10 and 3: misses 1 and -2.

    The loss is (1 + 4) / 2. d/du = (2 * 1 * v1 - 2 * 2 * v2) / 2 = v1 - 2 v2 = (1, 4);
    d/dv1 = u = (1, 2), d/dv2 = -2 u = (-2, -4).
    """
    u0, v0 = np.array([[1, 2]], np.float32), np.array([[3, 4], [1, 0]], np.float32)
    targets = targets_of(u0, v0, scores_of(np.array([[10.0, 3.0]])))
    free = mf.free_factors(targets)
    loss = squared_error(free, *entries(targets.fitted, CPU))
    loss.backward()
    assert float(loss.detach()) == 2.5
    np.testing.assert_array_equal(free.query.moved.grad, [[1, 4]])
    np.testing.assert_array_equal(free.item.moved.grad, [[1, 2], [-2, -4]])


def test_three_steps_are_those_of_torch_on_dense_tables():
    u0, v0, table = turned(q=6, n=5)
    targets = targets_of(u0, v0, scores_of(table))
    free = mf.free_factors(targets)
    step(free, targets, epochs=3)
    u, v = (torch.tensor(x, requires_grad=True) for x in (u0, v0))
    optimizer = torch.optim.AdamW([u, v], lr=0.1, weight_decay=0.0)
    wanted = torch.tensor(table, dtype=torch.float32)
    for _ in range(3):
        optimizer.zero_grad()
        (u @ v.T - wanted).square().mean().backward()
        optimizer.step()
    for found, expected in zip((free.query.vectors(), free.item.vectors()), (u, v), strict=True):
        np.testing.assert_allclose(found, expected.detach(), atol=1e-5)


def test_weight_decay_draws_to_the_initial_vectors():
    u0, v0, table = turned()
    scores = scores_of(table, 0.3)
    fits = [mf_trns(scores, v0, u0, weight_decay=w, epochs=9, held_out=0) for w in (0, 200, 900)]
    distances = [np.linalg.norm(fit.items - v0) for fit in fits]
    assert distances[0] > 1.2 * distances[1] > 1.2**2 * distances[2] > 0


def test_what_no_score_says_anything_of_does_not_move():
    u0, v0, table = turned()
    scores = scores_of(table, 0.3)
    scores = scores.take((scores.item % 4 != 0) & (scores.query != 3))
    fit = mf_trns(scores, v0, u0, weight_decay=5.0, lr=0.01, batch=32)
    assert fit.untouched == 20
    np.testing.assert_array_equal(fit.items[::4], v0[::4])
    np.testing.assert_array_equal(fit.queries[3], u0[3])
    assert (fit.items[1::4] != v0[1::4]).any(axis=1).all()


def test_entries_only_held_out_do_not_move_an_item():
    u0, v0, table = turned()
    targets = Targets.of(scores_of(table, 0.02), v0, u0, scale=None, held_out=0.3, seed=0)
    only_held = np.setdiff1d(targets.held.item, targets.fitted.item)
    assert len(only_held)
    fit = mf_trns(scores_of(table, 0.02), v0, u0, held_out=0.3, weight_decay=0.5)
    assert fit.untouched == targets.untouched
    np.testing.assert_array_equal(fit.items[only_held], v0[only_held])


@pytest.mark.parametrize("fit_with", [mf_trns, mf_ind])
def test_unobserved_entries_are_recovered(fit_with):
    u0, v0, table = turned()
    scores = scores_of(table, 0.5)
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


@pytest.mark.parametrize("fit_with", [mf_trns, mf_ind])
def test_the_same_seed_gives_the_same_fit(fit_with):
    u0, v0, table = turned()
    scores = scores_of(table, 0.3)
    torch.manual_seed(11)
    first = fit_with(scores, v0, u0, seed=1, epochs=2)
    torch.manual_seed(12)
    state = torch.get_rng_state()
    again = fit_with(scores, v0, u0, seed=1, epochs=2)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(first.items, again.items)
    assert fit_with(scores, v0, u0, seed=2, epochs=2).held_out != first.held_out


def test_it_stops_when_held_out_entries_gain_nothing_and_keeps_the_best():
    u0, v0, _ = turned()
    noise = np.random.default_rng(4).normal(size=(100, 80))
    fit = mf_trns(scores_of(noise, 0.3), v0, u0, lr=0.5, epochs=50)
    assert fit.details["best_epoch"] == 0
    assert fit.details["epochs"] == 2
    assert fit.held_out == pytest.approx(fit.initial)
    np.testing.assert_array_equal(fit.items, v0)


def test_the_best_epoch_is_the_one_that_is_kept():
    u0, v0, table = turned(noise=0.1)
    scores = scores_of(table, 0.2)
    fit = mf_trns(scores, v0, u0, lr=0.02, batch=64, epochs=60)
    errors = fit.details["errors"]
    assert 0 < fit.details["best_epoch"] == np.argmin(errors) + 1 == len(errors) - 2
    held = Targets.of(scores, v0, u0, scale=None, held_out=0.05, seed=0).held
    miss = (fit.queries @ fit.items.T)[held.query, held.item] - held.score
    assert np.sqrt(np.mean(miss**2)) == pytest.approx(min(errors), rel=1e-5)


def test_without_held_out_entries_all_epochs_are_done_and_the_last_is_kept():
    u0, v0, table = turned()
    fit = mf_trns(scores_of(table, 0.3), v0, u0, epochs=4, held_out=0)
    assert fit.details["best_epoch"] == fit.details["epochs"] == 4
    assert np.isnan(fit.held_out)
    assert not np.array_equal(fit.items, v0)


@pytest.mark.parametrize("skip", [True, False])
def test_numpy_computes_what_torch_does(skip):
    u0, v0, table = turned()
    targets = targets_of(u0, v0, scores_of(table, 0.3))
    pair = mf.perceptrons(targets, 16, skip, 0)
    step(pair, targets, learning_rate=0.01, epochs=3)
    with torch.no_grad():
        expected = [pair.query(torch.arange(len(u0))).numpy(), pair.item(torch.arange(len(v0)))]
        products = pair(*(torch.from_numpy(x) for x in (targets.fitted.query, targets.fitted.item)))
    for found, wanted in zip((pair.query.vectors(), pair.item.vectors()), expected, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)
    queries, items = (pair.query.vectors(), pair.item.vectors())
    dense = (queries @ items.T)[targets.fitted.query, targets.fitted.item]
    np.testing.assert_allclose(products, dense, atol=1e-5)


def test_perceptrons_start_near_the_encoder_and_apart():
    """The gate is -5: 0.7% of a perceptron's output, two different ones."""
    u0, v0, table = turned()
    pair = mf.perceptrons(targets_of(u0, v0, scores_of(table)), 16, True, 0)
    assert pair.query.gate.item() == -5
    queries, items = (pair.query.vectors(), pair.item.vectors())
    np.testing.assert_allclose(queries, u0, atol=0.02)
    np.testing.assert_allclose(items, v0, atol=0.02)
    assert not torch.equal(pair.query.inner.weight, pair.item.inner.weight)


def test_items_nobody_scored_and_new_queries_are_embedded():
    """A third of the items and of the queries have no score: the perceptrons carry over."""
    u0, v0, table = turned(q=300, n=300)
    scores = scores_of(table, 0.3)
    scores = scores.take((scores.item % 3 != 0) & (scores.query % 3 != 0))
    fit = mf_ind(scores, v0, u0, lr=0.01, epochs=60)
    assert fit.untouched == 0
    wanted = (fit.scale.beta * (table - fit.scale.alpha))[::3, ::3]
    error = np.sqrt(np.mean((fit.map(u0[::3]) @ fit.item_map(v0[::3]).T - wanted) ** 2))
    start = np.sqrt(np.mean((u0[::3] @ v0[::3].T - wanted) ** 2))
    assert error < 0.5 * start
    np.testing.assert_allclose(fit.items[::3], fit.item_map(v0[::3]), atol=1e-6)


def test_the_ablation_has_no_skip():
    u0, v0, table = turned()
    fit = mf_ind(scores_of(table, 0.3), v0, u0, epochs=2, skip=False)
    assert fit.map.gate == fit.item_map.gate == np.inf
    assert fit.details["skip"] is False
    zero = fit.map(np.zeros((1, 8), np.float32))
    moved = replace(fit.map, inner=0 * fit.map.inner)(u0)  # nothing of the input comes through
    np.testing.assert_allclose(moved, np.repeat(zero, 100, axis=0), atol=1e-6)


def test_what_cannot_be_fitted():
    u0, v0, table = turned()
    scores = scores_of(table, 0.3)
    for message, fit_with, options in (
        ("learning_rate is 0", mf_trns, {"lr": 0}),
        ("epochs 0", mf_ind, {"epochs": 0}),
        ("hidden is 0", mf_ind, {"hidden": 0}),
        ("the device 'nowhere'", mf_trns, {"device": "nowhere"}),
        (r"item vectors have the shape \(80,\)", mf_trns, {"items": v0[:, 0]}),
    ):
        with pytest.raises(InputError, match=message):
            fit_with(scores, **({"items": v0, "queries": u0} | options))
    with pytest.raises(TrainingError, match=r"epoch \d is not a number.*lower learning_rate"):
        mf_trns(scores, v0, u0, lr=1e30, held_out=0)
