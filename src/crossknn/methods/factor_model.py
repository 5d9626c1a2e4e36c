"""Kriging's prior from sparse exact scores: a factor model with missing entries.

    score of item i = w0 + w . cheap scores of i + c mean_i + z . loadings_i + noise

Of a query, w0 is free, w and c are Gaussian and z ~ N(0, I). Of an item, theta_i = [mean_i,
loadings_i] is linear in its vector, but for a Gaussian rest of its own.

Searches leave exact scores of few items behind, those that looked good, so averages of them are
too high. The model is fitted by likelihood, where what is unseen may be ignored if what decided on
it is in the model (Rubin 1976, missing at random): a search chooses by the retriever's scores,
which are columns here, and by the scores it has revealed, which are entries. So the whole log of a
query should be there, with the cheap scores that it was searched by.

Axes: q queries, e entries, b scored items of a query, a dense rows, n items, d dimensions, s
retriever stages, g = 1 + s columns [1, cheap], f = g + 1 weights, r factors, t = 1 + r.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import NamedTuple, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.methods.posterior import Trend, lengths
from crossknn.methods.prior import (
    PRIOR_QUERIES,
    RANK,
    SLOPE,
    Cokriging,
    Prior,
    standardised,
    trend_columns,
)
from crossknn.scores.store import SparseScores
from crossknn.types import BoolArray, FloatArray, IntArray

SWEEPS = 6
"""Over the queries, at most: for the content, and then for the items."""

HELD_OUT = 0.1
"""Share of the entries on which the number of sweeps is chosen."""

FEW = (2, 0)
"""Sweeps where no entry can be held out."""

GAIN = 0.999
"""A sweep is worth another if it leaves at most so much of the error."""

LEAST = 1e-9
"""The least variance, in scores of variance about 1."""

Dense: TypeAlias = tuple[FloatArray, Sequence[FloatArray], FloatArray | None]
"""Exact scores (a, n) of queries with every item, each retriever's cheap ones, (a, n), and vectors
(a, d) of the queries."""

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
) -> Prior:
    """A prior as `fit_dense` makes it, from sparse `scores`, by expectation maximisation.

    Sweeps over the queries (Dempster et al. 1977) fit the content first, then the items' own part,
    as long as a tenth of the entries, held out, is predicted better; then again with all entries.

    Args:
        cheap: scores of each retriever at the entries, (e,) each, in their order, standardised over
            all items of their query.
        vectors: (n, d) of the items by a dual encoder, of any length.
        query_vectors: (q, d') of the queries that have scores, for cokriging.
        lead: Which of the retrievers is in the trend of few columns.
        anchors: more queries, with all items scored.

    Raises:
        InputError: fewer than two queries have scores.
    """
    seen = np.arange(len(vectors)) if anchors is not None else np.unique(scores.item)
    rows = _rows(scores, cheap, anchors, seen)
    if len(rows) < 2:
        raise InputError(
            "kriging cannot be fitted to the scores of a single query: search more queries, or use "
            "kriging(use_anchors=false)"
        )
    unit = _directions(vectors[seen])
    texts = [scores.queries[query] for query in scores.scored_queries.tolist()]
    fitted, held = rows.split(texts)
    counts: tuple[int, ...] = FEW
    if any(len(row.scores) for row in held):
        _, counts = _fit(fitted, unit, rank, (SWEEPS, SWEEPS), held)
    model, _ = _fit(rows, unit, rank, counts)
    if query_vectors is not None and anchors is not None and anchors[2] is not None:
        query_vectors = np.concatenate([query_vectors, anchors[2]])
    return _prior(model, rows, seen, vectors, query_vectors, lead)


def _fit(
    rows: Rows,
    unit: FloatArray,
    rank: int,
    counts: tuple[int, ...],
    held: Sequence[Row] = (),
) -> tuple[FactorModel, tuple[int, ...]]:
    """The model after so many sweeps of each kind, or those that predict `held` best."""
    model, used = _start(rows, unit), []
    for own_loadings, most in zip((False, True), counts, strict=True):
        if own_loadings:
            model = _with_own_loadings(model, min(rank, len(rows)))
        least, best, count = np.inf, model, 0
        for sweep in range(most + bool(held)):
            step = Sweep(model, rows, unit, own_loadings, held)
            if held and not step.error < GAIN * least:
                break
            least, best, count = step.error, model, sweep
            if sweep < most:
                model = step.model()
        model = best if held else model
        used.append(count)
    return model, tuple(used)


class Row(NamedTuple):
    """A query's scored items: positions (b,), or all; `basis` (b, g), `scores` (b,)."""

    items: IntArray | slice
    basis: FloatArray
    scores: FloatArray


@dataclass(frozen=True, eq=False)
class Rows:
    """Queries some of whose items are scored, as positions (b,) and exact and cheap scores (b, g),
    then `dense` ones with all. A row has scores less `centre` and over `size`, both (g,)."""

    sparse: Sequence[tuple[IntArray, FloatArray]]
    dense: Dense
    centre: FloatArray
    size: FloatArray

    def __len__(self) -> int:
        return len(self.sparse) + len(self.dense[0])

    def __iter__(self) -> Iterator[Row]:
        for items, values in self.sparse:
            yield self.row(items, values)
        for values in _dense_values(self.dense):
            yield self.row(slice(None), values)

    def row(self, items: IntArray | slice, values: FloatArray) -> Row:
        values = (values.astype(np.float64) - self.centre) / self.size
        return Row(items, np.column_stack([np.ones(len(values)), values[:, 1:]]), values[:, 0])

    def split(self, texts: Sequence[str]) -> tuple[Rows, list[Row]]:
        """The rows without a random share of each sparse query's entries, and these; drawn by the
        query's text."""
        fitted, held = [], []
        for text, (items, values) in zip(texts, self.sparse, strict=True):
            rng = np.random.default_rng([0, zlib.crc32(text.encode("utf-8", "surrogatepass"))])
            out = rng.random(len(items)) < HELD_OUT
            out[0] = False  # no query without an entry
            fitted.append((items[~out], values[~out]))
            held.append(self.row(items[out], values[out]))
        return replace(self, sparse=fitted), held


def _dense_values(dense: Dense) -> Iterator[FloatArray]:
    exact, cheap, _ = dense
    for row, scores in enumerate(exact):
        yield np.column_stack([scores, *(stage[row] for stage in cheap)])


def _rows(
    scores: SparseScores, cheap: Sequence[FloatArray], anchors: Dense | None, seen: IntArray
) -> Rows:
    """All queries with a score, in units of the standard deviations within queries."""
    values, items = np.column_stack([scores.score, *cheap]), np.searchsorted(seen, scores.item)
    begin = np.searchsorted(scores.query, scores.scored_queries)[1:]
    sparse = np.split(values, begin) if len(scores) else []
    dense, width = anchors or (np.zeros((0, len(seen)), np.float32), [], None), values.shape[1]
    total, within, count = np.zeros(width), np.zeros(width), 0
    for part in (*sparse, *_dense_values(dense)):
        exact = part.astype(np.float64)
        total += exact.sum(axis=0)
        within += np.square(exact - exact.mean(axis=0)).sum(axis=0)
        count += len(exact)
    centre, size = total / max(count, 1), np.sqrt(within / max(count, 1))
    size = np.where(size <= 1e-6 * np.abs(centre), 1.0, size)
    return Rows([*zip(np.split(items, begin), sparse, strict=False)], dense, centre, size)


def _directions(vectors: FloatArray) -> FloatArray:
    """Vectors (n, d) brought to unit length; 0 stays 0."""
    exact = vectors.astype(np.float64)
    return exact / lengths(exact)[:, None]


@dataclass(frozen=True, slots=True)
class FactorModel:
    """`theta` (n, t): an item's mean and loadings; `content` (d, t): what its vector says of them;
    `own` (n,): how uncertain the rest is, as a variance of its scores; `spread` (t,): the prior
    variance of that rest; `weights` (f,) and `precision` (f, f) of queries; `noise`, a variance."""

    theta: FloatArray
    content: FloatArray
    own: FloatArray
    spread: FloatArray
    weights: FloatArray
    precision: FloatArray
    noise: float

    def posterior(
        self, row: Row, products: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """E-step: mean (f + r,) and covariance (f + r, f + r) of a query's weights and factors.

        With K = L L' + D the scores' covariance (loadings L (b, r), noise D) and H the basis, the
        weights are those of generalised least squares with their prior (Rasmussen and Williams
        2006, 2.42), and z given them has the mean L' K^-1 (y - H w) and the covariance
        I - L' K^-1 L = (I + L' D^-1 L)^-1, the smaller inverse of which is computed. `products` is
        L' D^-1 L where all items are scored.
        """
        theta, noise = self.theta[row.items], self.noise + self.own[row.items]
        basis, loadings = np.column_stack([row.basis, theta[:, 0]]), theta[:, 1:]
        f, r = basis.shape[1], loadings.shape[1]
        both = np.column_stack([basis, row.scores - basis @ self.weights])
        spread: FloatArray
        if products is None and len(both) <= r:
            inverse = np.linalg.inv(loadings @ loadings.T + np.diag(noise))
            whole = inverse @ both
            mixed, own = loadings.T @ whole, both.T @ whole  # L' K^-1 [H y], [H y]' K^-1 [H y]
            spread = np.eye(r) - loadings.T @ inverse @ loadings
        else:
            scaled = loadings / noise[:, None]
            known = loadings.T @ scaled if products is None else products
            spread, cross = np.linalg.inv(np.eye(r) + known), scaled.T @ both
            mixed = spread @ cross
            own = both.T @ (both / noise[:, None]) - cross.T @ mixed
        first = np.linalg.pinv(self.precision + own[:f, :f], rcond=1e-12, hermitian=True)
        cross = -mixed[:, :f] @ first
        joint = np.block([[first, cross.T], [cross, spread - cross @ mixed[:, :f].T]])
        moved = first @ own[:f, f]
        return np.append(self.weights + moved, mixed[:, f] - mixed[:, :f] @ moved), joint


def _start(rows: Rows, unit: FloatArray) -> FactorModel:
    """Pooled weights of the cheap scores; half of the rest is content's, a quarter the items'."""
    g, d = len(rows.size), unit.shape[1]
    products, count = np.zeros((g, g)), 0
    for row in rows:
        values = np.column_stack([row.scores, row.basis[:, 1:]])
        values -= values.mean(axis=0)
        products += values.T @ values
        count += len(values)
    weights = np.linalg.lstsq(products[1:, 1:], products[1:, 0], rcond=1e-9)[0]
    left = max(float(products[0, 0] - weights @ products[1:, 0]) / count, LEAST)
    content = np.hstack([np.zeros((d, 1)), np.sqrt(left / 2) * np.eye(d)])
    return FactorModel(
        theta=unit @ content,
        content=content,
        own=np.full(len(unit), left / 4),
        spread=np.append(left / 4, np.zeros(d)),
        weights=np.array([0.0, *weights, 1.0]),
        precision=np.diag([0.0, *np.full(g - 1, 4 / left), 4.0]),
        noise=left / 4,
    )


def _with_own_loadings(model: FactorModel, rank: int) -> FactorModel:
    """The model of `rank` factors, in each of which items have something of their own: all of it
    half of what was noise. Where content has fewer directions, the others are items' alone."""
    loadings = model.theta[:, 1:]
    values, vectors = np.linalg.eigh(loadings.T @ loadings / len(loadings))
    kept = np.argsort(-values, kind="stable")[:rank]
    more = rank - len(kept)
    turn = np.zeros((len(values) + 1, len(kept) + 1))
    turn[0, 0], turn[1:, 1:] = 1, vectors[:, kept]
    strength = np.maximum(np.append(values[kept], np.full(more, values.mean())), LEAST)
    spread = strength * (model.noise / 2) / strength.sum()
    extra = np.random.default_rng(0).normal(size=(len(loadings), more))
    return replace(
        model,
        theta=np.hstack([model.theta @ turn, extra * np.sqrt(spread[len(kept) :])]),
        content=np.hstack([model.content @ turn, np.zeros((len(model.content), more))]),
        own=model.own + model.noise / 2,
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
        unit: FloatArray,
        own_loadings: bool,
        held: Sequence[Row] = (),
    ) -> None:
        self.before, self.rows, self.own_loadings = model, rows, own_loadings
        self.start = unit @ model.content  # what the items' vectors say of theta
        (n, t), g = model.theta.shape, len(rows.size)
        self.first, self.second = np.zeros(g + t), np.zeros((g + t, g + t))
        self.precise, self.wanted = np.zeros(n), np.zeros((n, t) if own_loadings else (n, 1))
        self.queries: list[FloatArray] = []  # E[v v'] of each sparse query
        self.shared = np.zeros((t, t))  # their sum over the dense ones, of every item
        self.square, self.count, self.error = 0.0, 0, 0.0
        theta, noise = model.theta, model.noise + model.own
        if len(rows.dense[0]):  # of all items: loadings over noise (r, r), and theta (t, t)
            self.all = theta[:, 1:].T @ (theta[:, 1:] / noise[:, None]), theta.T @ theta
        for number, (row, out) in enumerate(zip_longest(rows, held)):
            mean = self._add(row, number >= len(rows.sparse))
            if out is not None:
                found = np.hstack([out.basis, model.theta[out.items]]) @ mean
                self.error += float(np.square(out.scores - found).sum())

    def _add(self, row: Row, dense: bool) -> FloatArray:
        model, g = self.before, len(self.rows.size)
        noisy, plain = self.all if dense else (None, None)
        mean, covariance = model.posterior(row, noisy)
        squares = np.outer(mean, mean) + covariance  # E[u u']
        self.first += mean
        self.second += squares
        self.count += len(row.scores)
        left, cov = row.scores - row.basis @ mean[:g], covariance[:g, :g]
        # E[(y - basis w)^2], summed over the items, and E[v (y - basis w)] of each: (b, t).
        self.square += float(left @ left + np.sum(cov * (row.basis.T @ row.basis)))
        wanted = np.outer(left, mean[g:]) - row.basis @ covariance[:g, g:]
        squares = squares[g:, g:]
        if self.own_loadings:
            self.wanted[row.items] += wanted
            if dense:
                self.shared += squares
            else:
                self.queries.append(squares.astype(np.float32))
            return mean
        # An offset o adds c o to the scores: E[c^2] o = E[c (y - basis w - v . start)].
        theta = model.theta[row.items]
        self.precise[row.items] += squares[0, 0]
        self.wanted[row.items, 0] += wanted[:, 0] - self.start[row.items] @ squares[0]
        explained = np.sum(squares * (theta.T @ theta if plain is None else plain))
        explained += squares[0, 0] * model.own[row.items].sum() - 2 * np.sum(wanted * theta)
        self.square += float(explained)
        return mean

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
            content=model.content @ turn,
            spread=model.spread @ np.square(turn),
            weights=np.append(0.0, mean[1:f]),
            precision=precision,
        )

    def _with_offsets(self) -> FactorModel:
        model = self.before
        own = 1 / (1 / max(model.spread[0], LEAST) + self.precise / model.noise)
        offset = own * self.wanted[:, 0] / model.noise
        theta, spread = self.start.copy(), np.zeros(len(model.spread))
        theta[:, 0] += offset
        spread[0] = float((np.square(offset) + own).mean())
        noise = max(self.square / self.count, LEAST)
        return replace(model, theta=theta, own=own, spread=spread, noise=noise)

    def _with_loadings(self) -> FactorModel:
        """theta = start + (S^-1 + P / noise)^-1 (wanted - P start) / noise; P is the sum of E[v v']
        over an item's queries, S the prior variance of what items have of their own."""
        model, (n, t), square = self.before, self.start.shape, self.square
        theta, own, total = np.empty((n, t)), np.empty(n), np.zeros(t)
        prior = np.diag(1 / np.maximum(model.spread, LEAST**2))
        common = np.linalg.inv(prior + self.shared / model.noise)
        scorers: list[list[int]] = [[] for _ in range(n)]
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
        noise, spread = max(float(square) / self.count, LEAST), total / n
        spread[1:] = model.spread[1:] * np.mean(spread[1:] / np.maximum(model.spread[1:], LEAST**2))
        return replace(model, theta=theta, own=own, spread=spread, noise=noise)


@dataclass(frozen=True, eq=False)
class Trends:
    """What the queries' own weights say of a trend, the items' loadings being known.

    `prior` has these, turned by `turn` (r, r); `others` (q, r) are what cokriging says of each
    query from the others' coordinates.
    """

    model: FactorModel
    rows: Rows
    seen: IntArray
    prior: Prior
    turn: FloatArray
    others: FloatArray | None = None

    def coordinates(self) -> FloatArray:
        """Of every query in the space of the prior's factors: (q, r)."""
        f = len(self.model.weights)
        products = self._products(self.model)
        found = [self.model.posterior(row, products(row))[0][f:] for row in self.rows]
        return np.stack(found) @ self.turn

    def of(self, columns: BoolArray) -> Trend:
        """The trend of these columns (g,), by expectation maximisation of its weights alone."""
        g, used, size = len(columns), np.flatnonzero(columns), self.rows.size[0]
        f = len(used)
        # Slopes are at first probably small, as where no other query is known.
        unit = self.prior.variance / size**2 / SLOPE
        flat = unit * np.eye(f - 1)  # their covariance
        mean = standardised(self.prior.mean)[self.seen]
        theta = np.column_stack([mean, self.model.theta[:, 1:]])
        model = replace(
            self.model,
            theta=theta,
            weights=np.zeros(f),
            precision=_of_slopes(np.linalg.inv(flat)),
        )
        products = self._products(model)
        rows = [row._replace(basis=basis[:, used[:-1]]) for row, basis in self._bases()]
        q = len(rows)
        for _ in range(ITERATIONS):
            found = [model.posterior(row, products(row)) for row in rows]
            weights = np.stack([each[:f] for each, _ in found])
            about = np.cov(weights.T, bias=True) + sum(c[:f, :f] for _, c in found) / q
            spread = (q * about[1:, 1:] + PRIOR_QUERIES * flat) / (q + PRIOR_QUERIES)
            expected = np.append(0.0, weights.mean(axis=0)[1:])
            model = replace(model, weights=expected, precision=_of_slopes(np.linalg.inv(spread)))
        # In the units of the scores and of standardised columns.
        units = np.ones(g)
        units[: len(self.rows.size)] = [1, *self.rows.size[1:]]
        units = size / units[used]
        trend = Trend(columns, np.zeros(g), np.zeros((g, g)))
        trend.mean[used] = model.weights * units
        trend.precision[np.ix_(used, used)] = model.precision / units / units[:, None]
        return trend

    def _bases(self) -> Iterator[tuple[Row, FloatArray]]:
        """Every row, and its columns 1, the retrievers and cokriging."""
        for number, row in enumerate(self.rows):
            basis = row.basis
            if self.others is not None:
                likely = standardised(self.prior.factor @ self.others[number].astype(np.float32))
                basis = np.column_stack([basis, likely[self.seen[row.items]]])
            yield row, basis

    def _products(self, model: FactorModel) -> Callable[[Row], FloatArray | None]:
        """L' D^-1 L of rows with all items, which is the same for all of them."""
        if not len(self.rows.dense[0]):
            return lambda row: None
        loadings = model.theta[:, 1:]
        known = loadings.T @ (loadings / (model.noise + model.own)[:, None])
        return lambda row: known if isinstance(row.items, slice) else None


def _of_slopes(precision: FloatArray) -> FloatArray:
    """With that of the intercept, of which nothing is known: (f - 1, f - 1) -> (f, f)."""
    return np.pad(precision, ((1, 0), (1, 0)))


def _prior(
    model: FactorModel,
    rows: Rows,
    seen: IntArray,
    vectors: FloatArray,
    query_vectors: FloatArray | None,
    lead: int,
) -> Prior:
    """In the units of the scores, for all items, the strongest factor first."""
    n, block = len(vectors), 8_192
    theta = np.empty((n, model.theta.shape[1]), np.float32)
    for part in (slice(start, start + block) for start in range(0, n, block)):
        theta[part] = _directions(vectors[part]) @ model.content
    theta[seen] = model.theta
    size = rows.size[0]
    theta *= np.float32(size)
    loadings = theta[:, 1:]
    products = (loadings.T @ loadings).astype(np.float64)
    turn = np.linalg.eigh(products)[1][:, ::-1]
    left = np.trace(products) / n + size**2 * (model.noise + float(model.own.mean()))
    prior = Prior(
        factor=loadings @ turn.astype(np.float32),
        mean=theta[:, 0] - theta[:, 0].mean(),
        trends=[],
        variance=float(left),
    )
    trends, cokriging = Trends(model, rows, seen, prior, turn), None
    if query_vectors is not None:
        products = turn.T @ products @ turn
        cokriging, others = Cokriging.fit(query_vectors, trends.coordinates(), products)
        trends = replace(trends, others=others)
    columns = trend_columns(len(rows.size) - 1, lead, cokriging is not None)
    return replace(prior, trends=[trends.of(kept) for kept in columns], cokriging=cokriging)
