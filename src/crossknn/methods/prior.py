"""Kriging's prior: a model of scores learned from other queries, used before a query has any.

    score of item i = w . [1, retrievers' scores, cokriging, mean score of i] + residual of i

Columns are standardised over the items of a query. The other queries' weights give the prior of a
query's w, in two trends whose predictions are averaged: [1, leading retriever, mean score] ranks
the best ten better, and all columns rank the best hundred better. Residuals show which items score
high for the same queries; cokriging predicts them from the queries' vectors.

Axes: m queries, q known queries, n items, c requested items, s retrievers, g columns, t trends, p
coordinates of a point: r factors and d dimensions of a vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from crossknn.index.base import Index
from crossknn.linalg import standardised
from crossknn.methods.posterior import Trend
from crossknn.retrievers.base import DenseRetriever, Retriever, VectorStore
from crossknn.retrievers.specs import AUTO, HYBRID, SEARCH, encoders, first_stage, stage_names
from crossknn.spec import Spec
from crossknn.types import Artifact, BoolArray, FloatArray, IntArray, Queries

NAME = "kriging"
"""Name of the artifact in which an index stores a prior."""

SLOPE = 1.0
"""Precision of a slope if there are no scores of other queries, in units of the residuals'
variance."""

SAMPLE, _BLOCK = 50_000, 16_384
"""Maximum number of vectors from which their mean and covariance are estimated."""

Values: TypeAlias = Callable[[int, IntArray, FloatArray], FloatArray]
"""Computes a column (c,) for a query at items (c,) with their points (c, p)."""


class Affine(NamedTuple):
    """An affine function of items' points x (p,) for m queries: `weights` (m, p) . x + `offsets`
    (m,)."""

    weights: FloatArray
    offsets: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Column:
    """A column of the trends: a value for each query and item.

    `of_all` computes its values (m, n). A search that predicts a pool computes no values of all n
    items: the column is `fixed` (n,) for all queries, or `given` computes the values of some items
    (`linear` may approximate them), or it is a `linear` function of an item's point; `best` finds
    the largest values (m,).
    """

    of_all: Callable[[Queries], FloatArray]
    linear: Callable[[Queries], Affine] | None = None
    given: Callable[[Queries], Values] | None = None
    fixed: FloatArray | None = None
    best: Callable[[Queries], FloatArray] | None = None

    def of_some(self, queries: Queries) -> Values:
        """Compute the values of given items."""
        if (fixed := self.fixed) is not None:
            return lambda q, items, points: fixed[items]
        if self.given is not None:
            return self.given(queries)
        if self.linear is not None:
            weights, offsets = self.linear(queries)
            return lambda q, items, points: points @ weights[q] + offsets[q]
        values = self.of_all(queries)
        return lambda q, items, points: values[q, items]

    def highest(self, queries: Queries) -> FloatArray:
        """The largest values (m,) over all items."""
        return self.best(queries) if self.best else self.of_all(queries).max(axis=1)


class Spread(NamedTuple):
    """The mean (d,) and covariance (d, d) of vectors (n, d)."""

    mean: FloatArray
    covariance: FloatArray

    @staticmethod
    def of(take: Callable[[IntArray], FloatArray], n: int) -> Spread:
        """Compute mean and covariance from at most 50,000 of n vectors, which `take` reads."""
        items = np.arange(n)
        if n > SAMPLE:
            items = np.sort(np.random.default_rng(0).choice(n, SAMPLE, replace=False))
        d = take(items[:1]).shape[1]
        mean, products = np.zeros(d), np.zeros((d, d))
        for start in range(0, len(items), _BLOCK):
            vectors = take(items[start : start + _BLOCK]).astype(np.float64)
            mean += vectors.sum(axis=0) / len(items)
            products += vectors.T @ vectors
        return Spread(mean, products / len(items) - np.outer(mean, mean))

    def standardised(self, directions: FloatArray) -> Affine:
        """Standardise the inner products with `directions` (m, d) to mean 0 and deviation 1 over
        the vectors; 0 if the deviation is 0."""
        means = directions @ self.mean
        squares = np.einsum("md,de,me->m", directions, self.covariance, directions)
        sizes = np.sqrt(np.maximum(squares, 0))
        some = sizes > 1e-6 * np.maximum(np.abs(means), np.abs(directions).max(axis=1))
        scale = np.where(some, 1 / np.where(some, sizes, 1), 0)
        single = (directions * scale[:, None]).astype(np.float32)
        return Affine(single, (-means * scale).astype(np.float32))


def of_retriever(
    retriever: Retriever,
    vectors: VectorStore,
    rank: int,
    spread_of: Callable[[VectorStore], Spread],
) -> Column:
    """Make a column of a retriever's scores, standardised over all items. In items' points
    `vectors` follow `rank` factors."""

    def of_all(queries: Queries) -> FloatArray:
        if of_all not in queries.kept:
            queries.kept[of_all] = standardised(retriever.scores(queries))
        return queries.kept[of_all]

    if not isinstance(retriever, DenseRetriever):
        return Column(of_all=of_all)
    store, encode = retriever.items, retriever.encode

    def affine(queries: Queries) -> Affine:
        return spread_of(store).standardised(encode(queries))

    def linear(queries: Queries) -> Affine:
        weights, offsets = affine(queries)
        return Affine(np.pad(weights, ((0, 0), (rank, 0))), offsets)

    def given(queries: Queries) -> Values:
        weights, offsets = affine(queries)
        return lambda q, items, _: store.vectors(items) @ weights[q] + offsets[q]

    def best(queries: Queries) -> FloatArray:
        weights, offsets = affine(queries)
        first = store.vectors(retriever.top(queries, 1).items[:, 0])
        return np.einsum("md,md->m", first, weights) + offsets

    if store is vectors:
        return Column(of_all=of_all, linear=linear, best=best)
    return Column(of_all=of_all, given=given, best=best)


@dataclass(frozen=True, slots=True)
class Cokriging:
    """Predicts a query's coordinates in the space of the factors, by kernel ridge regression.

    z(query) = k' (K + ridge I)^-1 Z with K = exp(-scale |v - v'|^2), where v are the vectors
    `known` (q, d), centered and scaled to a mean square length of 1, and Z their coordinates;
    `solved` (q, r) is (K + ridge I)^-1 Z.
    """

    known: FloatArray
    solved: FloatArray
    scale: float

    def __call__(self, vectors: FloatArray) -> FloatArray:
        """Predict coordinates (m, r) of queries with `vectors` (m, d)."""
        return near(vectors, self.known, self.scale) @ self.solved


def near(left: FloatArray, known: FloatArray, scale: float) -> FloatArray:
    """Compute exp(-scale |v - v'|^2) between queries (m, d) and known ones (q, d): (m, q)."""
    centre = known.mean(axis=0, dtype=np.float64)
    size = np.sqrt(np.square(known - centre).sum(axis=1).mean()) or 1.0
    v, w = (left - centre) / size, (known - centre) / size
    squares = np.square(v).sum(axis=1)[:, None] + np.square(w).sum(axis=1) - 2 * v @ w.T
    return np.exp(-scale * np.maximum(squares, 0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """A prior, and a description of the data that it was fitted to.

    `factor` (n, r) has the covariances of the items' residuals as inner products, `mean` (n,) the
    items' mean scores, centered; `trends` are models of the weights of [1, retrievers, cokriging if
    there is any, mean]. `variance` is the mean square of the residuals, and `space` names the query
    vectors of `cokriging`. `retriever` is the spec of the trends' retrievers. `queries` and `pairs`
    count what it was fitted to, `n_anchor_queries` the queries scored with every item, and `stored`
    the searched queries' scores in the store then. The last `added` items came after the fit; their
    rows are predicted from their vectors (`crossknn.index.updates`). `gain` is the share of the
    error of past searches' late scores that it saves, with a 95% interval, if it was measured.
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
    stored: int = 0
    added: int = 0
    gain: Sequence[float] | None = None

    @property
    def predicts(self) -> bool:
        """Whether it predicted past searches better than no prior, or was not tested."""
        return not self.gain or self.gain[0] > 0

    @property
    def from_searches(self) -> bool:
        """Whether the prior was fitted to scores of queries besides the anchors."""
        return self.queries > self.n_anchor_queries

    @property
    def lead(self) -> int:
        """Position of the leading retriever, that of the trend with few columns."""
        few = next(trend.columns for trend in self.trends if trend.columns.sum() > 1)
        return int(np.flatnonzero(few)[1]) - 1

    @cached_property
    def column(self) -> FloatArray:
        """The items' mean scores (n,), standardised by the mean and deviation of the fit's
        items."""
        fitted = self.mean[: len(self.mean) - self.added]
        if not self.added or not len(fitted):
            return standardised(self.mean)
        # The old values stay identical to the last bit, so that an approximate index of points with
        # them remains valid.
        of_fitted = standardised(fitted)
        size = np.std(fitted, dtype=np.float64)
        later = self.mean[len(fitted) :].astype(np.float64) - np.mean(fitted, dtype=np.float64)
        later = later / size if of_fitted.any() else np.zeros(self.added)
        return np.concatenate([of_fitted, later.astype(np.float32)])

    @cached_property
    def spread(self) -> Spread:
        """Mean and covariance of the factors."""
        return Spread.of(lambda items: self.factor[items], len(self.factor))

    def kept(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """Convert the prior to JSON values and arrays; see `from_artifact`."""
        trends = zip(_TRENDS, map(np.stack, zip(*self.trends, strict=True)), strict=True)
        arrays = {"factor": self.factor, "mean": self.mean, **dict(trends)}
        meta = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ARRAYS}
        if self.cokriging is not None:
            meta["query_scale"] = self.cokriging.scale
            arrays |= {"known_queries": self.cokriging.known, "solved": self.cokriging.solved}
        return meta, arrays

    @staticmethod
    def from_artifact(artifact: Artifact) -> Prior:
        """Read a prior from the values of `kept`."""
        meta, arrays = dict(artifact.meta), artifact.arrays
        scale, cokriging = meta.pop("query_scale", None), None
        if scale is not None:
            cokriging = Cokriging(arrays["known_queries"], arrays["solved"], scale)
        trends = [Trend(*row) for row in zip(*(arrays[name] for name in _TRENDS), strict=True)]
        both = {"factor": arrays["factor"], "mean": arrays["mean"]}
        return Prior(**both, trends=trends, cokriging=cokriging, **meta)


_ARRAYS = ("factor", "mean", "trends", "cokriging")
_TRENDS = ("trend_columns", "trend_means", "trend_precisions")


def trend_columns(retrievers: int, lead: int, cokriging: bool) -> BoolArray:
    """Return the columns of [1, retrievers, cokriging, mean] that each trend uses: (t, g)."""
    few = [True, *(r == lead for r in range(retrievers)), *[False] * cokriging, True]
    return np.unique([few, [True] * len(few)], axis=0)


def level_trend(columns: int) -> Trend:
    """Return the trend [1] among this many columns."""
    return Trend(np.arange(columns) == 0, np.zeros(columns), np.zeros((columns, columns)))


def flat_trends(retrievers: int, lead: int) -> list[Trend]:
    """Return the trends used without a prior: [1], [1, leading retriever] and [1, all retrievers],
    with slopes assumed small."""
    precision = SLOPE * np.diag([0.0, *np.ones(retrievers)])
    columns = trend_columns(retrievers, lead, False)[:, :-1]
    sloped = (Trend(row, np.zeros(len(row)), precision) for row in columns)
    return [level_trend(1 + retrievers), *sloped]


def stored_prior(index: Index) -> Prior | None:
    """Return the prior stored with an index; None after a search with a cheaper scorer, because it
    was fitted to other retrievers."""
    artifact = index.artifacts.get(NAME)
    if artifact is None or SEARCH in index.retrievers:
        return None
    return index.cache.get("prior", (artifact,), lambda: Prior.from_artifact(artifact))


def trend_retrievers(index: Index) -> Spec:
    """The default retrievers of the trends: `hybrid` and all encoders, if queries have vectors for
    them, and a search with a cheaper scorer, if there is one."""
    after_search = first_stage(index) == SEARCH
    if after_search and not (index.vectors or "bm25" in index.retrievers):
        return Spec(SEARCH)
    names = stage_names(index, HYBRID)
    stages = dict.fromkeys((*names, *encoders(index)))
    usable = [n for n in stages if n not in index.vectors or index.has_query_vectors(n)]
    if after_search:
        return Spec(HYBRID.name, (Spec(SEARCH), *map(Spec, usable)))
    if tuple(usable) in ((), names):
        return HYBRID
    return Spec(usable[0]) if len(usable) == 1 else Spec(HYBRID.name, tuple(map(Spec, usable)))


def leading_retriever(index: Index, names: Sequence[str], retriever: Spec = AUTO) -> int:
    """Position in `names` of the retriever in the trend with few columns: that of the first batch,
    or else the default retriever, or else the first name."""
    of_batch = stage_names(index, retriever)
    leads = [*(of_batch if len(of_batch) == 1 else ()), first_stage(index), *names]
    return next(names.index(lead) for lead in leads if lead in names)


def possible_leads(index: Index, names: Sequence[str], retriever: Spec = AUTO) -> list[int]:
    """Positions in `names` of the retrievers among which scores of anchors choose the leading one:
    the encoders, if the first batch comes from the default encoder; otherwise one."""
    default = leading_retriever(index, names, retriever)
    if retriever != AUTO or stage_names(index, AUTO) != (names[default],):
        return [default]
    return [default, *(names.index(n) for n in encoders(index) if n in {*names} - {names[default]})]
