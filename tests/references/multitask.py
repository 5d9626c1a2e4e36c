"""Predict a query's scores from other queries' by a multi-task Gaussian process: docs/explanation/kriging.md,
"Queries that are searched together".

Bonilla et al., 2007, 2.1: the covariance of two scores is that of their tasks (queries) times that of
their inputs (items). Here it is written out as one matrix for all scores, and solved.
"""

from collections.abc import Sequence

import numpy as np

from .kriging import Content
from .problem import FloatArray

CONTENT = Content(scale=2.0, smooth=0.3, linear=0.5, noise=0.25)


class Tasks:
    """The model of q queries. X (n, d) and U (q, d) are directions of items and queries; `scored` has
    each query's items (b,), scores (b,) and trend columns (b, s)."""

    def __init__(
        self,
        X: FloatArray,
        scored: Sequence[tuple[FloatArray, FloatArray, FloatArray]],
        U: FloatArray | None,
    ) -> None:
        self.scored, self.k = scored, CONTENT.between(X, X)
        functions = [self.weights([q], np.ones((1, 1)))[0] for q in range(len(scored))]
        self.B = np.empty((len(scored), len(scored)))
        for i, a in enumerate(functions):
            for j, b in enumerate(functions):
                near = a @ self.k @ b / np.sqrt(a @ self.k @ a) / np.sqrt(b @ self.k @ b)
                if U is not None:
                    near = (near + np.exp(-((U[i] - U[j]) ** 2).sum() / 2)) / 2
                self.B[i, j] = 2 + 10 * near + (i == j)

    def weights(self, queries: Sequence[int], B: FloatArray) -> FloatArray:
        """Solve K a = y for the scores of some queries: (q', n), 0 where an item has no score."""
        of = np.concatenate([np.full(len(self.scored[q][0]), r) for r, q in enumerate(queries)])
        items = np.concatenate([self.scored[q][0] for q in queries])
        columns = np.concatenate([self.scored[q][2] for q in queries])
        y = np.concatenate([self.scored[q][1] - self.scored[q][1].mean() for q in queries])
        trend = (of[:, None] == of) * (100 + columns @ columns.T)
        K = B[np.ix_(of, of)] * self.k[np.ix_(items, items)] + trend + CONTENT.noise_of(len(of))
        found = np.zeros((len(queries), len(self.k)))
        found[of, items] = np.linalg.solve(K, y)
        return found

    def by_others(self, folds: Sequence[FloatArray]) -> FloatArray:
        """(q, n) what the queries outside a query's fold predict for it, besides its trend."""
        means = np.empty((len(self.scored), len(self.k)))
        for fold in folds:
            others = [q for q in range(len(means)) if q not in fold]
            weights = self.weights(others, self.B[np.ix_(others, others)])
            means[fold] = self.B[np.ix_(fold, others)] @ weights @ self.k
        return means

    def completed(self, trends: FloatArray) -> FloatArray:
        """Predict all scores (q, n), given the trend columns of all items (q, n, s)."""
        weights = self.weights(range(len(self.scored)), self.B)
        means = self.B @ weights @ self.k
        for q, (items, scores, columns) in enumerate(self.scored):
            own = weights[q, items]
            means[q] += scores.mean() + 100 * own.sum() + trends[q] @ (columns.T @ own)
        return means
