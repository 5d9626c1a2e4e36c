"""Relevance feedback: rerank a sample, and search once more with the vector that it taught.

Qdrant (version 1.17, the strategy named naive): with inner products for sim, its formula

    F(d) = a sim(q, d) + sum over pairs of  gap^b  c (sim(d, positive) - sim(d, negative))

over all pairs of scored items with different scores (`gap` is the difference) is an inner product
with one vector, a q + c sum_i w_i v_i, where w_i = sum_j sign(s_i - s_j) |s_i - s_j|^b.

ReFIT (arXiv 2305.11744)    here
K reranked candidates       `retriever_share` of the budget
number of updates           `steps`
second retrieval            the rest of the budget, in `rounds` rounds; reranked too
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import softmax

from crossknn.errors import SpecError
from crossknn.index.base import Index
from crossknn.methods.base import Plan, equal_rounds, part
from crossknn.methods.vectors import Fit, Scored, VectorMethod
from crossknn.spec import option
from crossknn.types import FloatArray


@dataclass(frozen=True, kw_only=True)
class SampleThenSearch(VectorMethod):
    """Spend part of the budget on the retriever's best, the rest on what their scores lead to.

    The defaults were the best on dev queries; published is one round, after half of the budget.

    Args:
        retriever_share: The first part, as a share of the budget, 0 to 1.
        rounds: How often the vector is fitted, each time to all scores so far, and searched with.
        retriever, vectors, normalize: See `VectorMethod`.
    """

    retriever_share: float = option(0.1, least=0, most=1)
    rounds: int = option(9, least=1)

    def sample_then_search(self, index: Index, budget: int, seed: int, fit: Fit) -> Plan:
        """The plan with vectors that `fit` makes."""
        sample = part(budget, self.retriever_share)
        batches = sample, *equal_rounds(budget - sample, self.rounds)
        return self.vector_plan(index, seed, fit, batches)


@dataclass(frozen=True, kw_only=True)
class Feedback(SampleThenSearch):
    """Score the items that Qdrant's relevance feedback formula ranks first.

    Args:
        a, b, c: F(d) = a sim(q, d) + sum over pairs of gap^b c (sim(d, better) - sim(d, worse));
            Qdrant's training starts from 1, 1, 1, which is little worth untrained.
        pairs: Take so many pairs of the widest gaps, not all.
        retriever_share, rounds, retriever, vectors, normalize: See `SampleThenSearch`.
    """

    name = "feedback"
    a: float = 1.0
    b: float = 1.0
    c: float = 0.1
    pairs: int | None = option(None, least=1)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        if self.b < 0:
            raise SpecError(f"{self}: b must be 0 or more")
        fit = partial(formula, a=self.a, b=self.b, c=self.c, pairs=self.pairs)
        return self.sample_then_search(index, budget, seed, fit)


@dataclass(frozen=True, kw_only=True)
class ReFIT(SampleThenSearch):
    """Distil the sample's scores into the query's vector, and retrieve again with it.

    Args:
        steps: Gradient steps of a distillation.
        lr: Size of a step.
        retriever_share, rounds, retriever, vectors, normalize: See `SampleThenSearch`.
    """

    name = "refit"
    steps: int = option(100, least=1)
    lr: float = 1.0

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        if self.lr <= 0:
            raise SpecError(f"{self}: lr must be above 0")
        fit = partial(distilled, steps=self.steps, lr=self.lr)
        return self.sample_then_search(index, budget, seed, fit)


def formula(
    scored: Scored, *, a: float, b: float, c: float, pairs: int | None
) -> tuple[FloatArray, float]:
    """The vector of Qdrant's F.

    An item's weight is the sum over the pairs that it is in, of gap^b as the positive, of -gap^b as
    the negative. `pairs` takes so many pairs of the widest gaps, ties by the position of the
    positive, then of the negative.
    """
    assert scored.parametric is not None
    gaps = scored.scores[:, None] - scored.scores
    if pairs is not None:
        narrow = np.argsort(-gaps, axis=None, kind="stable")[pairs:]
        gaps.ravel()[narrow] = 0.0
    strength = np.where(gaps > 0, np.maximum(gaps, 0.0) ** b, 0.0)
    weights = strength.sum(axis=1) - strength.sum(axis=0)
    return a * scored.parametric + c * (weights @ scored.vectors.astype(np.float64)), 0.0


def distilled(scored: Scored, *, steps: int, lr: float) -> tuple[FloatArray, float]:
    """Gradient descent on KL(softmax(exact) || softmax(q . v)) over all scored items, from the
    vector that the round before left."""
    vectors, wanted = scored.vectors.astype(np.float64), softmax(scored.scores)
    query = scored.current.astype(np.float64)
    for _ in range(steps):
        query -= lr * ((softmax(vectors @ query) - wanted) @ vectors)
    return query, 0.0
