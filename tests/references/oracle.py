"""Samplers that see all exact scores: ADACUR section 3.2.

Oracle samplers pick k_i (`count`) anchor items. Both mask the k_m (`masked`) items of highest exact
score and pick a share epsilon (`random_share`) of the anchor items uniformly at random.
"""

import numpy as np

from .cur import draw, masked_softmax
from .problem import FloatArray, IntArray


def top(scores: FloatArray, count: int) -> IntArray:
    """The `count` items of highest score, equal ones by ascending position."""
    return np.argsort(-scores, kind="stable")[:count]


def shares(count: int, random_share: float) -> tuple[int, int]:
    """(1 - epsilon) k_i items by the strategy and epsilon k_i at random, in whole numbers."""
    at_random = round(random_share * count)
    return count - at_random, at_random


def topk_inclusion(scores: FloatArray, count: int, masked: int, random_share: float) -> FloatArray:
    """(n,) how likely TopK^O_{k_m, epsilon} picks each item as an anchor item; exact.

    "Mask out top-k_m items wrt exact CE scores and select k_i anchor items by greedily picking
    (1 - epsilon) k_i items from rank k_m + 1 to k_m + (1 - epsilon) k_i, and sampling remaining
    epsilon k_i anchor items uniformly at random", here from the items neither masked nor picked.
    """
    n = len(scores)
    greedy, at_random = shares(count, random_share)
    ranking = top(scores, n)
    result = np.zeros(n)
    result[ranking[masked : masked + greedy]] = 1.0
    if at_random > 0:
        rest = ranking[masked + greedy :]
        result[rest] = at_random / len(rest)
    return result


def softmax_probabilities(scores: FloatArray, masked: int) -> FloatArray:
    """(n,) how likely each item is the first that the softmax of SoftMax^O_{k_m, epsilon} draws."""
    return masked_softmax(scores, top(scores, masked))


def softmax_inclusion(
    scores: FloatArray,
    count: int,
    masked: int,
    random_share: float,
    draws: int,
    rng: np.random.Generator,
) -> FloatArray:
    """(n,) how likely SoftMax^O_{k_m, epsilon} picks each item: the share of `draws` repetitions.

    "Sampling (1 - epsilon) k_i anchor items using softmax over exact CE scores, and sampling
    remaining epsilon k_i anchor items uniformly at random", here from the items neither masked nor
    picked.
    """
    n = len(scores)
    by_softmax, at_random = shares(count, random_share)
    hidden = top(scores, masked)
    counts = np.zeros(n)
    for _ in range(draws):
        picked = draw(scores, hidden, by_softmax, rng)
        rest = np.setdiff1d(np.arange(n), np.concatenate([hidden, picked]))
        counts[picked] += 1
        counts[rng.choice(rest, at_random, replace=False)] += 1
    return counts / draws
