"""Kriging's prior from sparse exact scores: a factor model with missing entries.

    score of item i = w0 + w . cheap scores of i + c mean_i + z . loadings_i + noise

Of a query, w0 is free, w and c are Gaussian and z ~ N(0, I). Of an item, theta_i = [mean_i,
loadings_i] is linear in its vector, but for a Gaussian rest of its own.

Searches leave exact scores of few items behind, those that looked good, so averages of them are
too high. The model is fitted by likelihood, where what is unseen may be ignored if what decided on
it is in the model (Rubin 1976, missing at random): a search chooses by the retriever's scores,
which are columns here, and by the scores it has revealed, which are entries. So the whole log of a
query should be there, with the cheap scores that it was searched by.

Axes: those of `factor_rows`, and f = g + 1 weights, r factors, t = 1 + r.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from crossknn.errors import InputError
from crossknn.files import scratch
from crossknn.fitting.factor_rows import Dense, Row, Rows, rows_of
from crossknn.methods.posterior import Trend
from crossknn.methods.prior import (
    BLOCK,
    PRIOR_QUERIES,
    RANK,
    SLOPE,
    Cokriging,
    Moments,
    Prior,
    trend_columns,
)
from crossknn.scores.store import SparseScores
from crossknn.types import BoolArray, FloatArray, Progress

SWEEPS = 6
"""Over the queries, at most: for the content, and then for the items."""

FEW = (2, 0)
"""Sweeps where no entry can be held out."""

GAIN = 0.999
"""A sweep is worth another if it leaves at most so much of the error."""

LEAST = 1e-9
"""The least variance, in scores of variance about 1."""

ITERATIONS = 3
"""In which the weights of a trend are estimated, the items' loadings being known."""


def fit_sparse(
    scores: SparseScores,
    cheap: Sequence[FloatArray],
    vectors: FloatArray,
    query_vectors: FloatArray | None = None,
    *,
    lead: int = 0,
    rank: int = RANK,
    anchors: Dense | None = None,
    progress: Progress | None = None,
) -> Prior:
    """A prior as `fit_dense` makes it, from sparse `scores`, by expectation maximisation.

    Sweeps over the queries (Dempster et al. 1977) fit the content first, then the items' own part,
    as long as a tenth of the entries, held out, is predicted better; then again with all entries.

    Args:
        cheap: scores of each retriever at the entries, (e,) each, in their order, standardised over
            all items of their query.
        vectors: (n, d) of the items by a dual encoder, of any length, possibly memory-mapped.
        query_vectors: (q, d') of the queries that have scores, for cokriging.
        lead: Which of the retrievers is in the trend of few columns.
        anchors: more queries, with all items scored; read by blocks of items.
        progress: Called with (sweeps done, the most there may be).

    Raises:
        InputError: fewer than two queries have scores.
    """
    rows = rows_of(scores, cheap, vectors, anchors, rank)
    if len(rows) < 2:
        raise InputError(
            "kriging cannot be fitted to the scores of a single query: search more queries, or use "
            "kriging(use_anchors=false)"
        )
    texts = [scores.queries[query] for query in scores.scored_queries.tolist()]
    fitted, held = rows.split(texts)
    counts: tuple[int, ...] = FEW
    if any(len(row.scores) for row in held):
        _, counts = _fit(fitted, rank, (SWEEPS, SWEEPS), held, progress)
    model, _ = _fit(rows, rank, counts, progress=progress)
    if progress:
        progress(4 * SWEEPS, 4 * SWEEPS)
    if query_vectors is not None and anchors is not None and anchors[2] is not None:
        query_vectors = np.concatenate([query_vectors, anchors[2]])
    return _prior(model, rows, query_vectors, lead)


def _fit(
    rows: Rows,
    rank: int,
    counts: tuple[int, ...],
    held: Sequence[Row] = (),
    progress: Progress | None = None,
) -> tuple[FactorModel, tuple[int, ...]]:
    """The model after so many sweeps of each kind, or those that predict `held` best."""
    model, used = _start(rows), []
    for own_loadings, most in zip((False, True), counts, strict=True):
        if own_loadings:
            model = _with_own_loadings(model, rows, min(rank, len(rows)))
        least, best, count = np.inf, model, 0
        for sweep in range(most + bool(held)):
            step = Sweep(model, rows, own_loadings, held)
            if held and not step.error < GAIN * least:
                break
            least, best, count = step.error, model, sweep
            if sweep < most:
                model = step.model()
            if progress:
                progress(sweep + 1 + 2 * SWEEPS * (not held) + SWEEPS * own_loadings, 4 * SWEEPS)
        model = best if held else model
        used.append(count)
    return model, tuple(used)


@dataclass(frozen=True, slots=True)
class FactorModel:
    """`theta` (k, t): mean and loadings of items with entries; `rest` (p, t): of others, X @ rest;
    `content` (d, t): what an item's vector says of them; `own` (k,), and `own_rest` of others: how
    uncertain the rest is, as a variance of its scores; `spread` (t,): the prior variance of that
    rest; `weights` (f,) and `precision` (f, f) of queries; `noise`, a variance."""

    theta: FloatArray
    rest: FloatArray
    content: FloatArray
    own: FloatArray
    own_rest: float
    spread: FloatArray
    weights: FloatArray
    precision: FloatArray
    noise: float

    def posterior(self, row: Row, basis: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """E-step: mean (f + r,) and covariance (f + r, f + r) of a query's weights and factors.

        With K = L L' + D the scores' covariance (loadings L (b, r), noise D) and H the basis, the
        weights are those of generalised least squares with their prior (Rasmussen and Williams
        2006, 2.42), and z given them has the mean L' K^-1 (y - H w) and the covariance
        I - L' K^-1 L = (I + L' D^-1 L)^-1, the smaller inverse of which is computed. H is
        [1, cheap, mean] of the items, or the `basis` (b, f).
        """
        theta, noise = self.theta[row.items], self.noise + self.own[row.items]
        basis = np.column_stack([row.basis, theta[:, 0]]) if basis is None else basis
        loadings, r = theta[:, 1:], theta.shape[1] - 1
        both = np.column_stack([basis, row.scores - basis @ self.weights])
        spread: FloatArray
        if len(both) <= r:
            inverse = np.linalg.inv(loadings @ loadings.T + np.diag(noise))
            whole = inverse @ both
            mixed, own = loadings.T @ whole, both.T @ whole  # L' K^-1 [H y], [H y]' K^-1 [H y]
            spread = np.eye(r) - loadings.T @ inverse @ loadings
        else:
            scaled = loadings / noise[:, None]
            spread, cross = np.linalg.inv(np.eye(r) + loadings.T @ scaled), scaled.T @ both
            mixed = spread @ cross
            own = both.T @ (both / noise[:, None]) - cross.T @ mixed
        return self._joint(spread, mixed, own)

    def posteriors_of_all(
        self, rows: Rows, bases: Sequence[FloatArray] | None = None
    ) -> Iterator[tuple[FloatArray, FloatArray]]:
        """The same of the queries with all items; `bases` (g + 1 + t, f) make each one's H of
        [1, cheap, score, theta]."""
        products, g, t = self.products(rows, weighted=True), len(rows.size), self.theta.shape[1]
        spread = np.linalg.inv(np.eye(t - 1) + products[1 - t :, 1 - t :])
        plain = np.eye(g + 1 + t)
        for row in range(rows.n_dense):
            own = np.append(rows.of(row), np.arange(len(products) - t, len(products)))
            basis = np.delete(plain, g, 1)[:, : g + 1] if bases is None else bases[row]
            both = np.column_stack([basis, plain[g] - basis @ self.weights])
            whole = products[np.ix_(own, own)] @ both  # [1 cheap y theta]' D^-1 [H, y - H w]
            mixed = spread @ whole[1 - t :]
            yield self._joint(spread, mixed, both.T @ whole - whole[1 - t :].T @ mixed)

    def _joint(
        self, spread: FloatArray, mixed: FloatArray, own: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        f = len(self.weights)
        first = np.linalg.pinv(self.precision + own[:f, :f], rcond=1e-12, hermitian=True)
        cross = -mixed[:, :f] @ first
        joint = np.block([[first, cross.T], [cross, spread - cross @ mixed[:, :f].T]])
        moved = first @ own[:f, f]
        return np.append(self.weights + moved, mixed[:, f] - mixed[:, :f] @ moved), joint

    def products(self, rows: Rows, *, weighted: bool = False) -> FloatArray:
        """Of the columns of dense rows and theta with themselves, (c + t, c + t), summed over all
        items, or over all of them divided by their noise."""
        weight, of_rest = np.ones(len(self.own)), 1.0
        if weighted:
            weight, of_rest = 1 / (self.noise + self.own), 1 / (self.noise + self.own_rest)
        known, c = np.hstack([rows.columns, self.theta]), rows.columns.shape[1]
        rest = np.hstack([np.eye(len(self.rest))[:, -c:], self.rest])
        found: FloatArray = known.T @ (known * weight[:, None])
        return found + of_rest * (rest.T @ rows.gram @ rest)


def _start(rows: Rows) -> FactorModel:
    """Pooled weights of the cheap scores; half of the rest is content's, a quarter the items'."""
    g, d = len(rows.size), rows.vectors.shape[1]
    products, count = rows.within.copy(), rows.n_dense * len(rows.vectors)
    for row in rows:
        values = np.column_stack([row.scores, row.basis[:, 1:]])
        values -= values.mean(axis=0)
        products += values.T @ values
        count += len(values)
    weights = np.linalg.lstsq(products[1:, 1:], products[1:, 0], rcond=1e-9)[0]
    left = max(float(products[0, 0] - weights @ products[1:, 0]) / count, LEAST)
    content = np.hstack([np.zeros((d, 1)), np.sqrt(left / 2) * np.eye(d)])
    return FactorModel(
        theta=rows.unit @ content,
        rest=_padded(content, rows),
        content=content,
        own=np.full(len(rows.seen), left / 4),
        own_rest=left / 4,
        spread=np.append(left / 4, np.zeros(d)),
        weights=np.array([0.0, *weights, 1.0]),
        precision=np.diag([0.0, *np.full(g - 1, 4 / left), 4.0]),
        noise=left / 4,
    )


def _padded(content: FloatArray, rows: Rows) -> FloatArray:
    """Coefficients of X that are `content` (d, t) of directions, and 0 of all else: (p, t)."""
    return np.pad(content, ((0, rows.known.shape[1] - len(content)), (0, 0)))


def _with_own_loadings(model: FactorModel, rows: Rows, rank: int) -> FactorModel:
    """The model of `rank` factors, in each of which items have something of their own: all of it
    half of what was noise. Where content has fewer directions, the others are items' alone."""
    d = len(model.content)
    r = model.theta.shape[1] - 1
    products = model.products(rows)[-r:, -r:] / (len(rows.seen) + rows.n_others)
    values, vectors = np.linalg.eigh(products)
    kept = np.argsort(-values, kind="stable")[:rank]
    more = rank - len(kept)
    turn = np.zeros((len(values) + 1, rank + 1))
    turn[0, 0], turn[1:, 1 : len(kept) + 1] = 1, vectors[:, kept]
    strength = np.maximum(np.append(values[kept], np.full(more, values.mean())), LEAST)
    spread = strength * (model.noise / 2) / strength.sum()
    rest, drawn = model.rest @ turn, np.diag(np.sqrt(spread[len(kept) :]))
    theta = model.theta @ turn
    rest[d : d + more, len(kept) + 1 :] = drawn
    theta[:, len(kept) + 1 :] = rows.known[:, d : d + more] @ drawn
    return replace(
        model,
        theta=theta,
        rest=rest,
        content=model.content @ turn,
        own=model.own + model.noise / 2,
        own_rest=model.own_rest + model.noise / 2,
        spread=np.append(model.spread[0], spread),
        noise=model.noise / 2,
    )


class Sweep:
    """One pass over the queries: what it adds up (E-step), and the model that follows (M-step).

    With `own_loadings` every item has loadings of its own, shrunk towards what its vector says;
    otherwise an offset of its mean alone. The part v = [c, z] (t,) of a query's u = [w0, w, c, z]
    multiplies an item's theta. `error` is the squared one of predicting what is `held` out.
    """

    def __init__(
        self,
        model: FactorModel,
        rows: Rows,
        own_loadings: bool,
        held: Sequence[Row] = (),
    ) -> None:
        self.before, self.rows, self.own_loadings = model, rows, own_loadings
        self.start = rows.unit @ model.content  # what the items' vectors say of theta
        (k, t), g = model.theta.shape, len(rows.size)
        self.first, self.second = np.zeros(g + t), np.zeros((g + t, g + t))
        self.precise, self.wanted = np.zeros(k), np.zeros((k, t) if own_loadings else (k, 1))
        self.queries: list[FloatArray] = []  # E[v v'] of each sparse query
        # Of dense rows, which have every item: the sum of E[v v'], and what each item's columns add
        # to E[v (y - basis w)].
        self.shared, self.pull = np.zeros((t, t)), np.zeros((rows.columns.shape[1], t))
        self.square, self.count, self.error = 0.0, 0, 0.0
        for row, out in zip_longest(rows, held):
            mean = self._add(row)
            if out is not None:
                found = np.hstack([out.basis, model.theta[out.items]]) @ mean
                self.error += float(np.square(out.scores - found).sum())
        if rows.n_dense:
            self._add_dense()

    def _add(self, row: Row) -> FloatArray:
        model, g = self.before, len(self.rows.size)
        mean, covariance = model.posterior(row)
        squares = self._moments(mean, covariance, len(row.scores))
        left, cov = row.scores - row.basis @ mean[:g], covariance[:g, :g]
        # E[(y - basis w)^2], summed over the items, and E[v (y - basis w)] of each: (b, t).
        self.square += float(left @ left + np.sum(cov * (row.basis.T @ row.basis)))
        wanted = np.outer(left, mean[g:]) - row.basis @ covariance[:g, g:]
        if self.own_loadings:
            self.wanted[row.items] += wanted
            self.queries.append(squares.astype(np.float32))
            return mean
        # An offset o adds c o to the scores: E[c^2] o = E[c (y - basis w - v . start)].
        theta = model.theta[row.items]
        self.precise[row.items] += squares[0, 0]
        self.wanted[row.items, 0] += wanted[:, 0] - self.start[row.items] @ squares[0]
        explained = np.sum(squares * (theta.T @ theta)) - 2 * np.sum(wanted * theta)
        self.square += float(explained + squares[0, 0] * model.own[row.items].sum())
        return mean

    def _moments(self, mean: FloatArray, covariance: FloatArray, count: int) -> FloatArray:
        """Take in a query's E[u] and E[u u'], with so many scores; its E[v v']."""
        squares = np.outer(mean, mean) + covariance
        self.first += mean
        self.second += squares
        self.count += count
        return squares[len(self.rows.size) :, len(self.rows.size) :]

    def _add_dense(self) -> None:
        """As `_add`, of all rows with every item."""
        model, rows, g = self.before, self.rows, len(self.rows.size)
        plain, c = model.products(rows), len(self.pull)
        for row, (mean, covariance) in enumerate(model.posteriors_of_all(rows)):
            own = rows.of(row)
            self.shared += self._moments(mean, covariance, len(rows.vectors))
            products = plain[np.ix_(own, own)]
            left, cov = np.append(-mean[:g], 1), covariance[:g, :g]
            self.square += float(left @ products @ left + np.sum(cov * products[:g, :g]))
            self.pull[own] += np.outer(left, mean[g:])
            self.pull[own[:g]] -= covariance[:g, g:]
        wanted = rows.columns @ self.pull
        if self.own_loadings:
            self.wanted += wanted
            return
        self.precise += self.shared[0, 0]
        self.wanted[:, 0] += wanted[:, 0] - self.start @ self.shared[0]
        own_of_all = model.own.sum() + rows.n_others * model.own_rest
        explained = np.sum(self.shared * plain[c:, c:]) - 2 * np.sum(self.pull * plain[:c, c:])
        self.square += float(explained + self.shared[0, 0] * own_of_all)

    def model(self) -> FactorModel:
        """The model that makes the sums most likely; its factors are made standard again: their
        mean goes to the items' mean, their covariance to the loadings (Liu et al. 1998)."""
        model = self._with_loadings() if self.own_loadings else self._with_offsets()
        q, f, t = len(self.rows), len(model.weights), model.theta.shape[1]
        mean = self.first / q
        about = self.second / q - np.outer(mean, mean)
        prior = np.linalg.pinv(model.precision[1:, 1:], rcond=1e-12, hermitian=True)
        spread = (q * about[1:f, 1:f] + PRIOR_QUERIES * prior) / (q + PRIOR_QUERIES)
        precision = np.zeros((f, f))
        precision[1:, 1:] = np.linalg.pinv(spread, rcond=1e-12, hermitian=True)
        turn = np.eye(t)
        turn[1:, 0] = mean[f:]
        turn[1:, 1:] = np.linalg.cholesky((q * about[f:, f:] + np.eye(t - 1)) / (q + 1))
        return replace(
            model,
            theta=model.theta @ turn,
            rest=model.rest @ turn,
            content=model.content @ turn,
            spread=model.spread @ np.square(turn),
            weights=np.append(0.0, mean[1:f]),
            precision=precision,
        )

    def _with_offsets(self) -> FactorModel:
        model, c = self.before, len(self.pull)
        before, others = 1 / max(model.spread[0], LEAST), self.rows.n_others
        own = 1 / (before + self.precise / model.noise)
        offset = own * self.wanted[:, 0] / model.noise
        theta, spread = self.start.copy(), np.zeros(len(model.spread))
        theta[:, 0] += offset
        # The same of the other items, whose offsets are X `more`.
        own_rest, rest = 1 / (before + self.shared[0, 0] / model.noise), self._content()
        more = -rest @ self.shared[0]
        more[-c:] += self.pull[:, 0]
        more *= own_rest / model.noise
        rest[:, 0] += more
        squares = np.sum(np.square(offset) + own) + more @ self.rows.gram @ more
        spread[0] = float(squares + others * own_rest) / (len(own) + others)
        noise = max(self.square / self.count, LEAST)
        return replace(
            model, theta=theta, rest=rest, own=own, own_rest=own_rest, spread=spread, noise=noise
        )

    def _content(self) -> FloatArray:
        return _padded(self.before.content, self.rows)

    def _with_loadings(self) -> FactorModel:
        """theta = start + (S^-1 + P / noise)^-1 (wanted - P start) / noise; P is the sum of E[v v']
        over an item's queries, S the prior variance of what items have of their own."""
        model, (k, t), square = self.before, self.start.shape, self.square
        theta, own, total = np.empty((k, t)), np.empty(k), np.zeros(t)
        prior = np.diag(1 / np.maximum(model.spread, LEAST**2))
        common = np.linalg.inv(prior + self.shared / model.noise)
        scorers: list[list[int]] = [[] for _ in range(k)]
        for query, (items, _) in enumerate(self.rows.sparse):
            for item in items.tolist():
                scorers[item].append(query)
        for item, queries in enumerate(scorers):
            products, covariance = self.shared, common
            if queries:
                products = self.shared + sum(self.queries[query] for query in queries)
                covariance = np.linalg.inv(prior + products / model.noise)
            wanted, start = self.wanted[item], self.start[item]
            move = covariance @ (wanted - products @ start) / model.noise
            theta[item] = new = start + move
            variance = np.diag(covariance)
            own[item] = variance.sum()
            total += variance + np.square(move)
            square += new @ products @ new + np.sum(products * covariance) - 2 * wanted @ new
        # The same of the other items, whose moves are X `more`.
        gram, others, c = self.rows.gram, self.rows.n_others, len(self.pull)
        rest = self._content()
        more = -rest @ self.shared
        more[-c:] += self.pull
        more = more @ common / model.noise
        rest += more
        summed = gram @ rest
        total += others * np.diag(common) + np.sum(more * (gram @ more), axis=0)
        square += np.sum(self.shared * (rest.T @ summed + others * common))
        square -= 2 * np.sum(self.pull * summed[-c:])
        noise, spread = max(float(square) / self.count, LEAST), total / (k + others)
        spread[1:] = model.spread[1:] * np.mean(spread[1:] / np.maximum(model.spread[1:], LEAST**2))
        own_rest = float(np.trace(common))
        return replace(
            model, theta=theta, rest=rest, own=own, own_rest=own_rest, spread=spread, noise=noise
        )


@dataclass(frozen=True, eq=False)
class Trends:
    """What the queries' own weights say of a trend, the items' loadings being known.

    The prior's factors are the loadings (r) times `turn` (r, r), but for their unit. `centre` (t,)
    and `covariance` (t, t) are those of theta over all n items; `others` (q, r) are what cokriging
    says of each query from the others' coordinates. `variance` is the prior's.
    """

    model: FactorModel
    rows: Rows
    variance: float
    turn: FloatArray
    centre: FloatArray
    covariance: FloatArray
    others: FloatArray | None = None

    def coordinates(self) -> FloatArray:
        """Of every query in the space of the prior's factors: (q, r)."""
        found = [*map(self.model.posterior, self.rows), *self.model.posteriors_of_all(self.rows)]
        return np.stack([mean[len(self.model.weights) :] for mean, _ in found]) @ self.turn

    def of(self, columns: BoolArray) -> Trend:
        """The trend of these columns (g,), by expectation maximisation of its weights alone."""
        g, used, size = len(columns), np.flatnonzero(columns), self.rows.size[0]
        f, rows = len(used), self.rows
        # Slopes are at first probably small, as where no other query is known.
        unit = self.variance / size**2 / SLOPE
        flat = unit * np.eye(f - 1)  # their covariance
        model = replace(self.model, weights=np.zeros(f), precision=_of_slopes(np.linalg.inv(flat)))
        bases, q = [self._basis(number)[:, used] for number in range(len(rows))], len(rows)
        sparse = [(row, self._known(row) @ basis) for row, basis in zip(rows, bases, strict=False)]
        every = bases[len(sparse) :]
        for _ in range(ITERATIONS):
            found = [model.posterior(*each) for each in sparse]
            found += model.posteriors_of_all(rows, every)
            weights = np.stack([each[:f] for each, _ in found])
            about = np.cov(weights.T, bias=True) + sum(c[:f, :f] for _, c in found) / q
            spread = (q * about[1:, 1:] + PRIOR_QUERIES * flat) / (q + PRIOR_QUERIES)
            expected = np.append(0.0, weights.mean(axis=0)[1:])
            model = replace(model, weights=expected, precision=_of_slopes(np.linalg.inv(spread)))
        # In the units of the scores and of standardised columns.
        units = np.ones(g)
        units[: len(rows.size)] = [1, *rows.size[1:]]
        units = size / units[used]
        trend = Trend(columns, np.zeros(g), np.zeros((g, g)))
        trend.mean[used] = model.weights * units
        trend.precision[np.ix_(used, used)] = model.precision / units / units[:, None]
        return trend

    def _known(self, row: Row) -> FloatArray:
        """[1, cheap, score, theta] of a query's items: (b, g + 1 + t)."""
        return np.column_stack([row.basis, row.scores, self.model.theta[row.items]])

    def _basis(self, number: int) -> FloatArray:
        """What makes a query's columns [1, retrievers, cokriging, mean] of [1, cheap, score,
        theta], the last two with mean 0 and deviation 1 over all items, or 0 where all are equal.
        """
        g, t = len(self.rows.size), len(self.centre)
        weights = [np.eye(t)[0]]
        if self.others is not None:
            weights.insert(0, np.append(0.0, self.turn @ self.others[number]))
        basis = np.eye(g + 1 + t, g + len(weights))
        basis[:, g:] = 0
        for column, own in enumerate(weights, g):
            mean, size = own @ self.centre, np.sqrt(own @ self.covariance @ own)
            if size > 1e-6 * abs(mean):
                basis[0, column], basis[g + 1 :, column] = -mean / size, own / size
        return basis


def _of_slopes(precision: FloatArray) -> FloatArray:
    """With that of the intercept, of which nothing is known: (f - 1, f - 1) -> (f, f)."""
    return np.pad(precision, ((1, 0), (1, 0)))


def _prior(model: FactorModel, rows: Rows, query_vectors: FloatArray | None, lead: int) -> Prior:
    """In the units of the scores, for all items, the strongest factor first."""
    n, size, seen = len(rows.vectors), rows.size[0], rows.seen
    mean, factor, moments = np.empty(n), scratch((n, model.theta.shape[1] - 1)), Moments()
    coefficients = model.rest if rows.n_dense else _padded(model.content, rows)
    for part, known in rows.blocks():
        theta, (first, last) = known @ coefficients, np.searchsorted(seen, (part.start, part.stop))
        theta[seen[first:last] - part.start] = model.theta[first:last]
        moments.add(theta.T[None])
        mean[part], factor[part] = size * theta[:, 0], size * theta[:, 1:]
    centre, covariance = moments.mean[0, :, 0], moments.products[0] / n
    products = size**2 * (moments.products[0] + n * np.outer(centre, centre))[1:, 1:]
    turn = np.linalg.eigh(products)[1][:, ::-1]
    for start in range(0, n, BLOCK):
        factor[start : start + BLOCK] = factor[start : start + BLOCK] @ turn.astype(np.float32)
    own = (model.own.sum() + rows.n_others * model.own_rest) / (len(seen) + rows.n_others)
    variance = float(np.trace(products) / n + size**2 * (model.noise + own))
    trends, cokriging = Trends(model, rows, variance, turn, centre, covariance), None
    if query_vectors is not None:
        turned = turn.T @ products @ turn
        cokriging, others = Cokriging.fit(query_vectors, trends.coordinates(), turned)
        trends = replace(trends, others=others)
    columns = trend_columns(len(rows.size) - 1, lead, cokriging is not None)
    return Prior(
        factor=factor,
        mean=(mean - mean.mean()).astype(np.float32),
        trends=[trends.of(kept) for kept in columns],
        variance=variance,
        cokriging=cokriging,
    )
