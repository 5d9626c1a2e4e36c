"""TOUR, test-time optimization of the query vector (Sung et al. 2023), as AXN runs it (AXN B.2).

paper            here
q_t              the query's vector after t rounds
eta              `lr`
L_hard / L_soft  `loss`: KL of softmaxed scores (`kl`), or the mean squared error (`mse`)

This is AXN's variant: one gradient step per round on the batch of the top B / R items, all of them
new.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np

from crossknn.index.base import Index
from crossknn.methods.base import Plan, equal_rounds
from crossknn.methods.vectors import Normalize, Scored, VectorMethod
from crossknn.spec import option
from crossknn.types import FloatArray

Loss: TypeAlias = Literal["kl", "mse"]

LEARNING_RATES: dict[Loss, float] = {"kl": 1.0, "mse": 1e-3}
"""Learning rates. For KL, the best on dev queries of five score matrices (AXN B.2 chose 0.1 from
{0.1, 0.5, 1.0}); for the squared error, AXN's choice from {1e-2, 1e-3, 1e-4}."""


@dataclass(frozen=True, kw_only=True)
class TOUR(VectorMethod):
    """Take one gradient step on the query's vector per round, and score the items nearest to it.

    Args:
        loss: `kl` or `mse`, between exact and approximate scores of the latest batch.
        rounds: Number of batches.
        lr: Step size; by default from `LEARNING_RATES`.
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
    """Compute q - lr * dL/dq, with L over the items of the latest batch."""
    from scipy.special import softmax

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
