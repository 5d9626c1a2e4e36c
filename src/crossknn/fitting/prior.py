"""Fit kriging's prior to anchors, queries that were scored with every item, or to past searches.

Each anchor's scores are regressed on the few columns of the smaller trend. The covariance of the
residuals, which items score high for the same queries, is approximated by factors, partly smoothed
by the item vectors. Of past searches every query's missing scores are predicted from all scores
(`multitask`), and the prior is fitted to all of them like to anchors. Predicted scores vary less
than exact ones, so the residuals' variance is that of the exact scores.

Axes: those of `crossknn.methods.prior`, and a anchor queries, b items of a block, e scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import starmap
from typing import NamedTuple

import numpy as np

from crossknn.errors import InputError
from crossknn.files import scratch
from crossknn.fitting.multitask import Known, complete, groups
from crossknn.linalg import directions_of, solve_scaled
from crossknn.methods.posterior import Trend
from crossknn.methods.prior import SLOPE, Cokriging, Prior, level_trend, near, trend_columns
from crossknn.scores.sparse import SparseScores
from crossknn.types import BoolArray, FloatArray, IntArray, Progress

RANK = 100
"""Maximum number of factors."""

OWN, SMOOTHED = 4 / 7, 3 / 7
"""Weights, in the items' covariance, of the residuals themselves and of the residuals smoothed by
item vectors."""

SMOOTHING = 30.0
"""Ridge penalty of the regression of factors on item vectors, in numbers of items."""

PRIOR_QUERIES = 2
"""Weight of the slope prior that is assumed without other queries, in numbers of queries."""

BLOCK = 8_192
"""Number of items that a fit to 256 queries or fewer reads together."""

SCALES = tuple(0.125 * 2.0**step for step in range(8))
RIDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Values that the fit of cokriging tries: scales of squared query distances, and ridges."""


def fit_cokriging(
    known: FloatArray, coordinates: FloatArray, products: FloatArray
) -> tuple[Cokriging, FloatArray]:
    """Fit cokriging of coordinates Z (q, r) from vectors (q, d), and predict each query from all
    others: (q, r). `products` (r, r) is the Gram matrix of the factors.

    Scale and ridge minimise the leave-one-out error in the scores of all items. With
    A = K (K + ridge I)^-1, the error of query i is ((I - A) Z)_i / (1 - A_ii) (Rasmussen and
    Williams 2006, 5.12).
    """
    best, exact = np.inf, coordinates.astype(np.float64)
    for scale in SCALES:
        values, turn = np.linalg.eigh(near(known, known, scale))
        values, turned = np.maximum(values, 0), turn.T @ exact
        for ridge in RIDGES:
            left = ridge / (values + ridge)  # eigenvalues of I - A
            out = np.maximum(np.square(turn) @ left, 1e-9)[:, None]
            error = turn @ (left[:, None] * turned) / out
            if (total := float(np.sum((error @ products) * error))) < best:
                best, others = total, exact - error
                solved = turn @ (turned / (values + ridge)[:, None])
                cokriging = Cokriging(known, solved.astype(np.float32), scale)
    return cokriging, others


def fit_dense(
    scores: FloatArray,
    cheap: Sequence[FloatArray],
    vectors: FloatArray,
    query_vectors: FloatArray | None = None,
    *,
    lead: int = 0,
    rank: int = RANK,
    rows: IntArray | None = None,
    progress: Progress | None = None,
) -> Prior:
    """Fit a prior to exact scores (a, n) of anchors, each retriever's scores `cheap` (a, n), item
    vectors (n, d) and anchors' vectors (a, d').

    `lead` is the position of the retriever in the trend with few columns; `rows` (q,) are the
    anchors to fit to, by default all. The items are read three times, in blocks, so that
    arrays may be memory-mapped; `progress` is called with (items read, 3 n).
    """
    rows = np.arange(len(scores)) if rows is None else rows
    q, n = len(rows), scores.shape[1]
    if q < 2:
        raise InputError(
            "kriging cannot be fitted to a single anchor query: add more, or use "
            "kriging(use_anchors=false)"
        )
    anchors = _Anchors(scores, cheap, rows, progress)
    few, *_ = trend_columns(len(cheap), lead, False)
    columns, total = anchors.moments()
    slopes = columns.regressed(np.flatnonzero(few)[1:] - 1)

    def stacked(part: slice, values: FloatArray) -> FloatArray:  # [E' U]' of a block (q + d, b)
        both = columns.residuals(values, slopes), directions_of(vectors[part], np.float32).T
        return np.vstack(both).astype(np.float32)

    gram = sum((block @ block.T for block in starmap(stacked, anchors.blocks(1))), np.zeros(1))
    variance = float(np.trace(gram[:q, :q])) / (q * n)
    mixture = _mixture(gram, q, rank)
    cokriging, others = None, None
    if query_vectors is not None:
        products = mixture.T @ gram @ mixture
        # The coordinates of the anchors' residuals in the factors' space.
        coordinates = np.linalg.lstsq(products, mixture.T @ gram[:, :q], rcond=1e-10)[0].T
        cokriging, others = fit_cokriging(query_vectors[rows], coordinates, products)
    factor, every = scratch((n, mixture.shape[1])), Moments()
    for part, values in anchors.blocks(2):
        factor[part] = stacked(part, values).T @ mixture.astype(np.float32)
        if others is not None:  # cokriging's prediction is one more column, before mean and score
            likely = others.astype(np.float32) @ factor[part].T
            values = np.insert(values, -2, likely, axis=1)
        every.add(values)
    exact = total.astype(np.float64)
    used = trend_columns(len(cheap), lead, others is not None)
    return Prior(
        factor=factor,
        mean=((exact - exact.mean()) / q).astype(np.float32),
        trends=[every.trend(columns, variance) for columns in used],
        variance=variance,
        cokriging=cokriging,
    )


class _Anchors(NamedTuple):
    """The q anchors at `rows`, with their exact and each retriever's scores, of shape (a, n)."""

    scores: FloatArray
    cheap: Sequence[FloatArray]
    rows: IntArray
    progress: Progress | None

    def moments(self) -> tuple[Moments, FloatArray]:
        """Compute the moments of each anchor's columns, and the items' sums of scores (n,)."""
        moments, total = Moments(), np.empty(self.scores.shape[1])
        for part, values in self.blocks(0):
            moments.add(values)
            total[part] = values[0, -2] + values[0, -1]
        return moments, total

    def blocks(self, reading: int) -> Iterator[tuple[slice, FloatArray]]:
        """Yield each block's items, and every anchor's columns (except the constant 1) and scores
        for them (q, g, b). An item's mean score is over the other anchors."""
        n = self.scores.shape[1]
        block = max(1, BLOCK // max(1, len(self.rows) // 256))
        for start in range(0, n, block):
            part = slice(start, min(start + block, n))
            *cheap, exact = (
                scores[:, part][self.rows].astype(np.float64)
                for scores in (*self.cheap, self.scores)
            )
            yield part, np.stack([*cheap, exact.sum(axis=0) - exact, exact], 1)
            if self.progress:
                self.progress(reading * n + part.stop, 3 * n)


class Moments:
    """Running means and centered products of each query's columns (g - 1), on which its scores, the
    last of g values, are regressed."""

    count = 0

    def add(self, values: FloatArray) -> None:
        """Add a block (q, g, b); the update of Chan et al. 1983 (1.4) avoids cancelling large
        squares."""
        mean, b = values.mean(axis=2, keepdims=True), values.shape[2]
        about = values - mean
        products = about @ about.transpose(0, 2, 1)
        if not self.count:
            self.mean, self.products, self.count = mean, products, b
            return
        moved, whole = mean - self.mean, self.count + b
        self.products += products + moved @ moved.transpose(0, 2, 1) * (self.count * b / whole)
        self.mean += moved * (b / whole)
        self.count = whole

    @property
    def size(self) -> FloatArray:
        """Standard deviations (q, g, 1); infinite if all values are equal."""
        size = np.sqrt(np.einsum("qgg->qg", self.products) / self.count)[:, :, None]
        return np.where(size > 1e-6 * np.abs(self.mean), size, np.inf)

    def regressed(self, used: IntArray) -> FloatArray:
        """Weights (q, g - 1) of the standardised columns `used`, by least squares over all items;
        other weights are 0."""
        size = self.size[:, used, 0]
        weights = np.zeros((len(self.mean), self.mean.shape[1] - 1))
        for row, (products, unit) in enumerate(zip(self.products, size, strict=True)):
            scaled = products[np.ix_(used, used)] / unit / unit[:, None]
            weights[row, used] = solve_scaled(scaled, products[used, -1] / unit)
        return weights

    def trend(self, columns: BoolArray, variance: float) -> Trend:
        """Estimate the prior of a trend's weights; the first of `columns` (g,) is the 1."""
        weights = np.pad(self.regressed(np.flatnonzero(columns)[1:] - 1), ((0, 0), (1, 0)))
        return Trend(columns, weights.mean(axis=0), slope_precision(weights, columns, variance))

    def residuals(self, values: FloatArray, weights: FloatArray) -> FloatArray:
        """Residuals of the scores, given `weights` (q, g - 1): (q, g, b) -> (q, b)."""
        about = values - self.mean
        scaled = weights / self.size[:, :-1, 0]
        left: FloatArray = about[:, -1] - (scaled[:, None] @ about[:, :-1])[:, 0]
        return left


def _mixture(gram: FloatArray, q: int, rank: int) -> FloatArray:
    """Compute coefficients (q + d, r) of factors [E' U] B whose Gram matrix approximates 4/7 F F' +
    3/7 S S': F F' is E'E / q for the residuals E (q, n), and S = U (U'U + 30 I)^-1 U'F with the
    items' directions U (n, d). `gram` (q + d, q + d) is that of [E' U]."""
    # Use the eigenvectors of the smaller matrix E E' / q (q, q).
    values, turn = np.linalg.eigh(gram[:q, :q] / q)
    kept = np.flatnonzero(values > 1e-6 * values[-1])[::-1][:rank]
    factor = turn[:, kept] / np.sqrt(q)
    ridge = gram[q:, q:] + SMOOTHING * np.eye(len(gram) - q)
    smooth = np.linalg.solve(ridge, gram[q:, :q] @ factor)
    both = np.zeros((len(gram), 2 * len(kept)))
    both[:q, : len(kept)] = np.sqrt(OWN) * factor
    both[q:, len(kept) :] = np.sqrt(SMOOTHED) * smooth
    strength, turn = np.linalg.eigh(both.T @ gram @ both)
    best = np.argsort(-strength, kind="stable")[: min(rank, max(len(kept), 1))]
    mixture: FloatArray = both @ turn[:, best]
    return mixture


def slope_precision(weights: FloatArray, columns: BoolArray, variance: float) -> FloatArray:
    """Compute the precision of a trend's weights except the first: (q, g) -> (g, g). It is shrunk
    towards the precision assumed without other queries, the more the fewer queries there are."""
    q, g = weights.shape
    used, precision = np.flatnonzero(columns)[1:], np.zeros((g, g))
    spread = np.atleast_2d(np.cov(weights[:, used].T)) * q
    spread[np.diag_indices_from(spread)] += PRIOR_QUERIES * (variance or 1.0) / SLOPE
    precision[np.ix_(used, used)] = np.linalg.inv(spread / (q + PRIOR_QUERIES))
    return precision


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
    """Fit a prior like that of `fit_dense` to exact scores of e pairs.

    `cheap` are each retriever's scores (q, n) of the queries that have exact scores, standardised,
    and `query_vectors` (q, d) those queries' vectors; item vectors are (n, d). `progress` is called
    with (queries done, q).
    """
    chosen = scores.scored_queries
    if len(chosen) < 2:
        raise InputError(
            "kriging cannot be fitted to the scores of a single query: search more queries, or use "
            "kriging(use_anchors=false)"
        )
    known = []
    for row, q in enumerate(chosen.tolist()):
        part = slice(scores.by_query[q], scores.by_query[q + 1])
        items = scores.item[part]
        of_items = np.stack([stage[row, items] for stage in cheap], axis=1)
        known.append(Known(items, scores.score[part], of_items))
    completed, done = scratch((len(known), scores.n)), 0
    order = np.random.default_rng(0).permutation(len(known))
    for group in groups(order, [each.items for each in known]):
        own = None if query_vectors is None else query_vectors[group]
        stages = [stage[group] for stage in cheap]
        completed[group] = complete([known[q] for q in group], stages, vectors, own)
        done += len(group)
        if progress:
            progress(done, len(known))
    prior = fit_dense(completed, cheap, vectors, query_vectors, lead=lead, rank=rank)
    trends = [level_trend(len(prior.trends[0].columns)), *prior.trends]
    return replace(prior, trends=trends, variance=_variance(known))


def _variance(known: Sequence[Known]) -> float:
    """The mean square of what one weight per retriever for all queries leaves of the scores."""
    values = [np.column_stack([each.columns, each.scores]).astype(np.float64) for each in known]
    *cheap, scores = np.concatenate([each - each.mean(axis=0) for each in values]).T
    columns = np.stack(cheap, axis=1)
    weights = np.linalg.lstsq(columns, scores, rcond=1e-9)[0]
    return float(np.mean(np.square(scores - columns @ weights)))
