"""A Gaussian process over the item vectors: the idea of BAGEL (2604.17906) and ReBOL (2603.20513).

    score(x) = h(x)' beta + residual(x),     residual ~ GP(0, v k)

Rasmussen and Williams, 2006: the posterior is 2.25 and 2.26, the mean's coefficients are those of
2.42 with a vague prior (generalised least squares), which is Matheron's universal kriging, 1969.
Neither source publishes its settings; what the product chose is docs/rivals.md, "gp".
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from . import kernels
from .problem import Batch, FloatArray, Problem, Ranked, best_first, given, observed

Kernel = Literal["rbf", "matern", "linear"]
Mean = Literal["average", "constant", "first", "none"]
LEAST_NOISE = 1e-5  # docs/rivals.md: "noise below 1e-5 counts as 1e-5"


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    kernel: Kernel = "rbf",
    scale: float = 1.0,
    noise: float = 0.05,
    mean: Mean = "constant",
    beta: float = 1.0,
    query: bool = False,
) -> Ranked:
    """By `problem.first`, then by the posterior's mean + `beta` deviations.

    While the scores are fewer than the mean's coefficients, or all equal, by `problem.first`.
    """
    items, scores = observed(batches)
    H = columns(problem, mean)
    if len(scores) < max(1, H.shape[1]) or np.ptp(scores) == 0:
        return best_first(problem.retriever, batches)
    X = points(given(problem.items, "items"), kernel)
    X_b, H_b, y = X[items], H[items], scores
    if query:
        X_b, H_b, y = with_query(problem, kernel, X_b, H, H_b, y)
    K = covariance(X_b, X_b, kernel, scale) + max(noise, LEAST_NOISE) * np.eye(len(y))
    k_star = covariance(X, X_b, kernel, scale)
    if mean == "average":
        prior, prior_b = np.full(len(X), y.mean()), np.full(len(y), y.mean())
    else:
        coefficients = generalised_least_squares(K, H_b, y)
        prior, prior_b = H @ coefficients, H_b @ coefficients
    posterior = prior + k_star @ np.linalg.solve(K, y - prior_b)  # 2.25, 2.41
    if beta == 0:
        return best_first(posterior, batches)
    deviation = np.sqrt(amplitude(y - prior_b) * unit_variance(X, k_star, K, kernel))
    return best_first(posterior + beta * deviation, batches)


def columns(problem: Problem, mean: Mean) -> FloatArray:
    """H (n, p): what the mean is linear in; the "average" is no coefficient but a number.

    "first": the scores of each retriever in `problem.trends`, as they are, or `problem.first`.
    """
    n = len(problem.retriever)
    if mean in ("none", "average"):
        return np.empty((n, 0))
    if mean == "constant":
        return np.ones((n, 1))
    return np.column_stack([np.ones(n), *(problem.trends or (problem.retriever,))])


def points(vectors: FloatArray, kernel: Kernel) -> FloatArray:
    """Unit vectors for the kernels of distance, vectors as they are for the linear one."""
    return vectors if kernel == "linear" else kernels.directions(vectors)


def covariance(X: FloatArray, Y: FloatArray, kernel: Kernel, scale: float) -> FloatArray:
    """k of rows of X and Y, without the amplitude v."""
    if kernel == "rbf":
        return kernels.rbf(X, Y, scale)
    if kernel == "matern":
        return kernels.matern(X, Y, scale)
    return kernels.linear(X, Y)


def with_query(
    problem: Problem,
    kernel: Kernel,
    X_b: FloatArray,
    H: FloatArray,
    H_b: FloatArray,
    y: FloatArray,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The observations and one more, the query: "at the highest score known, and the best
    retriever scores there are" (docs/rivals.md).

    The best are those of all items, column by column. It is an observation like the others: it has
    the same noise, and a part in the average, the coefficients and the amplitude. Alternatives:
    these three of the items' own scores alone.
    """
    vector = points(given(problem.query, "query")[None, :], kernel)
    return (
        np.vstack([X_b, vector]),
        np.vstack([H_b, H.max(axis=0, keepdims=True)]),
        np.append(y, y.max()),
    )


def generalised_least_squares(K: FloatArray, H: FloatArray, y: FloatArray) -> FloatArray:
    """(p,) (H' K^-1 H)^-1 H' K^-1 y (2.42); of minimum norm where columns depend on each other."""
    if H.shape[1] == 0:
        return np.empty(0)
    weighted = np.linalg.solve(K, H)
    return np.linalg.lstsq(weighted.T @ H, weighted.T @ y, rcond=None)[0]


def amplitude(residuals: FloatArray) -> float:
    """v: "the mean square of the residuals of this query's own scores" from the mean.

    Alternative: the likeliest one under the model, residuals' K^-1 residuals / b.
    """
    return float(np.mean(residuals**2))


def unit_variance(X: FloatArray, k_star: FloatArray, K: FloatArray, kernel: Kernel) -> FloatArray:
    """(n,) posterior variance of the score without noise, for v = 1 (2.26).

    "The mean's coefficients taken as known": without the last term of 2.42.
    """
    prior = (X**2).sum(axis=1) if kernel == "linear" else np.ones(len(X))
    explained = (k_star * np.linalg.solve(K, k_star.T).T).sum(axis=1)
    return np.maximum(prior - explained, 0.0)
