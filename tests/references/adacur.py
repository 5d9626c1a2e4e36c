"""ADACUR: Yadav et al., 2023, algorithms 1 to 3.

R_anc (k_q, n): `problem.anchor_scores`. I_anc: all items scored so far, C_test: their exact
scores. Every round refits the approximation (algorithm 2) to all of them.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from .cur import approximate
from .loop import equal_batches
from .problem import Batch, FloatArray, IntArray, Problem, Ranked, best_first, given, observed
from .sampling import draw, masked_softmax

Sample = Literal["top", "softmax", "random"]


def approximate_scores(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    center: bool | float = False,
    rcond: float = 1e-6,
) -> FloatArray:
    """(n,) S = C_test U R_anc with U = pinv(R_anc[:, I_anc]) (algorithm 2)."""
    R_anc = given(problem.anchor_scores, "anchor_scores")
    items, scores = observed(batches)
    return approximate(R_anc, items, scores, center=center, rcond=rcond)


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    center: bool | float = False,
    rcond: float = 1e-6,
) -> Ranked:
    """By `problem.first`, then by the approximation: TopK of algorithm 3.

    With a split it also ranks the last batch, "k_r items based on approximate scores" (2.2),
    whatever the rounds before drew by. Options as in `cur.approximate`.
    """
    if not batches:
        return best_first(problem.retriever, batches)
    return best_first(approximate_scores(problem, batches, center=center, rcond=rcond), batches)


def split_batches(budget: int, rounds: int, anchors: int) -> list[int]:
    """k_i = `anchors` items over N_r = `rounds`, then k_r = budget - k_i in a last batch (2.2)."""
    rest = budget - anchors
    return equal_batches(anchors, rounds) + ([rest] if rest > 0 else [])


def logits(
    problem: Problem,
    batches: Sequence[Batch],
    sample: Literal["softmax", "random"],
    *,
    center: bool | float = False,
    rcond: float = 1e-6,
) -> FloatArray:
    """(n,) what a softmax makes the weights of: approximate scores, or 0 for equal weights."""
    if sample == "random":
        return np.zeros(len(problem.retriever))
    return approximate_scores(problem, batches, center=center, rcond=rcond)


def probabilities(
    problem: Problem,
    batches: Sequence[Batch],
    sample: Sample,
    *,
    center: bool | float = False,
    rcond: float = 1e-6,
) -> FloatArray:
    """(n,) how likely each item is the first one of the next batch (algorithm 3).

    Without batches so far it is the retriever's best item, whatever `sample` is.
    """
    if sample == "top" or not batches:
        best = rank(problem, batches, center=center, rcond=rcond).items[:1]
        return indicator(len(problem.retriever), best)
    scored, _ = observed(batches)
    return masked_softmax(logits(problem, batches, sample, center=center, rcond=rcond), scored)


def inclusion(
    problem: Problem,
    batches: Sequence[Batch],
    size: int,
    sample: Sample,
    draws: int,
    rng: np.random.Generator,
    *,
    center: bool | float = False,
    rcond: float = 1e-6,
) -> FloatArray:
    """(n,) how likely each item is in the next batch: the share of `draws` batches that have it.

    "Sample k_s anchor items without replacement using softmax over approximate item scores" (2.2).
    """
    n = len(problem.retriever)
    if sample == "top" or not batches:
        return indicator(n, rank(problem, batches, center=center, rcond=rcond).items[:size])
    scored, _ = observed(batches)
    values = logits(problem, batches, sample, center=center, rcond=rcond)
    counts = np.zeros(n)
    for _ in range(draws):
        counts[draw(values, scored, size, rng)] += 1
    return counts / draws


def indicator(n: int, items: IntArray) -> FloatArray:
    """(n,) 1 for `items`, else 0."""
    result = np.zeros(n)
    result[items] = 1.0
    return result
