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

from . import kernels
from .problem import Batch, FloatArray, IntArray, Problem, Ranked, best_first, given, observed

BELIEF = 10
"""Scores that the variances learned from the anchors are worth."""


@dataclass(frozen=True)
class Lesson:
    """What the anchor queries taught."""

    mean: FloatArray
    """(n,) mean score of each item."""
    weights: FloatArray
    """(p,) b: the weights of a normal query."""
    spread: FloatArray
    """(p, p) B: how much queries differ in them."""
    factors: FloatArray
    """(n, r) F: F F' is the residuals' covariance between items, of low rank."""
    variance: float
    """Variance of the residuals."""


def rank(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    anchors: bool = True,
    rank: int = 100,
    share: float = 0.7,
    scale: float = 2.0,
    smooth: float = 0.3,
    linear: float = 0.5,
    noise: float = 0.25,
    beta: float = 0.0,
) -> Ranked:
    """By `problem.first`, then by the prediction + `beta` deviations.

    With `anchors=False` (or a problem without any) as `by_content`: while scores are fewer than
    the weights, or all equal, by `problem.first`.
    """
    if not batches:
        return best_first(problem.retriever, batches)
    content = Content(kernels.directions(given(problem.items, "items")), scale, smooth, linear)
    if anchors and problem.anchor_scores is not None:
        values = by_lesson(problem, batches, learn(problem, rank), content, share, noise, beta)
        return best_first(values, batches)
    _, scores = observed(batches)
    if len(scores) < 1 + len(problem.trends) or np.ptp(scores) == 0:
        return best_first(problem.retriever, batches)
    return best_first(by_content(problem, batches, content, noise, beta), batches)


@dataclass(frozen=True)
class Content:
    """Covariance by content, before it is multiplied by a variance."""

    unit: FloatArray
    """(n, d) directions of the item vectors."""
    scale: float
    smooth: float
    linear: float

    def between(self, items: IntArray) -> FloatArray:
        """(n, b) smooth exp(-scale |x - y|^2) + linear cos(x, y), all items with `items`."""
        Y = self.unit[items]
        near = kernels.rbf(self.unit, Y, self.scale)
        return self.smooth * near + self.linear * kernels.linear(self.unit, Y)

    def own(self) -> FloatArray:
        """(n,) the same of each item with itself."""
        return self.smooth + self.linear * (self.unit**2).sum(axis=1)


def noise_variance(content: Content, noise: float) -> float:
    """What nothing explains, "as a share of the content's part", in units of the variance.

    The content's part is smooth + linear, an item's covariance with itself: 0.25 (0.3 + 0.5) = 0.2,
    so that content and noise add up to 1 by default. Alternative: `noise` of the variance itself.
    """
    return noise * (content.smooth + content.linear)


# From the anchors


def learn(problem: Problem, rank: int) -> Lesson:
    """Steps 1 and 2 of the page, of the anchors' scores R (q, n)."""
    R = given(problem.anchor_scores, "anchor_scores")
    others = means_of_others(R)
    weights = np.empty((len(R), 1 + len(problem.anchor_trends)))
    residuals = np.empty_like(R)
    for anchor, scores in enumerate(R):
        trends = [trend[anchor] for trend in problem.anchor_trends]
        H = np.column_stack([np.ones(len(scores)), *trends, others[anchor]])
        fit = np.linalg.lstsq(H, scores, rcond=None)[0]  # over all items, each counted alike
        weights[anchor] = fit[1:]
        residuals[anchor] = scores - H @ fit
    b, B = prior(weights)
    variance = float(np.mean(residuals**2))
    return Lesson(R.mean(axis=0), b, B, low_rank(residuals, rank), variance)


def means_of_others(R: FloatArray) -> FloatArray:
    """(q, n) each item's mean score over all anchors but one, for that one's regression.

    A query that is searched has no part in the mean either. A single anchor has its own scores.
    Alternative: the mean of all, which holds a q-th of what is to be explained. The page does not
    say; the recall that docs/results.md prints under "Kriging in parts" at 100 and 200 calls is
    that of the means of the others, to the last digit, and not that of the alternative.
    """
    q = len(R)
    return (R.sum(axis=0) - R) / (q - 1) if q > 1 else R


def prior(weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of the anchors' weights (q, p), intercepts left out.

    The full covariance, with q - 1 in the denominator; of a single anchor it is 0. Alternatives:
    q in the denominator; variances alone; less what the fit's own error adds to it (each weight is
    fitted to n items, so that is little).
    """
    centred = weights - weights.mean(axis=0)
    return weights.mean(axis=0), centred.T @ centred / max(1, len(weights) - 1)


def low_rank(residuals: FloatArray, rank: int) -> FloatArray:
    """(n, r) the factors F of the nearest covariance of that rank to E'E / q, E (q, n) residuals.

    E'E / q = V S^2 V' / q from E = U S V', cut to the largest `rank`. Residuals are taken to have
    mean 0 for every item, as the model says. Alternatives: centred item by item, and q - 1 in the
    denominator; each anchor's residuals brought to equal variance first.
    """
    _, S, Vt = np.linalg.svd(residuals, full_matrices=False)
    return Vt[:rank].T * S[:rank] / np.sqrt(len(residuals))


# One query


def by_lesson(
    problem: Problem,
    batches: Sequence[Batch],
    lesson: Lesson,
    content: Content,
    share: float,
    noise: float,
    beta: float,
) -> FloatArray:
    """(n,) predictions with what the anchors taught, plus `beta` deviations."""
    items, y = observed(batches)
    F, v = lesson.factors, lesson.variance
    k = share * F @ F[items].T + v * content.between(items)
    own = share * (F**2).sum(axis=1) + v * content.own()
    h = np.column_stack([*problem.trends, lesson.mean])
    B = lesson.spread
    c = k + h @ B @ h[items].T  # (n, b) covariance with the scored items, weights included
    C = c[items] + v * noise_variance(content, noise) * np.eye(len(y))
    expected = h @ lesson.weights  # but for the intercept
    ones = np.ones(len(y))
    weighted = np.linalg.solve(C, ones)
    w0 = weighted @ (y - expected[items]) / (weighted @ ones)
    prediction = w0 + expected + c @ np.linalg.solve(C, y - expected[items] - w0)
    if beta == 0:
        return prediction
    # docs/kriging.md, "How far a prediction may be off": of the score without noise, weights and
    # intercept taken as known at their posterior mean, in units of the query's own residuals r.
    w = lesson.weights + B @ h[items].T @ np.linalg.solve(C, y - expected[items] - w0)
    r = y - w0 - h[items] @ w
    K = k[items] + v * noise_variance(content, noise) * np.eye(len(y))
    unit = (BELIEF + r @ np.linalg.solve(K, r)) / (BELIEF + len(y))
    variance = own - (k * np.linalg.solve(K, k.T).T).sum(axis=1)
    return prediction + beta * np.sqrt(unit * np.maximum(variance, 0.0))


def by_content(
    problem: Problem, batches: Sequence[Batch], content: Content, noise: float, beta: float
) -> FloatArray:
    """(n,) predictions of universal kriging with the trend [1, retrievers' scores], no prior.

    The variance in front of the content's covariance matters to deviations only: it is that of
    docs/kriging.md, r' K^-1 r / (b - f) of the residuals r from the trend of f columns.
    """
    items, y = observed(batches)
    H = np.column_stack([np.ones(len(problem.retriever)), *problem.trends])
    H_b = H[items]
    k = content.between(items)
    K = k[items] + noise_variance(content, noise) * np.eye(len(y))
    weighted = np.linalg.solve(K, H_b)
    information = weighted.T @ H_b
    w = np.linalg.lstsq(information, weighted.T @ y, rcond=None)[0]
    prediction = H @ w + k @ np.linalg.solve(K, y - H_b @ w)
    if beta == 0:
        return prediction
    variance = content.own() - (k * np.linalg.solve(K, k.T).T).sum(axis=1)
    r = y - H_b @ w
    unit = r @ np.linalg.solve(K, r) / max(len(y) - H.shape[1], 1)
    return prediction + beta * np.sqrt(unit * np.maximum(variance, 0.0))
