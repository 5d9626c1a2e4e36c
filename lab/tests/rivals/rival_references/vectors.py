"""Rivals that move the query's vector, ReFIT and Qdrant's relevance feedback; and baselines of
ANNCUR (Yadav et al., EMNLP 2022, 3.2)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from references.cur import anncur
from references.problem import (
    Batch,
    FloatArray,
    IntArray,
    Problem,
    Ranked,
    best_first,
    observed,
    softmax,
)
from references.vectors import Normalize, settle


def itemcur(
    problem: Problem, batches: Sequence[Batch], *, center: bool | float, rcond: float = 1e-6
) -> Ranked:
    """ANNCUR with item-item scores in place of R_anc: "It indexes the items by comparing them
    against k_i^ind anchor items instead of anchor queries" (3.2)."""
    by_items = replace(problem, anchor_scores=problem.item_scores)
    return anncur(by_items, batches, center=center, rcond=rcond)


def fixeditem(problem: Problem, batches: Sequence[Batch]) -> Ranked:
    """fixedITEM (3.2): "Embed all items and test-query in R^{k_i} using CE scores with a fixed set
    of k_i items", then the dot product; 0 where such an item has not been scored yet."""
    items, scores = observed(batches)
    row = np.zeros(len(problem.retriever))
    row[items] = scores
    return best_first(row[problem.item_queries] @ problem.item_scores, batches)


def refit(
    problem: Problem, batches: Sequence[Batch], *, steps: int, lr: float, normalize: Normalize
) -> Ranked:
    """ReFIT (Gangi Reddy et al., 2305.11744), 3: gradient descent of q on KL(P_CE || P_q), softmaxes
    over the candidates, then a second retrieval with the new q.

    After each batch q takes `steps` steps over all items scored so far. The first time it starts
    from the encoder's vector, later from where the batch before left it (the paper has one time).
    """
    q, scale = problem.query, settle(problem, batches, normalize)
    for last in range(len(batches)):
        items, scores = observed(batches[: last + 1])
        V, p = problem.items[items], softmax(scale.to_vectors(scores))
        for _ in range(steps):
            q = q - lr * V.T @ (softmax(V @ q) - p)
    return best_first(scale.to_scores(problem.items @ q), batches)


def feedback(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    a: float = 1.0,
    b: float = 1.0,
    c: float = 1.0,
    pairs: int | None = None,
    normalize: Normalize = "none",
) -> Ranked:
    """Qdrant 1.17's strategy "naive" (the article "Relevance Feedback in Qdrant"):

        F(d) = a sim(q, d) + sum over pairs of confidence^b c (sim(d, positive) - sim(d, negative))

    A pair is two scored items with different scores; its confidence is the difference ("gap").
    `pairs`: only so many, those with the widest gaps. Similarity is the inner product, which is
    linear: the pairs' vectors are added up before the one product with V.
    """
    V, moved = problem.items, a * problem.query
    items, scores = observed(batches)
    exact = settle(problem, batches, normalize).to_vectors(scores)
    for positive, negative, gap in widest(items, exact, pairs):
        moved = moved + gap**b * c * (V[positive] - V[negative])
    return best_first(V @ moved, batches)


def widest(items: IntArray, scores: FloatArray, pairs: int | None) -> list[tuple[int, int, float]]:
    """(better item, worse item, gap), the widest gap first; pairs without a gap left out.

    Equal gaps in the order of `items`: the pair whose better item was scored first, then whose
    worse one was. The article trains on the pair with the widest gap and says nothing of ties.
    """
    gaps = scores[:, None] - scores[None, :]
    better, worse = np.nonzero(gaps > 0)
    found = zip(items[better].tolist(), items[worse].tolist(), gaps[better, worse], strict=True)
    return sorted(found, key=lambda pair: -pair[2])[:pairs]
