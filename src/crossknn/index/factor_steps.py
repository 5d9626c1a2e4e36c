"""Steps of expectation maximisation (Dempster et al. 1977) for a factor model of scores.

    score of item i = intercept + weights . cheap scores + c mean_i + factors . loadings_i + noise

Factors are standard, weights and c Gaussian, the intercept may be anything; [mean_i, loadings_i] is
linear in the vector of i, but for what the item has of its own, which is Gaussian as well.

Axes: q queries, n items, d dimensions, f weights, r factors, t = 1 + r.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from crossknn.index.factor_posterior import Posterior, posterior
from crossknn.index.factor_rows import Row, Rows
from crossknn.types import FloatArray

LEAST = 1e-9
"""The least variance, in scores of variance about 1."""

BELIEF = 2
"""Queries that the prior of the weights counts for when it is estimated anew."""


@dataclass(frozen=True, slots=True)
class Model:
    """Means and loadings of items, and what is known of a query before its scores.

    `theta` (n, t) has an item's mean and loadings, `content` (d, t) what its vector says of them,
    `own` (n,) how uncertain the rest is, as a variance of its scores; `spread` (t,) is the prior
    variance of that rest. `weights` (f,) and `precision` (f, f) are those of queries, `noise` a
    variance.
    """

    theta: FloatArray
    content: FloatArray
    own: FloatArray
    spread: FloatArray
    weights: FloatArray
    precision: FloatArray
    noise: float

    def drift(self, row: Row) -> FloatArray:
        """What a query's weights are of, at its items: (b, f)."""
        return np.column_stack([row.fixed, self.theta[row.items, 0]])

    def posterior(self, row: Row, products: FloatArray | None) -> Posterior:
        """What a query's scores say of it; `products` as `products()` gives them, if it has all."""
        loadings, noise = self.theta[row.items, 1:], self.noise + self.own[row.items]
        prior = self.weights, self.precision
        return posterior(self.drift(row), loadings, row.scores, noise, *prior, products)

    def error(self, row: Row, query: Posterior) -> float:
        """Sum of squares of what a query's posterior leaves of other scores of it."""
        whole = np.hstack([self.drift(row), self.theta[row.items, 1:]])
        return float(np.square(row.scores - whole @ query.mean).sum())

    def products(self) -> FloatArray:
        """Of all loadings over the noise: (r, r)."""
        loadings = self.theta[:, 1:]
        return loadings.T @ (loadings / (self.noise + self.own)[:, None])


class Step(ABC):
    """What a sweep over the queries adds up, and the model that follows from it."""

    def __init__(self, model: Model, rows: Rows, unit: FloatArray) -> None:
        self.before, self.rows, self.unit = model, rows, unit
        self.f, self.t = len(model.weights), model.theta.shape[1]
        size = self.f + self.t - 1
        self.retriever, self.second = np.zeros(size), np.zeros((size, size))
        self.square, self.count = 0.0, 0

    def sweep(self, held: Iterable[Row] = ()) -> float:
        """Add every query; the squared error of what they foretell of those scores of the first
        ones that are `held` out."""
        model, rows, error = self.before, self.rows, 0.0
        products = model.products() if len(rows.dense) else None
        for number, (row, rest) in enumerate(zip_longest(rows, held)):
            query = model.posterior(row, products if number >= rows.sparse else None)
            self.add(row, query)
            if rest is not None:
                error += model.error(rest, query)
        return error

    def add(self, row: Row, query: Posterior) -> None:
        self.retriever += query.mean
        self.second += query.square
        self.count += len(row.scores)

    @abstractmethod
    def after(self) -> Model:
        """The model that makes what was added most likely."""

    def _turned(self, model: Model) -> Model:
        """The model with the priors that the queries' posteriors suggest, factors standard again
        (their mean goes to the items' mean, their covariance to the loadings; Liu et al. 1998)."""
        q, f, t = len(self.rows), self.f, self.t
        mean = self.retriever / q
        weights = mean[:f].copy()
        weights[0] = 0
        about = self.second / q - np.outer(mean, mean)
        prior = np.linalg.pinv(model.precision[1:, 1:], rcond=1e-12, hermitian=True)
        spread = (q * about[1:f, 1:f] + BELIEF * prior) / (q + BELIEF)
        precision = np.zeros((f, f))
        precision[1:, 1:] = np.linalg.pinv(spread, rcond=1e-12, hermitian=True)
        turn = np.eye(t)
        turn[1:, 0] = mean[f:]
        turn[1:, 1:] = np.linalg.cholesky((q * about[f:, f:] + np.eye(t - 1)) / (q + 1))
        return replace(
            model,
            theta=model.theta @ turn,
            content=model.content @ turn,
            spread=model.spread @ np.square(turn),
            weights=weights,
            precision=precision,
        )


class ContentStep(Step):
    """Loadings are linear in the vectors, means as well but for an offset of each item.

    Costs b d min(b, d) + d^2 min(b, d) multiplications a query of b items, and d^3 in all.
    """

    def __init__(self, model: Model, rows: Rows, unit: FloatArray) -> None:
        super().__init__(model, rows, unit)
        self.offset = model.theta[:, 0] - unit @ model.content[:, 0]
        self.precise, self.wanted = np.zeros(len(unit)), np.zeros(len(unit))
        self.all = model.theta.T @ model.theta if len(rows.dense) else np.zeros(0)

    def add(self, row: Row, query: Posterior) -> None:
        super().add(row, query)
        model, f = self.before, self.f
        fixed, theta = row.fixed, model.theta[row.items]
        both = np.column_stack([query.mean, query.covariance[f - 1]])
        found = fixed @ both[: f - 1] + theta @ both[f - 1 :]
        left = row.scores - found[:, 0]
        c, square = query.mean[f - 1], query.square[f - 1, f - 1]
        self.precise[row.items] += square
        self.wanted[row.items] += c * left - found[:, 1] + square * self.offset[row.items]
        unsure = np.sum(query.covariance[: f - 1, : f - 1] * (fixed.T @ fixed))
        unsure += 2 * np.sum(query.covariance[: f - 1, f - 1 :] * (fixed.T @ theta))
        products = self.all if isinstance(row.items, slice) else theta.T @ theta
        unsure += np.sum(query.covariance[f - 1 :, f - 1 :] * products)
        self.square += float(left @ left + unsure + square * model.own[row.items].sum())

    def after(self) -> Model:
        noise = max(self.square / self.count, LEAST)
        model = self._turned(replace(self.before, noise=noise))
        own = 1 / (1 / max(self.before.spread[0], LEAST) + self.precise / self.before.noise)
        offset = own * self.wanted / self.before.noise
        theta, spread = self.unit @ model.content, np.zeros(self.t)
        theta[:, 0] += offset
        spread[0] = float((np.square(offset) + own).mean())
        return replace(model, theta=theta, own=own, spread=spread)


class ItemStep(Step):
    """Every item has loadings of its own, shrunk towards what its vector says.

    Costs r^3 multiplications an item and r^2 an entry, and 4 q r^2 bytes while it runs.
    """

    def __init__(self, model: Model, rows: Rows, unit: FloatArray) -> None:
        super().__init__(model, rows, unit)
        n, t = model.theta.shape
        self.queries: list[FloatArray] = []
        self.shared, self.wanted = np.zeros((t, t)), np.zeros((n, t))

    def add(self, row: Row, query: Posterior) -> None:
        super().add(row, query)
        f, fixed = self.f - 1, row.fixed
        left = row.scores - fixed @ query.mean[:f]
        self.wanted[row.items] += np.outer(left, query.mean[f:]) - fixed @ query.covariance[:f, f:]
        unsure = np.sum(query.covariance[:f, :f] * (fixed.T @ fixed))
        self.square += float(left @ left + unsure)
        square = query.square[f:, f:]
        if len(self.queries) < self.rows.sparse:
            self.queries.append(square.astype(np.float32))
        else:
            self.shared += square

    def after(self) -> Model:
        model, (n, t) = self.before, self.before.theta.shape
        start, theta, own = self.unit @ model.content, np.empty((n, t)), np.empty(n)
        order = np.argsort(self.rows.item, kind="stable")
        begin = np.searchsorted(self.rows.item[order], np.arange(n + 1))
        prior, total = np.diag(1 / np.maximum(model.spread, LEAST**2)), np.zeros(t)
        common = np.linalg.inv(prior + self.shared / model.noise)
        square = self.square
        for item in range(n):
            products, covariance = self.shared, common
            if begin[item] < begin[item + 1]:
                who = self.rows.query[order[begin[item] : begin[item + 1]]]
                products = self.shared + sum(self.queries[query] for query in who)
                covariance = np.linalg.inv(prior + products / model.noise)
            move = covariance @ (self.wanted[item] - products @ start[item]) / model.noise
            theta[item] = start[item] + move
            variance = np.diag(covariance)
            own[item] = variance.sum()
            total += variance + np.square(move)
            square -= 2 * float(self.wanted[item] @ theta[item])
            square += float(theta[item] @ products @ theta[item] + np.sum(products * covariance))
        noise = max(square / self.count, LEAST)
        spread = total / n
        spread[1:] = model.spread[1:] * np.mean(spread[1:] / np.maximum(model.spread[1:], LEAST**2))
        return self._turned(replace(model, theta=theta, own=own, noise=noise, spread=spread))
