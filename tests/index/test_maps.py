"""Maps of query vectors compute their formulas."""

from __future__ import annotations

from math import erf, exp, sqrt

import numpy as np
import pytest

from crossknn.index.fitted import GatedSkip


def gated(gate, *, d=3, h=4, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((h, d), (h,), (d, h), (d,))
    weights = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    return GatedSkip(*weights, np.array(gate, np.float32))


def by_hand(found, x):
    """One vector (d,), number by number."""
    h, d = found.inner.shape
    hidden = []
    for j in range(h):
        z = sum(float(found.inner[j, i]) * x[i] for i in range(d)) + float(found.inner_offset[j])
        hidden.append(0.5 * z * (1 + erf(z / sqrt(2))))
    moved = [
        sum(float(found.outer[i, j]) * hidden[j] for j in range(h)) + float(found.outer_offset[i])
        for i in range(d)
    ]
    s = 1 / (1 + exp(-float(found.gate)))
    return [s * moved[i] + (1 - s) * x[i] for i in range(d)]


@pytest.mark.parametrize("gate", [-5.0, 0.0, 1.5])
def test_a_gated_skip_is_its_formula(gate):
    found = gated(gate)
    vectors = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    result = found(vectors)
    assert result.dtype == np.float32
    expected = [by_hand(found, x) for x in vectors.astype(float).tolist()]
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-5)


def test_a_gate_of_infinity_has_no_skip_and_of_minus_infinity_nothing_else():
    vectors = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    no_skip, nearly = gated(np.inf), gated(40.0)
    assert np.isfinite(no_skip(vectors)).all()
    np.testing.assert_allclose(no_skip(vectors), nearly(vectors), rtol=1e-6)
    np.testing.assert_array_equal(gated(-np.inf)(vectors), vectors)
