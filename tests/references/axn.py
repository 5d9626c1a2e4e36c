"""AXN: Yadav et al., ICLR 2024, section 2.2 and algorithm 1, and the ridge of docs/methods.md.

V (n, d): `problem.items`. A_r: all items scored so far, a_r: their exact scores. u_q^(param):
`problem.query`. lambda of equation 7: `blend`, the weight of the parametric vector.
"""

from collections.abc import Sequence

import numpy as np

from .normalisation import Normalize, settle
from .problem import Batch, FloatArray, Problem, Ranked, best_first, given, observed


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    blend: float = 0.0,
    normalize: Normalize = "none",
    rcond: float = 1e-6,
    ridge: float | None = None,
) -> Ranked:
    """By `problem.first`, then by u_q . v_i (equation 5), given on the scale of exact scores.

    With `ridge` the ridge ranks instead, and `blend`, `normalize` and `rcond` have no part in it.
    """
    if not batches:
        return best_first(problem.retriever, batches)
    if ridge is not None:
        return best_first(ridge_scores(problem, batches, ridge), batches)
    V = given(problem.items, "items")
    scale = settle(problem, batches, normalize)
    items, scores = observed(batches)
    u = least_squares(V[items], scale.to_vectors(scores), rcond)
    if blend > 0:
        u = (1 - blend) * u + blend * given(problem.query, "query")  # equation 7
    return best_first(scale.to_scores(V @ u), batches)


def least_squares(V_A: FloatArray, a: FloatArray, rcond: float) -> FloatArray:
    """(d,) the solution of V_A u = a (equation 4), of minimum norm where there are several.

    The paper writes pinv(V_A' V_A) V_A' a, which is pinv(V_A) a. Singular values of V_A below
    rcond times the largest count as 0.
    """
    return np.linalg.pinv(V_A, rcond=rcond) @ a


def ridge_scores(problem: Problem, batches: Sequence[Batch], ridge: float) -> FloatArray:
    """(n,) offset + gain (u0 . v_i) + u . v_i, fitted to all scores so far.

    docs/methods.md, "AXN's fit, and ours": the sum of squared errors plus ridge |u|^2 is minimised
    over offset, gain and u, as an ordinary least-squares problem with d more rows. u0 is
    `problem.query`.
    """
    V = given(problem.items, "items")
    u0 = given(problem.query, "query")
    items, scores = observed(batches)
    n, d = V.shape
    features = np.column_stack([np.ones(n), V @ u0, V])  # offset, gain, u
    penalty = np.hstack([np.zeros((d, 2)), np.sqrt(ridge) * np.eye(d)])
    coefficients = np.linalg.lstsq(
        np.vstack([features[items], penalty]), np.concatenate([scores, np.zeros(d)]), rcond=None
    )[0]
    return features @ coefficients
