"""The skeleton approximation C U R: ANNCUR and its baselines (Yadav et al., EMNLP 2022), ADACUR
(Yadav et al., 2023).

ANNCUR 2.1: "we set U to be the Moore-Penrose pseudo-inverse of M[S_r, S_c], the intersection of
matrices C and R"; 2.3 and 2.4 read it as vectors of the items, E = U R_anc, and a vector of the
query, e_q = its exact scores with the anchor items, so that f(q, i) is about e_q . E[:, i].
"""

from collections.abc import Sequence

import numpy as np

from .problem import Batch, FloatArray, IntArray, Problem, Ranked, best_first, observed, softmax


def approximate(
    R: FloatArray, items: IntArray, scores: FloatArray, *, center: bool | float, rcond: float
) -> FloatArray:
    """(n,) approximate scores of the query with all items.

    R: (k_q, n) exact scores of other queries (R_anc). `items`: the anchor items I_anc (k_i,).
    `scores`: the query's exact scores with them (C_test, e_q). `center`: False works on the scores
    as they are, like the papers. A number is subtracted from R and from `scores` and added to the
    result; True takes the mean of all entries of R. `rcond`: singular values of R[:, items] below
    rcond times the largest count as 0.
    """
    m = float(R.mean()) if center is True else float(center)
    U = np.linalg.pinv(R[:, items] - m, rcond=rcond)  # (k_i, k_q)
    return (scores - m) @ U @ (R - m) + m


def encoder_zero(problem: Problem) -> float:
    """The exact score at which the dual encoder's product would be 0, to be used as `center`.

    docs/explanation/methods.md, "Centring in CUR": "mean(A) - mean(D) std(A) / std(D) of the
    anchors' exact scores A and products D".
    """
    A, D = problem.anchor_scores, problem.anchor_queries @ problem.items.T
    return float(A.mean() - D.mean() * A.std() / D.std())


def rerank(problem: Problem, batches: Sequence[Batch]) -> Ranked:
    """RNR of AXN section 3: the retriever's order, whatever the scores are."""
    return best_first(problem.retriever, batches)


def anncur(
    problem: Problem, batches: Sequence[Batch], *, center: bool | float, rcond: float = 1e-6
) -> Ranked:
    """By the retriever (the fixed anchor items on top), then by C U R of the first batch alone.

    Scores after the first batch are not learned from: U belongs to the anchor items and is made
    at indexing (2.3).
    """
    first = batches[0]
    R_anc = problem.anchor_scores
    return best_first(
        approximate(R_anc, first.items, first.scores, center=center, rcond=rcond), batches
    )


def adacur(
    problem: Problem, batches: Sequence[Batch], *, center: bool | float, rcond: float = 1e-6
) -> Ranked:
    """By the retriever, then by the approximation from all items scored so far: TopK of ADACUR's
    algorithm 3, refitted every round (algorithm 2)."""
    items, scores = observed(batches)
    values = approximate(problem.anchor_scores, items, scores, center=center, rcond=rcond)
    return best_first(values, batches)


def logits(problem: Problem, batches: Sequence[Batch]) -> FloatArray:
    """(n,) what a softmax makes the weights of: approximate scores."""
    items, scores = observed(batches)
    return approximate(problem.anchor_scores, items, scores, center=False, rcond=1e-6)


def masked_softmax(values: FloatArray, masked: IntArray) -> FloatArray:
    """Softmax over all items but the masked ones, which have probability 0.

    Algorithm 3, lines 7 and 8, masks after the softmax; drawn from in proportion it is the same.
    """
    left = values.copy()
    left[masked] = -np.inf
    return softmax(left)


def draw(values: FloatArray, masked: IntArray, size: int, rng: np.random.Generator) -> IntArray:
    """`size` items one after the other, each by the softmax over those not masked or drawn yet."""
    drawn = np.empty(0, dtype=np.intp)
    for _ in range(size):
        probabilities = masked_softmax(values, np.concatenate([masked, drawn]))
        drawn = np.append(drawn, rng.choice(len(values), p=probabilities))
    return drawn
