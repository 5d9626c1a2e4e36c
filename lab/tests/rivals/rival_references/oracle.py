"""Samplers that see all exact scores: ADACUR section 3.2.

Oracle samplers pick k_i (`count`) anchor items. Both mask the k_m (`masked`) items of highest exact
score and pick a share epsilon (`random_share`) of the anchor items uniformly at random, here from
the items neither masked nor picked.
"""

import numpy as np
from references.cur import draw
from references.problem import FloatArray, IntArray


def topk_inclusion(scores: FloatArray, count: int, masked: int, random_share: float) -> FloatArray:
    """(n,) how likely TopK^O_{k_m, epsilon} picks each item as an anchor item; exact.

    "Mask out top-k_m items wrt exact CE scores and select k_i anchor items by greedily picking
    (1 - epsilon) k_i items from rank k_m + 1 to k_m + (1 - epsilon) k_i, and sampling remaining
    epsilon k_i anchor items uniformly at random".
    """
    ranking, at_random = np.argsort(-scores, kind="stable"), round(random_share * count)
    last = masked + count - at_random
    result = np.zeros(len(scores))
    result[ranking[masked:last]] = 1.0
    result[ranking[last:]] = at_random / (len(scores) - last)
    return result


def softmax_draw(
    scores: FloatArray, count: int, masked: int, random_share: float, rng: np.random.Generator
) -> IntArray:
    """(count,) items that SoftMax^O_{k_m, epsilon} picks.

    "Sampling (1 - epsilon) k_i anchor items using softmax over exact CE scores, and sampling
    remaining epsilon k_i anchor items uniformly at random".
    """
    ranking, at_random = np.argsort(-scores, kind="stable"), round(random_share * count)
    picked = draw(scores, ranking[:masked], count - at_random, rng)
    rest = np.setdiff1d(ranking[masked:], picked)
    return np.concatenate([picked, rng.choice(rest, at_random, replace=False)])
