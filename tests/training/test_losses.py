"""Losses and their gradients, written out by hand."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

torch = pytest.importorskip("torch")

from crossknn.training.losses import (  # noqa: E402
    distance_to_teacher,
    in_batch_cross_entropy,
    pair_cross_entropy,
    softmax_cross_entropy,
)

pytestmark = pytest.mark.torch


def with_gradient(loss, scores, *arguments):
    scores = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    value = loss(scores, *arguments)
    value.backward()
    return float(value.detach()), scores.grad.numpy()


SCORES = st.integers(2, 5).flatmap(
    lambda c: arrays(np.float64, (3, c), elements=st.floats(-20, 20, width=32))
)


@settings(deadline=None)
@given(SCORES, st.data())
def test_both_are_log_sum_exp_less_the_gold_score(scores, data):
    b, c = scores.shape
    gold = np.array(data.draw(st.lists(st.integers(0, c - 1), min_size=b, max_size=b)))
    wrong = data.draw(arrays(bool, (b, c)))
    wrong[np.arange(b), gold] = False
    counted = wrong.copy()
    counted[np.arange(b), gold] = True
    sums = np.log((np.exp(scores) * counted).sum(1))
    expected = (sums - scores[np.arange(b), gold]).mean()
    value, gradient = with_gradient(
        in_batch_cross_entropy, scores, torch.from_numpy(gold), torch.from_numpy(wrong)
    )
    assert value == pytest.approx(expected, abs=1e-9)
    np.testing.assert_allclose(gradient.sum(1), 0, atol=1e-12)  # a shift of a row changes nothing
    assert not gradient[~counted].any()

    first = np.ones((b, c), dtype=bool)
    first[:, 1:] = wrong[:, 1:]
    sums = np.log((np.exp(scores) * first).sum(1))
    value, _ = with_gradient(softmax_cross_entropy, scores, torch.from_numpy(first))
    assert value == pytest.approx((sums - scores[:, 0]).mean(), abs=1e-9)


# Against a teacher's scores


def test_pair_by_hand():
    """Row 1: 3 against 1 and 1 against 4; row 2: 1 against 1, then nothing; row 3: nothing.

    -log softmax: log(4/3) and log 5, so their mean; log 2; 0. A pair's gradient is the softmax of
    its wrong item, over the number of pairs and of queries.
    """
    right = torch.tensor([[log(3), 0], [0, 9], [5, 5]], dtype=torch.float64, requires_grad=True)
    present = torch.tensor([[True, True], [True, False], [False, False]])
    wrong = [[log(1), log(4)], [log(1), 2], [1, 1]]
    value, gradient = with_gradient(
        lambda scores: pair_cross_entropy(right, scores, present), wrong
    )
    assert value == pytest.approx(((log(4 / 3) + log(5)) / 2 + log(2)) / 3)
    expected = np.array([[1 / 4 / 2, 4 / 5 / 2], [1 / 2, 0], [0, 0]]) / 3
    np.testing.assert_allclose(gradient, expected, atol=1e-12)
    np.testing.assert_allclose(right.grad.numpy(), -expected, atol=1e-12)


def test_the_distance_to_a_teacher_by_hand():
    """Cosines 1 and 0; the batch's similarities are 0 for the model and 1 for the teacher, once
    on each side of the diagonal: (1 - 1 + 1 - 0) / 2 + 10 * 2 / 4."""
    own = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
    taught = torch.tensor([[1.0, 0.0], [3.0, 0.0]])
    assert distance_to_teacher(own, taught).item() == pytest.approx(0.5 + 10 * 0.5)
