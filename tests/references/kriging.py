"""Kriging, with and without what other queries scored: docs/explanation/kriging.md, "The idea in four steps".

    score(x) = H(x) w + residual(x) + noise,    w ~ N(m, B),    residual ~ GP(0, k)

There are several trends H; the residuals from the average of what they say are kriged. Weights: the
generalised ridge regression of Rasmussen and Williams, 2006, 2.7 (2.42), the intercept without a
prior. Matheron, 1969.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from .problem import Batch, FloatArray, Problem, Ranked, best_first, directions, observed

RANK, SHARE = 100, 0.7
SCALES = [2.0**power for power in range(-3, 5)]
RIDGES = [0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0]


def squared_distances(X: FloatArray, Y: FloatArray) -> FloatArray:
    """(m, b) |x - y|^2 of rows of X (m, d) and Y (b, d), from the differences themselves."""
    return np.stack([((X - y) ** 2).sum(axis=1) for y in Y], axis=1)


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


@dataclass(frozen=True)
class Content:
    """Covariance by content, of things with directions, in units of a variance."""

    scale: float
    smooth: float
    linear: float
    noise: float

    def between(self, X: FloatArray, Y: FloatArray) -> FloatArray:
        """(n, b) smooth exp(-scale |x - y|^2) + linear cos(x, y) of X (n, d) and Y (b, d)."""
        return self.smooth * np.exp(-self.scale * squared_distances(X, Y)) + self.linear * X @ Y.T

    def own(self, X: FloatArray) -> FloatArray:
        """(n,) the same of each with itself."""
        return self.smooth + self.linear * (X**2).sum(axis=1)

    def noise_of(self, b: int) -> FloatArray:
        """(b, b) what nothing explains, "as a share of the content's part", smooth + linear."""
        return self.noise * (self.smooth + self.linear) * np.eye(b)


@dataclass(frozen=True)
class Trend:
    """Columns H (n, p), the intercept first; their weights' prior `mean` m (p,) and `precision`
    B^-1 (p, p), which is 0 for the intercept."""

    H: FloatArray
    mean: FloatArray
    precision: FloatArray


def kriging(
    problem: Problem,
    batches: Sequence[Batch],
    *,
    use_anchors: bool = True,
) -> Ranked:
    """By the prediction, plus a deviation without other queries."""
    content = Content(scale=2.0, smooth=0.3, linear=0.5, noise=0.25)
    by = with_others if use_anchors else without_others
    return best_first(by(problem, batches, content), batches)


def with_others(problem: Problem, batches: Sequence[Batch], content: Content) -> FloatArray:
    """(n,) predictions with what the anchors taught."""
    lesson, U = learn(problem, RANK), directions(problem.items)
    items, y = observed(batches)
    G, v = lesson.factors, lesson.variance
    k = SHARE * G @ G[items].T + v * content.between(U, U[items])
    K = k[items] + v * content.noise_of(len(y))
    trends = lesson.trends(problem)
    return averaged(trends, [trend.H[items] for trend in trends], k, K, y)[0]


def without_others(problem: Problem, batches: Sequence[Batch], content: Content) -> FloatArray:
    """(n,) the same where no other query is known, with the query as one more item, plus the
    standard deviation.

    A slope has the prior N(0, 1): the variance of the residuals is the unit. The query has the best
    score and the best column values known, and its own direction.
    """
    items, y = observed(batches)
    U, columns = directions(problem.items), [standardised(trend) for trend in problem.trends]
    trends = []
    for count in sorted({0, 1, len(columns)}):  # equal trends count once
        H = np.column_stack([np.ones(len(U)), *columns[:count]])
        precision = np.diag([0.0, *np.ones(count)])
        trends.append(Trend(H, np.zeros(1 + count), precision))
    near = np.vstack([U[items], directions(problem.query)])
    k = content.between(U, near)
    K = content.between(near, near) + content.noise_of(len(near))
    seen = [np.vstack([trend.H[items], trend.H.max(axis=0)]) for trend in trends]
    prediction, r = averaged(trends, seen, k, K, np.append(y, y.max()))
    unit = r @ np.linalg.solve(K, r) / max(len(r) - (1 + len(columns)), 1)
    return prediction + deviations(unit, content.own(U), k, K)


def averaged(
    trends: Sequence[Trend],
    seen: Sequence[FloatArray],
    k: FloatArray,
    K: FloatArray,
    y: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Predictions (n,) of universal kriging from the trends' average, and y's residuals r (b,).

    `k` (n, b) are covariances with what was observed, `K` (b, b) those within it and noise; `seen`
    are the trends' columns (b, p) of what was observed.
    """
    level, level_b = 0.0, 0.0
    for trend, H_b in zip(trends, seen, strict=True):
        weighted = np.linalg.solve(K, H_b)
        pull = weighted.T @ y + trend.precision @ trend.mean
        w = np.linalg.lstsq(weighted.T @ H_b + trend.precision, pull, rcond=None)[0]
        level, level_b = level + trend.H @ w, level_b + H_b @ w
    r = y - level_b / len(trends)
    return level / len(trends) + k @ np.linalg.solve(K, r), r


def deviations(unit: float, own: FloatArray, k: FloatArray, K: FloatArray) -> FloatArray:
    """(n,) standard deviations of scores without noise, the regression's weights known (2.26)."""
    variance = own - (k * np.linalg.solve(K, k.T).T).sum(axis=1)
    return np.sqrt(unit * np.maximum(variance, 0.0))


@dataclass(frozen=True)
class Cokriging:
    """From a query's vector to the coordinates of its residuals in the space of the factors.

    `known` (q, d) are the anchors' vectors about their mean `middle`, over `length`, the root of
    their mean square length then; `Z` (q, r) are their coordinates.
    """

    known: FloatArray
    middle: FloatArray
    length: float
    Z: FloatArray
    scale: float
    ridge: float

    def __call__(self, query: FloatArray) -> FloatArray:
        """(r,) coordinates of a query with the vector (d,): k' (K + ridge I)^-1 Z."""
        k = squared_distances((query[None] - self.middle) / self.length, self.known)[0]
        K = squared_distances(self.known, self.known)
        k, K = np.exp(-self.scale * k), np.exp(-self.scale * K)
        return k @ np.linalg.solve(K + self.ridge * np.eye(len(K)), self.Z)


def cokrige(queries: FloatArray, E: FloatArray, G: FloatArray) -> tuple[Cokriging, FloatArray]:
    """Cokriging and each anchor's coordinates (q, r) as the others predict them, from the anchors'
    vectors (q, d), residuals E (q, n) and factors G (n, r): the scale and ridge are those of the
    least squared error when each anchor is predicted from the others."""
    middle = queries.mean(axis=0)
    length = float(np.sqrt(((queries - middle) ** 2).sum(axis=1).mean()))
    known, every = (queries - middle) / length, np.arange(len(queries))
    products, far = G.T @ G, squared_distances(known, known)
    Z, tried = np.linalg.solve(products, G.T @ E.T).T, []
    for scale, ridge in product(SCALES, RIDGES):
        near, found = np.exp(-scale * far), np.empty_like(Z)
        K = near + ridge * np.eye(len(known))
        for anchor in every:
            rest = every[every != anchor]
            found[anchor] = np.linalg.solve(K[np.ix_(rest, rest)], near[rest, anchor]) @ Z[rest]
        left = Z - found  # |E - found G'|^2 but for E - Z G', which no option changes
        error = np.sum((left @ products) * left)
        tried.append((error, Cokriging(known, middle, length, Z, scale, ridge), found))
    _, fit, found = min(tried, key=lambda one: one[0])
    return fit, found


@dataclass(frozen=True)
class Lesson:
    """What the anchor queries taught: items' `mean` scores (n,), `priors` of the two trends' weights
    (mean, precision), the factors G (n, r) of the residuals' covariance, and their `variance`."""

    mean: FloatArray
    priors: Sequence[tuple[FloatArray, FloatArray]]
    factors: FloatArray
    variance: float
    cokriging: Cokriging

    def trends(self, problem: Problem) -> list[Trend]:
        """Both trends, with the columns of the problem's query."""
        feature = self.factors @ self.cokriging(problem.query)
        columns = both_columns(problem.trends, feature, self.mean)
        return [Trend(H, *prior) for H, prior in zip(columns, self.priors, strict=True)]


def learn(problem: Problem, rank: int) -> Lesson:
    """Steps 1 to 3 of the page, of the anchors' scores R (q, n).

    In an anchor's regressions an item's mean is that over the others, and the feature of cokriging
    is predicted from the others: a query that is searched has no part in them either.
    """
    R = problem.anchor_scores
    q = len(R)
    others = (R.sum(axis=0) - R) / (q - 1)
    cheap = [[trend[anchor] for trend in problem.anchor_trends] for anchor in range(q)]
    first = [regress(both_columns(cheap[a], others[a], others[a])[0], R[a]) for a in range(q)]
    E = np.array([residuals for _, residuals in first])
    variance = float(np.mean(E**2))
    G = factors_of(E, directions(problem.items), rank)
    cokriging, others_say = cokrige(problem.anchor_queries, E, G)
    features = others_say @ G.T
    second = [regress(both_columns(cheap[a], features[a], others[a])[1], R[a]) for a in range(q)]
    priors = [prior_of(np.array([w for w, _ in each]), variance) for each in (first, second)]
    return Lesson(R.mean(axis=0), priors, G, variance, cokriging)


def both_columns(
    trends: Sequence[FloatArray], feature: FloatArray, mean: FloatArray
) -> list[FloatArray]:
    """[1, leading retriever, mean] (n, 3) and [1, all retrievers, cokriging, mean] (n, 3 + s)."""
    columns = [standardised(column) for column in (*trends, feature, mean)]
    one = np.ones(len(mean))
    return [np.column_stack([one, columns[0], columns[-1]]), np.column_stack([one, *columns])]


def standardised(column: FloatArray) -> FloatArray:
    """Mean 0 and deviation 1 over the items; 0 where it is constant."""
    centred = column - column.mean()
    deviation = centred.std()
    return centred / deviation if deviation > 0 else centred


def regress(H: FloatArray, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weights (p,) of least squares over all items, each counted alike, and residuals (n,)."""
    weights = np.linalg.lstsq(H, scores, rcond=None)[0]
    return weights, scores - H @ weights


def prior_of(weights: FloatArray, variance: float) -> tuple[FloatArray, FloatArray]:
    """Mean and precision from the weights (q, p) of the anchors; none of the intercept."""
    q, p = weights.shape
    spread = np.atleast_2d(np.cov(weights[:, 1:].T))  # q - 1 in the denominator
    precision = np.zeros((p, p))
    precision[1:, 1:] = np.linalg.inv((q * spread + 2 * variance * np.eye(p - 1)) / (q + 2))
    return np.append(0.0, weights[:, 1:].mean(axis=0)), precision


def factors_of(E: FloatArray, U: FloatArray, rank: int) -> FloatArray:
    """G (n, r), no more than F's, of residuals E (q, n) and the items' directions U (n, d)."""
    F = strongest(E.T / np.sqrt(len(E)), rank)
    S = U @ np.linalg.solve(U.T @ U + 30 * np.eye(U.shape[1]), U.T @ F)
    return strongest(np.hstack([np.sqrt(4 / 7) * F, np.sqrt(3 / 7) * S]), F.shape[1])


def strongest(A: FloatArray, rank: int) -> FloatArray:
    """(n, r) with the covariance A A', cut to its `rank` largest directions."""
    left, S, _ = np.linalg.svd(A, full_matrices=False)
    return left[:, :rank] * S[:rank]
