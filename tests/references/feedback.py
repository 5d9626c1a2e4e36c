"""Relevance feedback, Qdrant 1.17's strategy "naive": the article "Relevance Feedback in Qdrant".

    F(d) = a sim(q, d) + sum over pairs of confidence^b c (sim(d, positive) - sim(d, negative))

A pair is two scored items with different scores; its confidence is the difference ("gap").
"""

from collections.abc import Sequence

import numpy as np

from .normalisation import Normalize, settle
from .problem import Batch, FloatArray, IntArray, Problem, Ranked, best_first, given, observed


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    a: float = 1.0,
    b: float = 1.0,
    c: float = 1.0,
    pairs: int | None = None,
    normalize: Normalize = "none",
) -> Ranked:
    """By `problem.first`, then by F, from the encoder's query vector and all scores so far.

    `pairs`: only so many pairs, those with the widest gaps; None: all with a gap, as the engine has
    it. Similarity is the inner product, and gaps are those of scores on its scale (`normalize`).
    Values are F itself.
    """
    if not batches:
        return best_first(problem.retriever, batches)
    V = given(problem.items, "items")
    q = given(problem.query, "query")
    items, scores = observed(batches)
    gaps = settle(problem, batches, normalize).to_vectors(scores)
    moved = a * q  # sim is linear: the pairs' vectors are added up before the one product with V
    for positive, negative, gap in widest(items, gaps, pairs):
        moved = moved + gap**b * c * (V[positive] - V[negative])
    return best_first(V @ moved, batches)


def widest(items: IntArray, scores: FloatArray, pairs: int | None) -> list[tuple[int, int, float]]:
    """(better item, worse item, gap), the widest gap first; pairs without a gap left out.

    Equal gaps in the order of `items`: the pair whose better item was scored first, then whose
    worse one was. The article trains on the pair with the widest gap and says nothing of ties.
    """
    gaps = scores[:, None] - scores[None, :]
    better, worse = np.nonzero(gaps > 0)
    found = list(
        zip(items[better].tolist(), items[worse].tolist(), gaps[better, worse], strict=True)
    )
    return sorted(found, key=lambda pair: -pair[2])[:pairs]
