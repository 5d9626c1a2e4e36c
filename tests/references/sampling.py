"""Drawing items by their values: ADACUR algorithm 3, which its oracle samplers use too."""

import numpy as np

from .problem import FloatArray, IntArray


def softmax(values: FloatArray) -> FloatArray:
    """exp(values) divided by their sum; -inf gives 0."""
    weights = np.exp(values - values.max())
    return weights / weights.sum()


def masked_softmax(values: FloatArray, masked: IntArray) -> FloatArray:
    """Softmax over all items but the masked ones, which have probability 0.

    Algorithm 3, lines 7 and 8, masks after the softmax; drawn from in proportion it is the same
    distribution, but masking first keeps small weights from becoming 0.
    """
    left = values.copy()
    left[masked] = -np.inf
    return softmax(left)


def draw(values: FloatArray, masked: IntArray, size: int, rng: np.random.Generator) -> IntArray:
    """`size` items one after the other, each by the softmax over those not masked or drawn yet."""
    drawn = np.empty(0, dtype=np.intp)
    for _ in range(size):
        probabilities = masked_softmax(values, np.concatenate([masked, drawn]))
        drawn = np.append(drawn, rng.choice(len(values), p=probabilities))
    return drawn
