"""Methods that move the query's vector: AXN and TOUR.

Exact scores come to the scale of the vectors' products as in AXN A.4, "Cross-Encoder Score
Normalization": s_final = beta (s_init - alpha), which matches mean and standard deviation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .problem import Batch, FloatArray, Problem, Ranked, best_first, observed, softmax

Normalize = Literal["none", "anchors", "first"]


@dataclass(frozen=True)
class Scale:
    """The two numbers of A.4."""

    alpha: float = 0.0
    beta: float = 1.0

    def to_vectors(self, scores: FloatArray) -> FloatArray:
        """Exact scores on the scale of the dual encoder's products."""
        return self.beta * (scores - self.alpha)

    def to_scores(self, products: FloatArray) -> FloatArray:
        """Products on the scale of exact scores."""
        return products / self.beta + self.alpha


def settle(problem: Problem, batches: Sequence[Batch], normalize: Normalize) -> Scale:
    """The scale of the whole search: over all "anchors" and items, or over the query's own "first"
    batch and kept from then on, or scores as they are."""
    if normalize == "none":
        return Scale()
    exact, products = problem.anchor_scores, problem.anchor_queries @ problem.items.T
    if normalize == "first":
        exact, products = batches[0].scores, problem.items[batches[0].items] @ problem.query
    beta = float(products.std() / exact.std())
    return Scale(alpha=float(exact.mean() - products.mean() / beta), beta=beta)


def axn(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    blend: float = 0.0,
    normalize: Normalize = "none",
    rcond: float = 1e-6,
    ridge: float | None = None,
) -> Ranked:
    """AXN (Yadav et al., ICLR 2024), 2.2 and algorithm 1: by the retriever, then by u_q . v_i.

    Equation 4 writes u_q = pinv(V_A' V_A) V_A' a, which is pinv(V_A) a; equation 7 mixes in the
    parametric vector with the weight lambda, `blend`. With `ridge` the ridge ranks instead.
    """
    if ridge is not None:
        return best_first(ridge_scores(problem, batches, ridge), batches)
    V, scale = problem.items, settle(problem, batches, normalize)
    items, scores = observed(batches)
    u = np.linalg.pinv(V[items], rcond=rcond) @ scale.to_vectors(scores)
    u = (1 - blend) * u + blend * problem.query
    return best_first(scale.to_scores(V @ u), batches)


def ridge_scores(problem: Problem, batches: Sequence[Batch], ridge: float) -> FloatArray:
    """(n,) offset + gain (u0 . v_i) + u . v_i, fitted to all scores so far.

    docs/explanation/axn.md, "AXN, and our fit": the sum of squared errors plus ridge |u|^2 is minimised
    over offset, gain and u, as an ordinary least-squares problem with d more rows.
    """
    V = problem.items
    items, scores = observed(batches)
    n, d = V.shape
    features = np.column_stack([np.ones(n), V @ problem.query, V])  # offset, gain, u
    penalty = np.hstack([np.zeros((d, 2)), np.sqrt(ridge) * np.eye(d)])
    coefficients = np.linalg.lstsq(
        np.vstack([features[items], penalty]), np.concatenate([scores, np.zeros(d)]), rcond=None
    )[0]
    return features @ coefficients


def tour(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    loss: Literal["kl", "mse"],
    lr: float,
    normalize: Normalize = "none",
) -> Ranked:
    """TOUR as AXN compares with it (B.2): "a single gradient-based update to query embedding to
    minimize KL-Divergence or mean-squared error between approximate and exact scores for
    top-B_CE/R items in each round", over that batch's items only.

    KL(p || softmax(V q)) with p = softmax(exact) has the gradient V' (softmax(V q) - p);
    mean((V q - exact)^2) has 2 / b V' (V q - exact).
    """
    q, scale = problem.query, settle(problem, batches, normalize)
    for batch in batches:
        V, exact = problem.items[batch.items], scale.to_vectors(batch.scores)
        if loss == "kl":
            gradient = V.T @ (softmax(V @ q) - softmax(exact))
        else:
            gradient = 2 / len(exact) * V.T @ (V @ q - exact)
        q = q - lr * gradient
    return best_first(scale.to_scores(problem.items @ q), batches)
