"""Kriging's prior: what exact scores of other queries say about a query before it has any.

    score of item i = w . [1, retrievers' scores, cokriging, mean score of i] + residual of i

Columns are standardised over the items of a query. The weights w are a query's own: those of the
other queries say what to expect of them, for two trends, whose predictions are averaged:

    [1, leading retriever, mean score]          few columns: the best ten
    [1, all retrievers, cokriging, mean score]  all that is known: the best hundred

Residuals say which items are liked by the same queries. Cokriging is the residual that the queries'
vectors predict: queries of like vectors like the same items.

Axes: q queries, n items, s retrievers, g columns, t trends, r factors, d dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.files import scratch
from crossknn.linalg import solve_scaled, standardised
from crossknn.methods.features import Spread
from crossknn.methods.posterior import Trend, lengths
from crossknn.types import Artifact, BoolArray, FloatArray, IntArray, Progress

RANK = 100
"""Factors kept, at most."""

OWN, SMOOTHED = 4 / 7, 3 / 7
"""Shares of the covariance of items that residuals show, and of what item vectors say of it."""

SMOOTHING = 30.0
"""Items that the ridge counts for which smooths factors by item vectors."""

SLOPE = 1.0
"""Precision of a slope, where no other query is known, in units of the residuals' variance."""

PRIOR_QUERIES = 2
"""Queries that the weights' prior before any query counts for where others are known."""

BLOCK = 8_192
"""Items that a fit reads together."""

SCALES = tuple(0.125 * 2.0**step for step in range(8))
RIDGES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
"""Of cokriging: scales of squared distances between queries, and ridges."""


@dataclass(frozen=True, slots=True)
class Cokriging:
    """Coordinates of queries in the space of the factors, by kernel ridge regression.

    z(query) = k' (K + ridge I)^-1 Z with K = exp(-scale |v - v'|^2), v being the vectors of the q
    known queries about their mean, brought to a mean square length of 1, and Z their coordinates.

    Args:
        known: Vectors (q, d) of the known queries.
        solved: (K + ridge I)^-1 Z: (q, r).
        scale: Of squared distances.
    """

    known: FloatArray
    solved: FloatArray
    scale: float

    def __call__(self, vectors: FloatArray) -> FloatArray:
        """Coordinates (m, r) of queries with `vectors` (m, d)."""
        return _near(vectors, self.known, self.scale) @ self.solved

    @staticmethod
    def fit(
        known: FloatArray, coordinates: FloatArray, products: FloatArray
    ) -> tuple[Cokriging, FloatArray]:
        """Scale and ridge by the least leave-one-out error in the scores of all items.

        With A = K (K + ridge I)^-1, the error of query i, left out, is ((I - A) Z)_i / (1 - A_ii)
        (Rasmussen and Williams 2006, 5.12).

        Args:
            known: Vectors (q, d) of queries.
            coordinates: Z (q, r).
            products: Of the factors with themselves, F' F (r, r).

        Returns:
            The regression, and what it says of each known query from all others: (q, r).
        """
        best, exact = np.inf, coordinates.astype(np.float64)
        for scale in SCALES:
            values, turn = np.linalg.eigh(_near(known, known, scale))
            values, turned = np.maximum(values, 0), turn.T @ exact
            for ridge in RIDGES:
                left = ridge / (values + ridge)  # eigenvalues of I - A
                out = np.maximum(np.square(turn) @ left, 1e-9)[:, None]
                error = turn @ (left[:, None] * turned) / out
                if (total := float(np.sum((error @ products) * error))) < best:
                    best, others = total, exact - error
                    solved = turn @ (turned / (values + ridge)[:, None])
                    found = Cokriging(known, solved.astype(np.float32), scale)
        return found, others


def _near(left: FloatArray, known: FloatArray, scale: float) -> FloatArray:
    """exp(-scale |v - v'|^2) between queries (a, d) and known ones (q, d): (a, q)."""
    centre = known.mean(axis=0, dtype=np.float64)
    size = np.sqrt(np.square(known - centre).sum(axis=1).mean()) or 1.0
    v, w = (left - centre) / size, (known - centre) / size
    squares = np.square(v).sum(axis=1)[:, None] + np.square(w).sum(axis=1) - 2 * v @ w.T
    return np.exp(-scale * np.maximum(squares, 0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """What is known before a query's first score, and what it was fitted to.

    Args:
        factor: (n, r), whose products with themselves are the residuals' covariance of items.
        mean: (n,) the items' mean scores, about their mean.
        trends: Of columns 1, the retrievers, cokriging if there is any, and the mean.
        variance: Mean square of the residuals.
        cokriging: Where queries have vectors, of the space `space`.
        retriever: Retrievers that the trends are linear in, as a spec.
        fingerprint: Of the cross-encoder.
        queries, pairs: How many were scored, the `n_anchor_queries` among them with every item.
        added: How many items, the last ones, came after the fit, and have the rows of `factor` and
            `mean` that their vectors say (`crossknn.index.updates`).
    """

    factor: FloatArray
    mean: FloatArray
    trends: Sequence[Trend]
    variance: float
    cokriging: Cokriging | None = None
    space: str | None = None
    retriever: str = ""
    fingerprint: str | None = None
    queries: int = 0
    pairs: int = 0
    n_anchor_queries: int = 0
    added: int = 0

    @property
    def from_searches(self) -> bool:
        """Whether it was fitted to scores of more queries than the anchors."""
        return self.queries > self.n_anchor_queries

    @cached_property
    def column(self) -> FloatArray:
        """The items' mean scores, standardised as those of the items fitted to were: (n,)."""
        fitted = self.mean[: len(self.mean) - self.added]
        if not self.added or not len(fitted):
            return standardised(self.mean)
        # Theirs stay, to the last bit: an approximate index of points that has them goes on.
        of_fitted = standardised(fitted)
        size = np.std(fitted, dtype=np.float64)
        later = self.mean[len(fitted) :].astype(np.float64) - np.mean(fitted, dtype=np.float64)
        later = later / size if of_fitted.any() else np.zeros(self.added)
        return np.concatenate([of_fitted, later.astype(np.float32)])

    @cached_property
    def spread(self) -> Spread:
        """Of the factors."""
        return Spread.of(lambda items: self.factor[items], len(self.factor))

    def kept(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """As JSON and arrays; see `from_artifact`."""
        arrays = {"factor": self.factor, "mean": self.mean}
        arrays |= {
            name: np.stack([getattr(trend, field) for trend in self.trends])
            for name, field in _TRENDS.items()
        }
        meta = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ARRAYS}
        if self.cokriging is not None:
            meta["query_scale"] = self.cokriging.scale
            arrays |= {"known_queries": self.cokriging.known, "solved": self.cokriging.solved}
        return meta, arrays

    @staticmethod
    def from_artifact(artifact: Artifact) -> Prior:
        """What `kept` gave."""
        meta, arrays = dict(artifact.meta), artifact.arrays
        scale, cokriging = meta.pop("query_scale", None), None
        if scale is not None:
            cokriging = Cokriging(arrays["known_queries"], arrays["solved"], scale)
        trends = zip(*(arrays[name] for name in _TRENDS), strict=True)
        return Prior(
            factor=arrays["factor"],
            mean=arrays["mean"],
            trends=[Trend(*trend) for trend in trends],
            cokriging=cokriging,
            **meta,
        )


_ARRAYS = ("factor", "mean", "trends", "cokriging")
_TRENDS: Mapping[str, str] = {
    "trend_columns": "columns",
    "trend_means": "mean",
    "trend_precisions": "precision",
}


def trend_columns(retrievers: int, lead: int, cokriging: bool) -> BoolArray:
    """Which of the columns [1, retrievers, cokriging, mean] each trend has: (t, g)."""
    few = [True, *(r == lead for r in range(retrievers)), *[False] * cokriging, True]
    return np.unique([few, [True] * len(few)], axis=0)


def flat_trends(retrievers: int, lead: int) -> list[Trend]:
    """Where no other query is known: [1], [1, leading retriever], [1, all retrievers], with slopes
    that are probably small; averaged."""
    precision = SLOPE * np.diag([0.0, *np.ones(retrievers)])
    level = [[True, *[False] * retrievers]]
    columns = np.vstack([level, trend_columns(retrievers, lead, False)[:, :-1]])
    return [Trend(row, np.zeros(len(row)), precision) for row in columns]


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
    """A prior from queries that were scored with every item.

    The items are read three times, `BLOCK` at a time, so that arrays may be memory-mapped.

    Args:
        scores: Exact ones (a, n) of anchor queries.
        cheap: Scores (a, n) of the anchors by each retriever.
        vectors: Of the items (n, d), by which factors are smoothed.
        query_vectors: Of the anchors (a, d'), for cokriging.
        lead: Which of the retrievers is in the trend of few columns.
        rank: Factors, at most.
        rows: Positions (q,) of the anchors that are used; by default all.
        progress: Called with (items read, 3 n).

    Raises:
        InputError: fewer than two anchors.
    """
    rows = np.arange(len(scores)) if rows is None else rows
    q, n = len(rows), scores.shape[1]
    if q < 2:
        raise InputError(
            "kriging cannot be fitted to a single anchor query: add more, or use "
            "kriging(use_anchors=false)"
        )

    def blocks(reading: int) -> Iterator[tuple[slice, FloatArray]]:
        """Items, and of them each anchor's columns but for the 1, and its scores: (q, g, b). The
        items' mean, whatever its size, is that over the other anchors."""
        for start in range(0, n, BLOCK):
            part = slice(start, min(start + BLOCK, n))
            known = [a[:, part][rows].astype(np.float64) for a in (*cheap, scores)]
            yield part, np.stack([*known[:-1], known[-1].sum(axis=0) - known[-1], known[-1]], 1)
            if progress:
                progress(reading * n + part.stop, 3 * n)

    few, *_ = trend_columns(len(cheap), lead, False)
    columns, total = Moments(), np.empty(n)
    for part, values in blocks(0):
        columns.add(values)
        total[part] = values[0, -2] + values[0, -1]
    slopes = columns.regressed(np.flatnonzero(few)[1:] - 1)
    # Residuals (q, b) over the items' directions (d, b), and their products with themselves.
    gram: FloatArray = np.zeros((q + vectors.shape[1],) * 2)
    for part, values in blocks(1):
        both = columns.residuals(values, slopes), _directions(vectors[part]).T
        stacked = np.vstack(both).astype(np.float32)
        gram += stacked @ stacked.T
    variance = float(np.trace(gram[:q, :q])) / (q * n)
    mixture = _mixture(gram, q, rank)
    cokriging, others = None, None
    if query_vectors is not None:
        products = mixture.T @ gram @ mixture
        coordinates = np.linalg.lstsq(products, mixture.T @ gram[:, :q], rcond=1e-10)[0].T
        cokriging, others = Cokriging.fit(query_vectors[rows], coordinates, products)
    factor, every = scratch((n, mixture.shape[1])), Moments()
    for part, values in blocks(2):
        both = columns.residuals(values, slopes), _directions(vectors[part]).T
        factor[part] = np.vstack(both).astype(np.float32).T @ mixture.astype(np.float32)
        if others is not None:
            likely = (others.astype(np.float32) @ factor[part].T)[:, None]
            values = np.concatenate([values[:, :-2], likely, values[:, -2:]], axis=1)
        every.add(values)
    trends = []
    for kept in trend_columns(len(cheap), lead, others is not None):
        weights = np.pad(every.regressed(np.flatnonzero(kept)[1:] - 1), ((0, 0), (1, 0)))
        trends.append(Trend(kept, weights.mean(axis=0), slope_precision(weights, kept, variance)))
    return Prior(
        factor=factor,
        mean=(_centred(total) / q).astype(np.float32),
        trends=trends,
        variance=variance,
        cokriging=cokriging,
        queries=q,
        pairs=q * n,
        n_anchor_queries=q,
    )


class Moments:
    """Means and products of columns about them, which come in blocks: of each query the columns
    (g - 1) that its scores, the last of g values, are regressed on."""

    count = 0

    def add(self, values: FloatArray) -> None:
        """Take in (q, g, b); Chan et al. 1983 (1.4), so that no large squares cancel."""
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
        """Standard deviations (q, g, 1); infinite where all values are equal."""
        size = np.sqrt(np.einsum("qgg->qg", self.products) / self.count)[:, :, None]
        return np.where(size > 1e-6 * np.abs(self.mean), size, np.inf)

    def regressed(self, used: IntArray) -> FloatArray:
        """Weights (q, g - 1) of the columns `used`, standardised, in least squares over all items;
        0 of the others."""
        size = self.size[:, used, 0]
        weights = np.zeros((len(self.mean), self.mean.shape[1] - 1))
        for row, (products, unit) in enumerate(zip(self.products, size, strict=True)):
            known = products[np.ix_(used, used)] / unit / unit[:, None]
            weights[row, used] = solve_scaled(known, products[used, -1] / unit)
        return weights

    def residuals(self, values: FloatArray, weights: FloatArray) -> FloatArray:
        """Of the scores from what `weights` (q, g - 1) predict: (q, g, b) -> (q, b)."""
        about = values - self.mean
        scaled = weights / self.size[:, :-1, 0]
        left: FloatArray = about[:, -1] - (scaled[:, None] @ about[:, :-1])[:, 0]
        return left


def _mixture(gram: FloatArray, q: int, rank: int) -> FloatArray:
    """Coefficients (q + d, r) of factors [E' U] B, whose products with themselves are near
    4/7 F F' + 3/7 S S': F F' is E'E / q of the residuals E (q, n), and S = U (U'U + 30 I)^-1 U'F
    with the items' directions U (n, d). `gram` (q + d, q + d) is that of [E' U]."""
    # By the eigenvectors of the smaller E E' / q (q, q).
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


def _directions(vectors: FloatArray) -> FloatArray:
    """Vectors (b, d) brought to unit length, in single precision; 0 stays 0."""
    single = vectors.astype(np.float32)
    return single / lengths(single)[:, None]


def slope_precision(weights: FloatArray, columns: BoolArray, variance: float) -> FloatArray:
    """Of a trend's weights but the first: (q, g) -> (g, g); a few queries are drawn to what is
    assumed where none is known."""
    q, g = weights.shape
    used, precision = np.flatnonzero(columns)[1:], np.zeros((g, g))
    spread = np.atleast_2d(np.cov(weights[:, used].T)) * q
    spread[np.diag_indices_from(spread)] += PRIOR_QUERIES * (variance or 1.0) / SLOPE
    precision[np.ix_(used, used)] = np.linalg.inv(spread / (q + PRIOR_QUERIES))
    return precision


def _centred(values: FloatArray) -> FloatArray:
    exact: FloatArray = values.astype(np.float64)
    return exact - exact.mean()
