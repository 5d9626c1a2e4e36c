"""ReFIT: Gangi Reddy et al., "Relevance Feedback from a Reranker during Inference" (2305.11744), 3.

The query's vector q is moved by gradient descent on KL(P_CE || P_q): P_CE is the softmax of the
reranker's scores over the candidates, P_q that of the retriever's, q . v_i. Then the items are
retrieved a second time, with the new q.
"""

from collections.abc import Sequence

from .normalisation import Normalize, settle
from .problem import Batch, FloatArray, Problem, Ranked, best_first, given, observed
from .sampling import softmax


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    steps: int = 100,
    lr: float = 1.0,
    normalize: Normalize = "none",
) -> Ranked:
    """By `problem.first`, then by q . v_i, given on the scale of exact scores.

    After each batch q takes `steps` steps over all items scored so far. The first time it starts
    from the encoder's vector, later from where the batch before left it (the paper has one time).
    """
    if not batches:
        return best_first(problem.retriever, batches)
    V = given(problem.items, "items")
    q = given(problem.query, "query")
    scale = settle(problem, batches, normalize)
    for last in range(len(batches)):
        items, scores = observed(batches[: last + 1])
        q = descend(V[items], scale.to_vectors(scores), q, steps, lr)
    return best_first(scale.to_scores(V @ q), batches)


def descend(V: FloatArray, exact: FloatArray, q: FloatArray, steps: int, lr: float) -> FloatArray:
    """(d,) q after plain gradient descent with a fixed rate.

    KL(p || softmax(V q)) with p = softmax(exact) has the gradient V' (softmax(V q) - p): the sum
    over the items, not their mean.
    """
    p = softmax(exact)
    for _ in range(steps):
        q = q - lr * V.T @ (softmax(V @ q) - p)
    return q
