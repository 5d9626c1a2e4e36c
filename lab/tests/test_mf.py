"""MF_TRNS and MF_IND: what holds for ALS, and what torch computes."""

from __future__ import annotations

import numpy as np
import pytest
from fitting.test_factors import (  # noqa: F401
    entries,
    fitted,
    pytest_generate_tests,
    test_the_vectors_are_those_of_the_least_error_on_what_is_held_out,
    test_unobserved_entries_are_recovered,
    test_vectors_in_half_precision_stay_in_their_file,
    test_what_no_score_says_anything_of_does_not_move,
    turned,
)

from crossknn.errors import TrainingError
from crossknn.types import Scale

METHODS = [pytest.param(name, marks=pytest.mark.torch) for name in ("mf_trns", "mf_ind")]
FREE = METHODS[:1]


@pytest.mark.torch
def test_three_steps_are_those_of_torch_on_dense_tables():
    torch = pytest.importorskip("torch")
    u0, v0, table = turned(q=6, n=5)
    seen = []
    options = {"batch": 30, "lr": 0.1, "weight_decay": 0.0, "progress": lambda *at: seen.append(at)}
    fit = fitted("mf_trns", entries(table), v0, u0, scale=Scale(), held_out=0, epochs=3, **options)
    u, v = (torch.tensor(x, requires_grad=True) for x in (u0, v0))
    optimizer = torch.optim.AdamW([u, v], lr=0.1, weight_decay=0.0)
    wanted = torch.tensor(table, dtype=torch.float32)
    for _ in range(3):
        optimizer.zero_grad()
        (u @ v.T - wanted).square().mean().backward()
        optimizer.step()
    np.testing.assert_allclose(fit.queries, u.detach(), atol=1e-5)
    np.testing.assert_allclose(fit.items, v.detach(), atol=1e-5)
    assert fit.details["best_epoch"] == fit.details["epochs"] == 3
    assert np.isnan(fit.held_out)
    assert seen == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.torch
@pytest.mark.parametrize("skip", [True, False])
def test_numpy_computes_what_torch_does(skip):
    torch, start = pytest.importorskip("torch"), turned()[0]
    side = pytest.importorskip("crossknn_lab.mf").PerceptronSide(start, 16, skip)
    with torch.no_grad():
        expected = side(torch.arange(len(start))).numpy()
    np.testing.assert_allclose(side.vectors(), expected, atol=1e-6)
    # The gate is -5: 0.7% of the perceptron's output.
    assert np.allclose(side.vectors(), start, atol=0.02) == skip


@pytest.mark.torch
def test_an_error_that_is_no_number_is_said():
    u0, v0, table = turned()
    with pytest.raises(TrainingError, match=r"epoch \d is not a number.*lower lr"):
        fitted("mf_trns", entries(table, 0.3), v0, u0, lr=1e30, held_out=0)
