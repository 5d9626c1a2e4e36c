"""A Gaussian process over the item vectors: the idea of BAGEL (2604.17906) and ReBOL (2603.20513).

    score(x) = h(x)' beta + residual(x),     residual ~ GP(0, v k)

Rasmussen and Williams, 2006: the posterior is 2.25 and 2.26, the mean's coefficients are those of
2.42 with a vague prior (generalised least squares), which is Matheron's universal kriging, 1969.
Neither source publishes its settings; what the product chose is docs/explanation/rivals.md, "gp".
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

from .problem import Batch, FloatArray, Problem, Ranked, best_first, directions, observed

Kernel = Literal["rbf", "matern", "linear"]
LEAST_NOISE = 1e-5  # docs/explanation/rivals.md: "noise below 1e-5 counts as 1e-5"


def squared_distances(X: FloatArray, Y: FloatArray) -> FloatArray:
    """(m, b) |x - y|^2 of rows of X (m, d) and Y (b, d), from the differences themselves."""
    return np.stack([((X - y) ** 2).sum(axis=1) for y in Y], axis=1)


def covariance(X: FloatArray, Y: FloatArray, kernel: Kernel, scale: float) -> FloatArray:
    """k of rows of X and Y, without the amplitude v (chapter 4: 4.9 and 4.17, l^2 = 1 / 2 scale)."""
    if kernel == "linear":
        return X @ Y.T
    if kernel == "rbf":
        return np.exp(-scale * squared_distances(X, Y))
    r = np.sqrt(5 * squared_distances(X, Y) * 2 * scale)  # sqrt(5) |x - y| / l
    return (1 + r + r**2 / 3) * np.exp(-r)


def universal(
    k: FloatArray, K: FloatArray, own: FloatArray, H: FloatArray, H_b: FloatArray, y: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Universal kriging: means (n,), residuals r of y from the trend (b,), and variances (n,).

    `k` (n, b) are covariances with what was observed, `K` (b, b) those within it and noise, `own`
    (n,) each item's with itself. The variances take the coefficients as known.
    """
    weighted = np.linalg.solve(K, H_b)
    # (H' K^-1 H)^-1 H' K^-1 y, of minimum norm where columns depend on each other
    coefficients = np.linalg.lstsq(weighted.T @ H_b, weighted.T @ y, rcond=None)[0]
    r = y - H_b @ coefficients
    mean = H @ coefficients + k @ np.linalg.solve(K, r)  # 2.25, 2.41
    variance = own - (k * np.linalg.solve(K, k.T).T).sum(axis=1)  # 2.26
    return mean, r, np.maximum(variance, 0.0)


def gp(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    kernel: Kernel = "rbf",
    scale: float = 1.0,
    noise: float = 0.05,
    mean: Literal["average", "constant", "retriever"] = "constant",
    beta: float = 1.0,
    query: bool = False,
) -> Ranked:
    """By the retriever, then by the posterior's mean + `beta` deviations.

    While the scores are fewer than the mean's coefficients, or all equal, by the retriever. The
    `query` is one more observation "at the highest score known, and the best retriever scores there
    are" (docs/explanation/rivals.md), those of all items, column by column. The amplitude v is "the mean square
    of the residuals of this query's own scores"; the variance is that of the score without noise,
    "the mean's coefficients taken as known" (2.26).
    """
    items, y = observed(batches)
    H = np.ones((len(problem.retriever), 1))
    if mean == "retriever":
        H = np.column_stack([H, *problem.trends])
    elif mean == "average":
        H = H[:, :0]
    if len(y) < max(1, H.shape[1]) or np.ptp(y) == 0:
        return best_first(problem.retriever, batches)
    X = problem.items if kernel == "linear" else directions(problem.items)
    X_b, H_b = X[items], H[items]
    if query:
        X_b = np.vstack([X_b, directions(problem.query)])
        H_b = np.vstack([H_b, H.max(axis=0, keepdims=True)])
        y = np.append(y, y.max())
    K = covariance(X_b, X_b, kernel, scale) + max(noise, LEAST_NOISE) * np.eye(len(y))
    k_star = covariance(X, X_b, kernel, scale)
    own = (X**2).sum(axis=1) if kernel == "linear" else np.ones(len(X))
    average = y.mean() if mean == "average" else 0.0
    posterior, r, variance = universal(k_star, K, own, H, H_b, y - average)
    return best_first(average + posterior + beta * np.sqrt(np.mean(r**2) * variance), batches)
