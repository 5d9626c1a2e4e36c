"""Kriging that has learned from anchor queries: docs/kriging.md, "The idea in four steps".

    score(x) = w0 + h(x)' w + residual(x) + noise,    w ~ N(b, B),    residual ~ GP(0, k)

h(x): scores by the retrievers of `problem.trends`, and the item's mean score over the anchors. b, B
and the learned part of k come from the anchors; w0 has no prior. Rasmussen and Williams, 2006, 2.7:
a Gaussian prior of the weights is one more covariance, h(x)' B h(y) (2.40), and what has a vague
prior, here w0 alone, is estimated by generalised least squares (2.42). Matheron, 1969.
Without anchors all weights are vague, and it is a Gaussian process on the item vectors.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .gaussian_process import squared_distances, universal
from .problem import Batch, FloatArray, IntArray, Problem, Ranked, best_first, directions, observed

BELIEF = 10
"""Scores that the variances learned from the anchors are worth."""


@dataclass(frozen=True)
class Content:
    """Covariance by content, of items with directions `unit` (n, d), in units of a variance."""

    unit: FloatArray
    scale: float
    smooth: float
    linear: float
    noise: float

    def between(self, items: IntArray) -> FloatArray:
        """(n, b) smooth exp(-scale |x - y|^2) + linear cos(x, y), all items with `items`."""
        Y = self.unit[items]
        near = np.exp(-self.scale * squared_distances(self.unit, Y))
        return self.smooth * near + self.linear * self.unit @ Y.T

    def own(self) -> FloatArray:
        """(n,) the same of each item with itself."""
        return self.smooth + self.linear * (self.unit**2).sum(axis=1)

    def noise_of(self, b: int) -> FloatArray:
        """(b, b) what nothing explains, "as a share of the content's part", smooth + linear."""
        return self.noise * (self.smooth + self.linear) * np.eye(b)


def kriging(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    use_anchors: bool = True,
    rank: int = 100,
    share: float = 0.7,
    scale: float = 2.0,
    smooth: float = 0.3,
    linear: float = 0.5,
    noise: float = 0.25,
    beta: float = 0.0,
) -> Ranked:
    """By the retriever, then by the prediction + `beta` deviations; without `use_anchors` by the
    retriever also while scores are fewer than the weights, or all equal."""
    content = Content(directions(problem.items), scale, smooth, linear, noise)
    if use_anchors:
        values = by_lesson(problem, batches, learn(problem, rank), content, share, beta)
        return best_first(values, batches)
    _, scores = observed(batches)
    if len(scores) < 1 + len(problem.trends) or np.ptp(scores) == 0:
        return best_first(problem.retriever, batches)
    return best_first(by_content(problem, batches, content, beta), batches)


@dataclass(frozen=True)
class Lesson:
    """What the anchor queries taught: items' `mean` scores (n,), the `weights` (p,) of a normal
    query and their `spread` (p, p), the `factors` F (n, r) of the residuals' covariance F F' between
    items, and the residuals' `variance`."""

    mean: FloatArray
    weights: FloatArray
    spread: FloatArray
    factors: FloatArray
    variance: float


def learn(problem: Problem, rank: int) -> Lesson:
    """Steps 1 and 2 of the page, of the anchors' scores R (q, n).

    In an anchor's regression an item's mean is that over the others: a query that is searched has no
    part in the mean either. The weights' covariance has q - 1 in the denominator. E'E / q of the
    residuals E (q, n) is V S^2 V' / q from E = U S V', cut to the largest `rank`.
    """
    R = problem.anchor_scores
    q, n = R.shape
    others = (R.sum(axis=0) - R) / (q - 1)
    weights, residuals = [], []
    for anchor, scores in enumerate(R):
        trends = [trend[anchor] for trend in problem.anchor_trends]
        H = np.column_stack([np.ones(n), *trends, others[anchor]])
        fit = np.linalg.lstsq(H, scores, rcond=None)[0]  # over all items, each counted alike
        weights.append(fit[1:])
        residuals.append(scores - H @ fit)
    W, E = np.array(weights), np.array(residuals)
    _, S, Vt = np.linalg.svd(E, full_matrices=False)
    factors = Vt[:rank].T * S[:rank] / np.sqrt(q)
    return Lesson(R.mean(axis=0), W.mean(axis=0), np.cov(W.T), factors, float(np.mean(E**2)))


def by_lesson(
    problem: Problem,
    batches: Sequence[Batch],
    lesson: Lesson,
    content: Content,
    share: float,
    beta: float,
) -> FloatArray:
    """(n,) predictions with what the anchors taught, plus `beta` deviations."""
    items, y = observed(batches)
    F, v, B = lesson.factors, lesson.variance, lesson.spread
    k = share * F @ F[items].T + v * content.between(items)
    h = np.column_stack([*problem.trends, lesson.mean])
    c = k + h @ B @ h[items].T  # (n, b) covariance with the scored items, weights included
    C = c[items] + v * content.noise_of(len(y))
    expected = h @ lesson.weights  # but for the intercept
    weighted = np.linalg.solve(C, np.ones(len(y)))
    w0 = weighted @ (y - expected[items]) / weighted.sum()
    pull = np.linalg.solve(C, y - expected[items] - w0)
    prediction = w0 + expected + c @ pull
    if beta == 0:
        return prediction
    # docs/kriging.md, "How far a prediction may be off": of the score without noise, weights and
    # intercept taken as known at their posterior mean, in units of the query's own residuals r.
    r = y - w0 - h[items] @ (lesson.weights + B @ h[items].T @ pull)
    K = k[items] + v * content.noise_of(len(y))
    unit = (BELIEF + r @ np.linalg.solve(K, r)) / (BELIEF + len(y))
    own = share * (F**2).sum(axis=1) + v * content.own()
    variance = own - (k * np.linalg.solve(K, k.T).T).sum(axis=1)
    return prediction + beta * np.sqrt(unit * np.maximum(variance, 0.0))


def by_content(
    problem: Problem, batches: Sequence[Batch], content: Content, beta: float
) -> FloatArray:
    """(n,) predictions of universal kriging with the trend [1, retrievers' scores], no prior.

    The variance in front of the content's covariance matters to deviations only: it is that of
    docs/kriging.md, r' K^-1 r / (b - f) of the residuals r from the trend of f columns.
    """
    items, y = observed(batches)
    H = np.column_stack([np.ones(len(problem.retriever)), *problem.trends])
    k = content.between(items)
    K = k[items] + content.noise_of(len(y))
    mean, r, variance = universal(k, K, content.own(), H, H[items], y)
    unit = r @ np.linalg.solve(K, r) / max(len(y) - H.shape[1], 1)
    return mean + beta * np.sqrt(unit * variance)
