"""The skeleton approximation C U R, which ANNCUR, ADACUR and itemCUR have in common.

ANNCUR 2.1: "we set U to be the Moore-Penrose pseudo-inverse of M[S_r, S_c], the intersection of
matrices C and R"; 2.3 and 2.4 read it as vectors of the items, E = U R_anc, and a vector of the
query, e_q = its exact scores with the anchor items, so that f(q, i) is about e_q . E[:, i].
"""

import numpy as np

from .problem import FloatArray, IntArray, Problem, given


def approximate(
    R: FloatArray,
    items: IntArray,
    scores: FloatArray,
    *,
    center: bool | float,
    rcond: float,
) -> FloatArray:
    """(n,) approximate scores of the query with all items.

    R: (k_q, n) exact scores of other queries (R_anc). `items`: the anchor items I_anc (k_i,).
    `scores`: the query's exact scores with them (C_test, e_q).

    `center`: False works on the scores as they are, like the papers. A number is subtracted from
    R and from `scores` and added to the result; True takes the mean of all entries of R.
    `rcond`: singular values of R[:, items] below rcond times the largest count as 0.
    """
    m = float(R.mean()) if center is True else float(center)
    U = np.linalg.pinv(R[:, items] - m, rcond=rcond)  # (k_i, k_q)
    return (scores - m) @ U @ (R - m) + m


def encoder_zero(problem: Problem) -> float:
    """The exact score at which the dual encoder's product would be 0, to be used as `center`.

    docs/methods.md, "Rules that all of them follow": "mean(A) - mean(D) std(A) / std(D) of the
    anchors' exact scores A and products D; mean(A) without vectors of a dual encoder".
    """
    A = given(problem.anchor_scores, "anchor_scores")
    if problem.items is None or problem.anchor_queries is None:
        return float(A.mean())
    D = problem.anchor_queries @ problem.items.T
    return float(A.mean() - D.mean() * A.std() / D.std())
