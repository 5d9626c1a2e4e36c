"""Fit kriging's prior to the scores of past searches: a factor model with missing scores.

    y_qi = w0_q + w_q . x_qi + c_q mean_i + z_q . loadings_i + noise
    theta_i = [mean_i, loadings_i] = content' direction_i + own_i

y_qi is a score and x_qi are the retrievers' scores of the pair. For a query, w0 is free, w and c
are Gaussian and z ~ N(0, I). For an item, theta is linear in its vector's direction, plus a
Gaussian part of its own. Fitted by EM (Dempster et al. 1977): `e_step`, `m_step`.

Searches leave scores of few items, those that looked good, so averages of them are too high. A
maximum likelihood fit may ignore the missing scores if the model includes everything that decided
which are missing (Rubin 1976, missing at random). A search chooses items by the retrievers' scores,
which are columns here, and by earlier exact scores, which are fitted. So all scores of a query
should be included.

Axes: q queries, e scores, b scored items of a query, k items with scores, n items, d dimensions,
s retrievers, g = 1 + s columns [1, x], f = g + 1 weights [w0, w, c], r factors, t = 1 + r.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from crossknn.errors import InputError
from crossknn.files import scratch
from crossknn.fitting.dense_prior import BLOCK, PRIOR_QUERIES, RANK, Moments, fit_cokriging
from crossknn.fitting.observations import Observations, Query
from crossknn.linalg import directions_of
from crossknn.methods.posterior import Trend
from crossknn.methods.prior import SLOPE, Prior, level_trend, trend_columns
from crossknn.scores.sparse import SparseScores
from crossknn.types import BoolArray, FloatArray, Progress

STEPS = 6
"""Maximum EM steps for the content (predicted by vectors), and then for the items' own loadings."""

STEPS_UNTESTED = (2, 0)
"""Maximum EM steps if no score can be held out."""

GAIN = 0.999
"""EM continues while each step reduces the held-out error below this share of its last value."""

SMALLEST = 1e-9
"""Minimum variance, in scores of variance about 1."""

TREND_STEPS = 3
"""EM steps for the weights of a trend, with fixed item loadings."""


def fit_sparse(
    scores: SparseScores,
    cheap: Sequence[FloatArray],
    vectors: FloatArray,
    query_vectors: FloatArray | None = None,
    *,
    lead: int = 0,
    rank: int = RANK,
    progress: Progress | None = None,
) -> Prior:
    """Fit a prior like that of `fit_dense` to exact scores of e pairs, each retriever's scores (e,)
    of them, standardised over all items of a query, item vectors (n, d) and the vectors (q, d') of
    the queries that have scores.

    The content is fitted first, then the items' own loadings, as long as predictions of a held-out
    tenth of the scores improve; then the same number of steps is repeated with all scores.
    """
    data = Observations.of(scores, cheap, vectors)
    if len(data.queries) < 2:
        raise InputError(
            "kriging cannot be fitted to the scores of a single query: search more queries, or use "
            "kriging(use_anchors=false)"
        )
    texts = [scores.queries[query] for query in scores.scored_queries.tolist()]
    fitted, held = data.split(texts)
    steps: tuple[int, ...] = STEPS_UNTESTED
    if any(len(query.scores) for query in held):
        _, steps = _fit(fitted, rank, (STEPS, STEPS), held, progress)
    model, _ = _fit(data, rank, steps, progress=progress)
    if progress:
        progress(4 * STEPS, 4 * STEPS)
    return _prior_of(model, data, vectors, query_vectors, lead)


def _fit(
    data: Observations,
    rank: int,
    steps: tuple[int, ...],
    held: Sequence[Query] = (),
    progress: Progress | None = None,
) -> tuple[FactorModel, tuple[int, ...]]:
    """Run the given numbers of EM steps for the content and then for the items' own loadings, or
    only as many as predict the `held` scores best. Return the model and the numbers of steps."""
    model, used = _initial(data), []
    for own_loadings, most in zip((False, True), steps, strict=True):
        if own_loadings:
            model = _with_own_loadings(model, data, min(rank, len(data.queries)))
        lowest, best, count = np.inf, model, 0
        for step in range(most + bool(held)):
            statistics = e_step(model, data, own_loadings, held)
            if held and not statistics.error < GAIN * lowest:
                break
            lowest, best, count = statistics.error, model, step
            if step < most:
                model = m_step(model, data, statistics, own_loadings)
            if progress:
                progress(step + 1 + 2 * STEPS * (not held) + STEPS * own_loadings, 4 * STEPS)
        model = best if held else model
        used.append(count)
    return model, tuple(used)


@dataclass(frozen=True, slots=True)
class FactorModel:
    """The model. `theta` (k, t): mean and loadings of the items with scores, of which `content`
    (d, t) predicts a part from their directions. `own_prior` (t,): prior variance of the items' own
    part of theta; `own_variance` (k,): variance that its uncertainty adds to an item's scores.
    `weights` (f,) and `precision` (f, f): the prior of queries' weights. `noise`: a variance."""

    theta: FloatArray
    content: FloatArray
    own_prior: FloatArray
    own_variance: FloatArray
    weights: FloatArray
    precision: FloatArray
    noise: float

    def posterior(
        self, query: Query, basis: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Compute mean (f + r,) and covariance (f + r, f + r) of a query's weights and factors.

        With K = L L' + D the scores' covariance (loadings L (b, r), noise D) and H the basis, the
        weights are those of generalised least squares with their prior (Rasmussen and Williams
        2006, 2.42), and z given them has the mean L' K^-1 (y - H w) and the covariance
        I - L' K^-1 L = (I + L' D^-1 L)^-1, of which the smaller matrix is inverted. H is
        [1, x, mean] of the items, or the `basis` (b, f).
        """
        theta, noise = self.theta[query.items], self.noise + self.own_variance[query.items]
        basis = np.column_stack([query.basis, theta[:, 0]]) if basis is None else basis
        loadings, r, f = theta[:, 1:], theta.shape[1] - 1, len(self.weights)
        both = np.column_stack([basis, query.scores - basis @ self.weights])  # [H, y - H w]
        spread: FloatArray  # the covariance of z, the weights being known
        if len(both) <= r:
            inverse = np.linalg.inv(loadings @ loadings.T + np.diag(noise))  # K^-1
            whole = inverse @ both
            mixed, products = loadings.T @ whole, both.T @ whole
            spread = np.eye(r) - loadings.T @ inverse @ loadings
        else:
            scaled = loadings / noise[:, None]  # D^-1 L
            spread, cross = np.linalg.inv(np.eye(r) + loadings.T @ scaled), scaled.T @ both
            mixed = spread @ cross
            products = both.T @ (both / noise[:, None]) - cross.T @ mixed
        # mixed = L' K^-1 [H, y - H w], products = [H, y - H w]' K^-1 [H, y - H w]
        covariance = np.linalg.pinv(self.precision + products[:f, :f], rcond=1e-12, hermitian=True)
        cross = -mixed[:, :f] @ covariance
        joint = np.block([[covariance, cross.T], [cross, spread - cross @ mixed[:, :f].T]])
        moved = covariance @ products[:f, f]
        return np.append(self.weights + moved, mixed[:, f] - mixed[:, :f] @ moved), joint


def _initial(data: Observations) -> FactorModel:
    """Fit weights of the retrievers' scores to all queries together. Half of the remaining variance
    is taken for content, a quarter for the items' own part and a quarter for noise."""
    g, d = len(data.size), data.directions.shape[1]
    products, count = np.zeros((g, g)), 0
    for query in data.queries:
        values = np.column_stack([query.scores, query.basis[:, 1:]])
        values -= values.mean(axis=0)
        products += values.T @ values
        count += len(values)
    weights = np.linalg.lstsq(products[1:, 1:], products[1:, 0], rcond=1e-9)[0]
    left = max(float(products[0, 0] - weights @ products[1:, 0]) / count, SMALLEST)
    content = np.hstack([np.zeros((d, 1)), np.sqrt(left / 2) * np.eye(d)])
    return FactorModel(
        theta=data.directions @ content,
        content=content,
        own_prior=np.append(left / 4, np.zeros(d)),
        own_variance=np.full(len(data.seen), left / 4),
        weights=np.array([0.0, *weights, 1.0]),
        precision=np.diag([0.0, *np.full(g - 1, 4 / left), 4.0]),
        noise=left / 4,
    )


def _with_own_loadings(model: FactorModel, data: Observations, rank: int) -> FactorModel:
    """Add to at most `rank` factors a part of each item's own, which takes half of the noise."""
    values, vectors = np.linalg.eigh(model.theta[:, 1:].T @ model.theta[:, 1:] / len(data.seen))
    kept = np.argsort(-values, kind="stable")[:rank]
    turn = np.zeros((len(values) + 1, len(kept) + 1))
    turn[0, 0], turn[1:, 1:] = 1, vectors[:, kept]
    strength = np.maximum(values[kept], SMALLEST)
    own_prior = strength * (model.noise / 2) / strength.sum()
    return replace(
        model,
        theta=model.theta @ turn,
        content=model.content @ turn,
        own_prior=np.append(model.own_prior[0], own_prior),
        own_variance=model.own_variance + model.noise / 2,
        noise=model.noise / 2,
    )


@dataclass(eq=False)
class SufficientStatistics:
    """Sums over the queries' posteriors that the M-step needs; u = [w0, w, c, z] are a query's
    weights and factors, and v = [c, z] is the part that multiplies an item's theta.

    `first` and `second` are the sums of E[u] and E[u u'] over the queries; `pull` (k, t) those of
    E[v (y - basis w)] over an item's queries, and `square` that of E[(y - basis w)^2] over all
    `count` scores. Without own loadings, `precision` (k,) has the sums of E[c^2], `pull` (k, 1)
    those of E[c (y - basis w - v . content' direction)], and `square` uses the whole model. With
    them, `products` has each query's E[v v'] (t, t). `error` is the squared error on the held-out
    scores.
    """

    first: FloatArray
    second: FloatArray
    pull: FloatArray
    precision: FloatArray
    products: list[FloatArray] = field(default_factory=list)
    square: float = 0.0
    count: int = 0
    error: float = 0.0


def e_step(
    model: FactorModel, data: Observations, own_loadings: bool, held: Sequence[Query] = ()
) -> SufficientStatistics:
    """Compute the sums. Items have loadings of their own (`own_loadings`), or only an offset."""
    (k, t), g, start = model.theta.shape, len(data.size), data.directions @ model.content
    sums = SufficientStatistics(
        np.zeros(g + t),
        np.zeros((g + t, g + t)),
        np.zeros((k, t if own_loadings else 1)),
        np.zeros(k),
    )
    for number, query in enumerate(data.queries):
        mean, covariance = model.posterior(query)
        second = np.outer(mean, mean) + covariance
        sums.first += mean
        sums.second += second
        sums.count += len(query.scores)
        if held:
            out = held[number]
            predicted = np.hstack([out.basis, model.theta[out.items]]) @ mean
            sums.error += float(np.square(out.scores - predicted).sum())
        left, cov = query.scores - query.basis @ mean[:g], covariance[:g, :g]
        sums.square += float(left @ left + np.sum(cov * (query.basis.T @ query.basis)))
        pull = np.outer(left, mean[g:]) - query.basis @ covariance[:g, g:]  # E[v (y - basis w)]
        products = second[g:, g:]
        if own_loadings:
            sums.pull[query.items] += pull
            sums.products.append(products.astype(np.float32))
            continue
        theta = model.theta[query.items]
        sums.precision[query.items] += products[0, 0]
        sums.pull[query.items, 0] += pull[:, 0] - start[query.items] @ products[0]
        sums.square += float(np.sum(products * (theta.T @ theta)) - 2 * np.sum(pull * theta))
        sums.square += float(products[0, 0] * model.own_variance[query.items].sum())
    return sums


def m_step(
    model: FactorModel, data: Observations, sums: SufficientStatistics, own_loadings: bool
) -> FactorModel:
    """Maximise the likelihood given the sums. Factors are re-standardised: their mean moves to the
    items' mean, their covariance to the loadings (parameter expansion, Liu et al. 1998)."""
    update = _update_loadings if own_loadings else _update_offsets
    model = update(model, data, sums)
    q, f, t = len(data.queries), len(model.weights), model.theta.shape[1]
    mean = sums.first / q
    about = sums.second / q - np.outer(mean, mean)
    prior = np.linalg.pinv(model.precision[1:, 1:], rcond=1e-12, hermitian=True)
    spread = (q * about[1:f, 1:f] + PRIOR_QUERIES * prior) / (q + PRIOR_QUERIES)
    precision = np.linalg.pinv(spread, rcond=1e-12, hermitian=True)
    turn = np.eye(t)
    turn[1:, 0] = mean[f:]
    turn[1:, 1:] = np.linalg.cholesky((q * about[f:, f:] + np.eye(t - 1)) / (q + 1))
    return replace(
        model,
        theta=model.theta @ turn,
        content=model.content @ turn,
        own_prior=model.own_prior @ np.square(turn),
        weights=np.append(0.0, mean[1:f]),
        precision=np.pad(precision, (1, 0)),  # nothing is known about the intercept
    )


def _update_offsets(
    model: FactorModel, data: Observations, sums: SufficientStatistics
) -> FactorModel:
    """An offset o of an item's mean adds c o to its scores: E[c^2] o = E[c (y - prediction)]."""
    variance = 1 / (1 / max(model.own_prior[0], SMALLEST) + sums.precision / model.noise)
    offset = variance * sums.pull[:, 0] / model.noise
    theta, own_prior = data.directions @ model.content, np.zeros(len(model.own_prior))
    theta[:, 0] += offset
    own_prior[0] = float(np.mean(np.square(offset) + variance))
    noise = max(sums.square / sums.count, SMALLEST)
    return replace(model, theta=theta, own_prior=own_prior, own_variance=variance, noise=noise)


def _update_loadings(
    model: FactorModel, data: Observations, sums: SufficientStatistics
) -> FactorModel:
    """Update theta = start + (S^-1 + P / noise)^-1 (pull - P start) / noise, where P is the sum of
    E[v v'] over an item's queries, and S the prior variance of the items' own part."""
    start, square = data.directions @ model.content, sums.square
    (k, t), prior = start.shape, np.diag(1 / np.maximum(model.own_prior, SMALLEST**2))
    theta, own_variance, total = np.empty((k, t)), np.empty(k), np.zeros(t)
    scorers: list[list[int]] = [[] for _ in range(k)]
    for number, query in enumerate(data.queries):
        for item in query.items.tolist():
            scorers[item].append(number)
    for item, queries in enumerate(scorers):
        products = sum((sums.products[query] for query in queries), np.zeros((t, t)))
        covariance = np.linalg.inv(prior + products / model.noise)
        move = covariance @ (sums.pull[item] - products @ start[item]) / model.noise
        theta[item] = new = start[item] + move
        variance = np.diag(covariance)
        own_variance[item] = variance.sum()
        total += variance + np.square(move)
        square += new @ products @ new + np.sum(products * covariance) - 2 * sums.pull[item] @ new
    noise, own_prior = max(float(square) / sums.count, SMALLEST), total / k
    # The data are too few to estimate each variance: their proportions are kept.
    before = np.maximum(model.own_prior[1:], SMALLEST**2)
    own_prior[1:] = model.own_prior[1:] * np.mean(own_prior[1:] / before)
    return replace(model, theta=theta, own_prior=own_prior, own_variance=own_variance, noise=noise)


def _prior_of(
    model: FactorModel,
    data: Observations,
    vectors: FloatArray,
    query_vectors: FloatArray | None,
    lead: int,
) -> Prior:
    """Convert the model to a prior for all n items, in units of scores, strongest factor first."""
    n, size, f = len(vectors), data.size[0], len(model.weights)
    mean, factor, moments = _of_all_items(model, data, vectors)
    centre, covariance = moments.mean[0, :, 0], moments.products[0] / n
    products = size**2 * (moments.products[0] + n * np.outer(centre, centre))[1:, 1:]
    turn = np.linalg.eigh(products)[1][:, ::-1]
    for start in range(0, n, BLOCK):
        factor[start : start + BLOCK] = factor[start : start + BLOCK] @ turn.astype(np.float32)
    left = model.noise + model.own_variance.mean()
    variance = float(np.trace(products) / n + size**2 * left)
    # Columns of the trends that are linear in theta, by their weights (q, t): the mean score, and
    # cokriging's prediction for each query from the others' coordinates.
    linear, cokriging = [np.tile(np.eye(len(centre))[0], (len(data.queries), 1))], None
    if query_vectors is not None:
        z = np.stack([model.posterior(query)[0][f:] for query in data.queries]) @ turn
        cokriging, others = fit_cokriging(query_vectors, z, turn.T @ products @ turn)
        linear.insert(0, np.pad(others @ turn.T, ((0, 0), (1, 0))))
    bases = []
    for number, query in enumerate(data.queries):
        learned = [
            _standardised(model.theta[query.items], weights[number], centre, covariance)
            for weights in linear
        ]
        bases.append(np.column_stack([query.basis, *learned]))
    columns = trend_columns(len(data.size) - 1, lead, cokriging is not None)
    trends = [fit_trend(model, data, bases, kept, variance) for kept in columns]
    return Prior(
        factor=factor,
        mean=(mean - mean.mean()).astype(np.float32),
        trends=[level_trend(columns.shape[1]), *trends],
        variance=variance,
        cokriging=cokriging,
    )


def _of_all_items(
    model: FactorModel, data: Observations, vectors: FloatArray
) -> tuple[FloatArray, FloatArray, Moments]:
    """Means (n,) and loadings (n, r), in units of scores, and the moments of theta."""
    n, size = len(vectors), data.size[0]
    mean, factor, moments = np.empty(n), scratch((n, model.theta.shape[1] - 1)), Moments()
    for start in range(0, n, BLOCK):
        part = slice(start, min(start + BLOCK, n))
        theta = directions_of(vectors[part]) @ model.content
        first, last = np.searchsorted(data.seen, (part.start, part.stop))
        theta[data.seen[first:last] - start] = model.theta[first:last]
        moments.add(theta.T[None])
        mean[part], factor[part] = size * theta[:, 0], size * theta[:, 1:]
    return mean, factor, moments


def _standardised(
    theta: FloatArray, weights: FloatArray, centre: FloatArray, covariance: FloatArray
) -> FloatArray:
    """theta (b, t) times weights (t,), standardised over all n items; 0 if all are equal."""
    mean, size = weights @ centre, np.sqrt(weights @ covariance @ weights)
    column: FloatArray = theta @ weights - mean
    return column / size if size > 1e-6 * abs(mean) else np.zeros(len(theta))


def fit_trend(
    model: FactorModel,
    data: Observations,
    bases: Sequence[FloatArray],
    columns: BoolArray,
    variance: float,
) -> Trend:
    """Fit the prior of the weights of a trend with `columns` (g',), by EM of these weights alone;
    `bases` (b, g') are all columns of each query's items, and `variance` is the prior's."""
    used, size, q = np.flatnonzero(columns), data.size[0], len(data.queries)
    f = len(used)
    # Start from small slopes, as if there were no other queries.
    flat = variance / size**2 / SLOPE * np.eye(f - 1)  # their covariance
    model = replace(model, weights=np.zeros(f), precision=np.pad(np.linalg.inv(flat), (1, 0)))
    for _ in range(TREND_STEPS):
        posteriors = [
            model.posterior(query, basis[:, used])
            for query, basis in zip(data.queries, bases, strict=True)
        ]
        weights = np.stack([mean[:f] for mean, _ in posteriors])
        about = np.cov(weights.T, bias=True) + sum(c[:f, :f] for _, c in posteriors) / q
        spread = (q * about[1:, 1:] + PRIOR_QUERIES * flat) / (q + PRIOR_QUERIES)
        expected = np.append(0.0, weights.mean(axis=0)[1:])
        precision = np.pad(np.linalg.inv(spread), (1, 0))
        model = replace(model, weights=expected, precision=precision)
    # Convert to the units of the scores and of standardised columns.
    units = np.ones(len(columns))
    units[1 : len(data.size)] = data.size[1:]
    units = size / units[used]
    trend = Trend(columns, np.zeros(len(columns)), np.zeros((len(columns), len(columns))))
    trend.mean[used] = model.weights * units
    trend.precision[np.ix_(used, used)] = model.precision / units / units[:, None]
    return trend
