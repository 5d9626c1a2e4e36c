"""TOUR as AXN compares with it: ICLR 2024, appendix B.2.

"TOUR uses a single gradient-based update to query embedding to minimize KL-Divergence (TOUR-CE) or
mean-squared error (TOUR-MSE) between approximate and exact scores for top-B_CE/R items in each
round. [...] For TOUR-CE, we use learning rate = 0.1 and for TOUR-MSE, we use learning rate = 1e-3."
"""

from collections.abc import Sequence
from typing import Literal

from .normalisation import Normalize, settle
from .problem import Batch, FloatArray, Problem, Ranked, best_first, given
from .sampling import softmax

Loss = Literal["kl", "mse"]
LEARNING_RATES: dict[Loss, float] = {"kl": 0.1, "mse": 1e-3}


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    loss: Loss = "kl",
    lr: float | None = None,
    normalize: Normalize = "none",
) -> Ranked:
    """By `problem.first`, then by q . v_i, given on the scale of exact scores.

    q starts at `problem.query` and takes one step for each batch, over that batch's items only.
    """
    if not batches:
        return best_first(problem.retriever, batches)
    V = given(problem.items, "items")
    q = given(problem.query, "query")
    step = LEARNING_RATES[loss] if lr is None else lr
    scale = settle(problem, batches, normalize)
    for batch in batches:
        q = q - step * gradient(V[batch.items], scale.to_vectors(batch.scores), q, loss)
    return best_first(scale.to_scores(V @ q), batches)


def gradient(V: FloatArray, exact: FloatArray, q: FloatArray, loss: Loss) -> FloatArray:
    """(d,) the gradient at q of the loss over one batch: V (b, d), `exact` (b,).

    "kl": KL(p || softmax(V q)) with p = softmax(exact) has the gradient V' (softmax(V q) - p).
    "mse": mean((V q - exact)^2) has the gradient 2 / b V' (V q - exact).
    """
    approximate = V @ q
    if loss == "kl":
        return V.T @ (softmax(approximate) - softmax(exact))
    return 2 / len(exact) * V.T @ (approximate - exact)
