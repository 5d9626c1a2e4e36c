"""What predictions with deviations say of a query's top k: how much of it is found, and where the
calls that queries share are likeliest to find more.

Axes: m queries, b scored items of a query, c unscored ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crossknn.errors import InputError
from crossknn.types import FloatArray, IntArray

MOST = 4  # times its equal share that a query may take of a shared budget
FAR = 5.0  # deviations after which an item is taken to be no rival
STEPS = 20  # bisections: to a millionth of the range of scores
_LITTLE = 1e-6
_LEAST = np.finfo(np.float32).tiny


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedBudget:
    """`total` calls for all queries together, to find the true top `k` of each, or all items that
    reach `min_score`."""

    total: int
    k: int
    min_score: float | None = None


def most_of(share: SharedBudget, m: int, *, known: bool) -> int:
    """What one of m queries may take of a shared budget; `InputError` if it cannot be shared:
    deviations must be `known`, and there must be a call for each query."""
    if not known:
        raise InputError(
            "total_budget needs a method that predicts standard deviations, and this one does not: "
            "use kriging or gp, or give a budget for each query"
        )
    if share.total < m:
        raise InputError(
            f"total_budget is {share.total}, less than one call for each query: give {m} or more"
        )
    return MOST * -(-share.total // m)


def expected_recall(best: FloatArray, mean: FloatArray, std: FloatArray) -> float:
    """Of the k best scores known (k,), the share that no unscored item will push out.

    `mean` and `std` (c,) are the predictions of the unscored items, taken as independent. The
    j-th best stays if at most k - j of them are above it; their number is about Poisson, its mean
    the sum of their chances.

    >>> expected_recall(np.array([2.0, 1.0]), np.array([0.0]), np.array([1e-9]))
    1.0
    """
    from scipy.special import ndtr, pdtr

    k, best = len(best), np.sort(best)[::-1]
    near = mean + FAR * std > best[-1]
    chances = ndtr((mean[near] - best[:, None]) / np.maximum(std[near], _LEAST))
    return float(pdtr(np.arange(k)[::-1], chances.sum(axis=1)).mean())


def n_uncertain(
    known: FloatArray, mean: FloatArray, std: FloatArray, k: int, tolerance: float
) -> int:
    """How many unscored items may be in the top k or not: their chance of being above the `level`
    lies between `tolerance` and 1 - `tolerance` (AcuRank, 2505.18512).

    `known` (b,) are exact scores, `mean` and `std` (c,) the predictions of the unscored items.

    >>> n_uncertain(np.array([2.0, 1.0]), np.array([1.5, -9.0]), np.array([1.0, 1.0]), 2, 0.01)
    1
    """
    from scipy.special import ndtri

    z = z_scores(known, mean, std, k, len(mean))
    return int(np.count_nonzero(np.abs(z) < -ndtri(tolerance)))


def z_scores(
    known: FloatArray,
    mean: FloatArray,
    std: FloatArray,
    k: int,
    count: int,
    min_score: float | None = None,
) -> FloatArray:
    """Deviations by which a query's unscored items lie above what is looked for, the `count` best
    first: `min_score`, or its k-th best.

    `known` (b,) are its exact scores, `mean` and `std` (c,) the predictions. Above the k-th best
    score lie k items, known or expected: that says where it is. The better an item stands, the
    likelier it is one of the true top k; infinity for those that it takes to have k scores at all.

    >>> z_scores(np.array([5.0, 3.0]), np.array([0.0, 9.0]), np.array([1e-3, 1e-3]), 2, 9) > 0
    array([ True, False])
    """
    if not len(mean):
        return mean
    deviations = np.maximum(std, _LEAST, dtype=np.float64)
    asked = level(known, mean, deviations, k) if min_score is None else min_score
    below = (asked - mean) / deviations
    if count < len(below):
        below = np.partition(below, count)[:count]
    found = -np.sort(below)
    found[: max(k - len(known), 0)] = np.inf
    return found


def level(known: FloatArray, mean: FloatArray, std: FloatArray, k: int) -> float:
    """The score above which k of all items are expected, known (b,) or not (c,); by bisection."""
    from scipy.special import ndtr

    every = np.concatenate([known, mean])
    if len(every) <= k:
        return float(every.min())
    # Half of 2 k + 1 even chances, at least, are above the lowest of them: more than k.
    if len(every) > 2 * k:
        low = -float(np.partition(-every, 2 * k)[2 * k])
    else:
        low = min(float(every.min()), float((mean - FAR * std).min()))
    high = max(float(every.max()), float((mean + FAR * std).max()))
    near = mean + FAR * std > low
    mean, std = mean[near], std[near]
    for _ in range(STEPS):
        middle = (low + high) / 2
        expected = np.count_nonzero(known > middle) + ndtr((mean - middle) / std).sum()
        low, high = (middle, high) if expected > k else (low, middle)
    return (low + high) / 2


def shared(z: Sequence[FloatArray | None], room: IntArray, calls: int, left: int) -> IntArray:
    """How many of this round's `calls` each query gets: (m,), at most `room` (m,).

    All `left` calls are planned for the pairs with the best z-scores, of all queries; a round is a
    part of the plan, the same of every query. So a query of which little is known does not wait for
    those whose best is plain. None, where nothing can be said, counts as an equal share.
    """
    m = len(z)
    rows = [np.empty(0) if s is None else s[: room[q]] for q, s in enumerate(z)]
    owner = np.repeat(np.arange(m), [len(row) for row in rows])
    best = np.argsort(-np.concatenate(rows), kind="stable")[:left]
    plan = np.bincount(owner[best], minlength=m).astype(np.float64)
    plan[[s is None for s in z]] = left / m
    return allocate(plan, room, calls)


def allocate(weights: FloatArray, room: IntArray, count: int) -> IntArray:
    """`count` in whole parts, by `weights` (m,), each at most `room` (m,); less if that is less.

    >>> allocate(np.array([3.0, 1.0, 0.0]), np.array([2, 9, 9]), 7)
    array([2, 5, 0])
    """
    count, exact = min(count, int(room.sum())), np.zeros(len(room))
    while (rest := count - exact.sum()) > _LITTLE:
        weight = np.where(exact < room, weights, 0)
        if not weight.any():
            weight = (exact < room).astype(np.float64)
        exact = np.minimum(exact + rest * (weight / weight.sum()), room)
    given = np.floor(exact + _LITTLE).astype(np.int64)
    largest = np.argsort(given - exact, kind="stable")[: count - int(given.sum())]
    given[largest] += 1
    return given
