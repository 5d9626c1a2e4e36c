"""TOUR, test-time optimization of the query vector (Sung et al. 2023), as AXN runs it (AXN B.2).

paper            here
q_t              the query's vector after t rounds
eta              `lr`
L_hard / L_soft  `loss`: KL of softmaxed scores (`kl`), or the mean squared error (`mse`)

AXN's variant: one gradient step a round on the batch of top B / R items, all of them new.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from crossknn.index.base import Index
from crossknn.linalg import softmax
from crossknn.methods.base import equal_rounds, option
from crossknn.methods.vectors import Normalize, Scored, VectorMethod
from crossknn.search.plan import Plan
from crossknn.types import FloatArray

Loss: TypeAlias = Literal["kl", "mse"]

LEARNING_RATES: dict[Loss, float] = {"kl": 1.0, "mse": 1e-3}
"""Of KL the best on dev queries of five matrices, where AXN B.2 chose 0.1 from {0.1, 0.5, 1.0}; of
the squared error its choice from {1e-2, 1e-3, 1e-4}."""


@dataclass(frozen=True, kw_only=True)
class TOUR(VectorMethod):
    """Take one gradient step on the query's vector a round, and score its best items.

    Args:
        loss: `kl` or `mse`, between exact and approximate scores of the latest batch.
        rounds: Number of batches.
        lr: Size of a step; by default that of `LEARNING_RATES`.
        retriever, vectors, normalize: See `VectorMethod`.
    """

    name = "tour"
    loss: Loss = "kl"
    rounds: int = option(10, least=1)
    lr: float | None = None
    normalize: Normalize = "none"

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        lr = LEARNING_RATES[self.loss] if self.lr is None else self.lr
        step = partial(gradient_step, loss=self.loss, lr=lr)
        return self.vector_plan(index, seed, step, equal_rounds(budget, self.rounds))


def gradient_step(scored: Scored, *, loss: Loss, lr: float) -> tuple[FloatArray, float]:
    """q - lr * dL/dq, L over the items of the latest batch."""
    latest = slice(scored.n_seen, None)
    batch, exact = scored.vectors[latest].astype(np.float64), scored.scores[latest]
    if not len(batch):
        return scored.current, 0.0
    approx = batch @ scored.current
    slopes = {
        "kl": softmax(approx) - softmax(exact),  # of KL(softmax(exact) || softmax(approx))
        "mse": 2 * (approx - exact) / len(batch),
    }
    return scored.current - lr * (slopes[loss] @ batch), 0.0
