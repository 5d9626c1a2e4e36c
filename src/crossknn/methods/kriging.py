"""Kriging: a Gaussian process whose mean and covariance were fitted to other queries' scores.

The prior (`crossknn.methods.prior`) is learned from the exact scores of other queries;
`crossknn.fitting.kriging` fits it. Without a prior, kriging is a Gaussian process on item vectors
that takes the query's own vector as an observation and assumes small slopes. The steps are those of
docs/explanation/kriging.md: trends, factors, cokriging, and the covariance of
`crossknn.methods.posterior.Kernel`.

Axes: m queries, n items, r factors, d dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Index, lacking
from crossknn.linalg import inner, mask, standardised, top_k
from crossknn.methods.base import Method, Plan, Stop, pool_size
from crossknn.methods.gp import GaussianProcess
from crossknn.methods.posterior import Kernel, Model
from crossknn.methods.prior import (
    NAME,
    Affine,
    Column,
    Prior,
    Spread,
    flat_trends,
    leading_retriever,
    of_retriever,
    possible_leads,
    stored_prior,
    trend_retrievers,
)
from crossknn.retrievers.base import ArrayStore, Retriever, VectorStore
from crossknn.retrievers.specs import AUTO, SEARCH, default_vectors, open_retriever, stage_names
from crossknn.spec import Spec, option, parse
from crossknn.types import Candidates, FloatArray, IntArray, Mask, Queries

FIRST_BATCH = 8
"""Minimum size of the first round: with fewer items the trend is unreliable, and the next rounds
depend on it."""

AFTER_SEARCH = 4
"""Minimum size of the first round after a search with a cheaper scorer, if the budget is at least
`FIRST_BATCH`: its predictions are a good start, and if they mislead, the next rounds correct it."""

ROUNDS = 20
"""Number of rounds by default. Ten lose a point of recall, five two, two six to nine
(docs/evidence/cost.md)."""

BETA = 1.0
"""Standard deviations added to a prediction if there are no scores of other queries. With scores of
other queries exploration gains little, and none are added."""

FEWEST_ANCHORS = 3
"""Minimum number of anchor queries to calibrate `target_recall`."""

NEVER = float("inf")

Corners: TypeAlias = list[tuple[float, float]]
"""Pairs (expected recall at which searches stop, recall that they then reach)."""


@dataclass(frozen=True, kw_only=True)
class Kriging(Method):
    """Score the items with the best predictions, and predict again from all scores so far.

    Args:
        retriever: Picks the first batch; by default, of several encoders, that whose scores agree
            best with the anchors' exact scores.
        mean: Retrievers in whose scores the trends are linear; by default those of the index's
            prior, or else BM25 and vectors.
        rounds: Maximum number of rounds, each after the first with new predictions; by default
            20, or without `target_recall` fewer if a scorer takes long for small batches (`Pace`).
        use_anchors: If false, ignore what was learned from other queries' scores.
        together: If false, queries that are searched together do not learn from each other.
        vectors: Name of the item vectors whose directions the covariance compares.
        shortlist: Predict only this many items of each retriever, and the items that the linear
            part of the prediction ranks first; by default a few per scored pair above 4,000 items.
        target_recall, k: A query ends when its expected recall of its true top `k` reaches this
            share; a search calibrates it on the anchors.
    """

    name = "kriging"
    retriever: Spec = AUTO
    mean: Spec | None = None
    rounds: int | None = option(None, least=1)
    use_anchors: bool = True
    together: bool = True
    vectors: str = "auto"
    shortlist: int | None = option(None, least=1)
    target_recall: float | None = option(None, least=0, most=1)
    k: int = option(10, least=1)

    def required_artifacts(self, index: Index) -> Collection[str]:
        names = [] if self.prior(index) is None else [NAME]
        return names if self.target_recall is None else [*names, "anchors"]

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        plan = self.plan_with(self.prior(index), index, budget, seed)
        if self.target_recall is None:
            return plan
        curve = calibrated(self, index, budget)
        reached = [expected for expected, recall in curve if recall >= self.target_recall]
        return replace(plan, stop=Stop(k=self.k, expected=min(reached, default=NEVER)))

    def prior(self, index: Index) -> Prior | None:
        """Return the index's prior, if it is used; `InputError` if it was fitted to retrievers
        other than those of `mean`."""
        prior = stored_prior(index) if self.use_anchors else None
        if prior is None or not prior.predicts:
            return None
        if self.mean is None:
            return prior
        if stage_names(index, parse(prior.retriever)) == stage_names(index, self.mean):
            return prior
        raise InputError(
            f"{self}: the prior was fitted with mean={prior.retriever}, not mean={self.mean}: "
            f"search with mean={prior.retriever} or use_anchors=false, or fit again with  "
            f"crossknn fit INDEX stored --retriever '{self.mean}'"
        )

    def plan_with(self, prior: Prior | None, index: Index, budget: int, seed: int) -> Plan:
        """Plan with a given prior (None: without scores of other queries), and without a target
        recall; see `Kriging.plan`."""
        mean = self.mean or (trend_retrievers(index) if prior is None else parse(prior.retriever))
        names = stage_names(index, mean)
        stages = [open_retriever(index, name, seed) for name in names]
        has_vectors = bool(index.vectors) or self.vectors != "auto"
        vectors = compared_vectors(index, prior, self.vectors) if has_vectors else None
        lead, first = leading_retriever(index, names, self.retriever), self.retriever
        if prior is not None and len(possible_leads(index, names, first)) > 1:
            lead, first = prior.lead, Spec(names[prior.lead])
        retriever = open_retriever(index, first, seed)
        predictor = gaussian_process(index, vectors, retriever, stages, prior, lead)
        pool = None  # without vectors all items are predicted, by the trend alone: a few products
        wide = budget if prior is None else 3 * budget  # a smaller pool loses recall of many items
        if vectors is not None and (pool := pool_size(index, wide, self.shortlist)):
            predictor = replace(predictor, near=searchable_points(index, prior, vectors))
        return Plan(
            retriever=retriever,
            predictor=predictor,
            batches=self._batches(budget, after_search=names[lead] == SEARCH),
            shortlist=pool,
            stages=() if pool is None else stages,
        )

    def _batches(self, budget: int, *, after_search: bool) -> tuple[int, ...]:
        """Sizes of the first batch and of the others: as equal as possible, larger ones first."""
        least = AFTER_SEARCH if after_search and budget >= FIRST_BATCH else FIRST_BATCH
        rounds = ROUNDS if self.rounds is None else self.rounds
        first = min(max(budget // rounds, least), budget)
        left, later = budget - first, min(rounds - 1, budget - first)
        return (first, *(left // later + (r < left % later) for r in range(later)))


def compared_vectors(index: Index, prior: Prior | None, name: str = "auto") -> str:
    """Return the name of the item vectors that the covariance compares: `default_vectors`, but in
    place of the default encoder's those that the prior was fitted with."""
    default = default_vectors(index, name)
    is_open = name == "auto" and default not in index.fitted
    return prior.space if is_open and prior and prior.space else default


def apart(method: Method) -> Method:
    """Return a method that searches each query as if it were alone."""
    return replace(method, together=False) if isinstance(method, Kriging) else method


def calibrated(
    method: Kriging, index: Index, budget: int, calibrate: Callable[[], Corners] | None = None
) -> Corners:
    """Return the result of `calibrate` for searches with this method, `k` and budget, computed once
    and kept in memory until the anchors change."""

    def missing() -> Corners:
        raise InputError(
            f"{method}: target_recall is not calibrated for k={method.k} and a budget of {budget}: "
            "Searcher.search calibrates it, and so does crossknn.fitting.stopping.calibrate"
        )

    anchors = index.anchors if method.use_anchors else None
    if anchors is None or len(anchors.scores) < FEWEST_ANCHORS:
        raise InputError(
            f"{method}: target_recall is calibrated on three anchor queries or more"
            f", scored with this cross-encoder{lacking(index, 'anchors')}: add some with  "
            "crossknn collect INDEX --anchors QUERIES"
            + ("" if method.use_anchors else ", or leave out use_anchors=false")
        )
    key = ("stopping", str(replace(method, target_recall=None)), budget)
    return index.cache.get(key, (anchors.scores,), calibrate or missing)


def gaussian_process(
    index: Index,
    vectors: str | None,
    retriever: Retriever,
    stages: Sequence[Retriever],
    prior: Prior | None,
    lead: int = 0,
) -> GaussianProcess:
    """Make kriging's predictor, linear in the scores of the retrievers `stages`.

    With a prior it is also linear in cokriging and the items' mean scores, and an item's point has
    the prior's factors before its vector. Without `vectors` all items have the same point.
    """
    one_place = ArrayStore(np.zeros((index.n, 1), np.float32))
    store: VectorStore = one_place if vectors is None else index.store(vectors)
    rank = 0 if prior is None else prior.factor.shape[1]
    columns = [of_retriever(stage, store, rank, partial(_spread, index)) for stage in stages]
    arrays: list[FloatArray | VectorStore] = [store]
    model = Model(Kernel(), flat_trends(len(stages), lead))
    if prior is not None:
        arrays.insert(0, prior.factor)
        model = Model(Kernel(rank, prior.variance or 1.0), prior.trends, fitted=True)
        columns += _learned_columns(index, prior, store.shape[1])
    # Few scores of other queries, of items that looked good, teach less than all scores of anchors.
    explores, own = prior is None or prior.from_searches, None
    if explores and vectors is not None and index.has_query_vectors(vectors):

        def own(queries: Queries) -> FloatArray:
            return np.pad(index.query_vectors(queries, vectors), ((0, 0), (rank, 0)))

    return GaussianProcess(
        arrays=arrays,
        model=model,
        retriever=retriever,
        beta=BETA if explores else 0.0,
        columns=columns,
        own=own,
    )


def searchable_points(index: Index, prior: Prior | None, vectors: str) -> VectorStore:
    """Make a store that searches items' points and, with a prior, their mean scores."""
    if prior is None:
        return index.lists(vectors) or index.store(vectors)
    points = points_of(index, prior, vectors)
    return replace(points, lists=index.lists(NAME, points))


def points_of(index: Index, prior: Prior, vectors: str) -> PointStore:
    """Return the items' points, with their mean scores in the last column."""
    store = index.store(vectors)
    return index.cache.get(
        ("points", vectors), (prior, store), lambda: PointStore(prior.factor, store, prior.column)
    )


def _spread(index: Index, store: VectorStore) -> Spread:
    n = store.shape[0]
    return index.cache.get(("spread", n), (store,), lambda: Spread.of(store.vectors, n))


def _learned_columns(index: Index, prior: Prior, d: int) -> list[Column]:
    """Columns of cokriging, if fitted, and of items' mean scores; points end with vectors (d,)."""
    mean, cokriging, columns = prior.column, prior.cokriging, list[Column]()
    if cokriging is not None:

        def coordinates(queries: Queries) -> FloatArray:
            likely = cokriging(index.query_vectors(queries, str(prior.space)))
            return likely.astype(np.float32)

        def linear(queries: Queries) -> Affine:
            weights, offsets = prior.spread.standardised(coordinates(queries))
            return Affine(np.pad(weights, ((0, 0), (0, d))), offsets)

        def of_all(queries: Queries) -> FloatArray:
            return standardised(coordinates(queries) @ prior.factor.T)

        columns.append(Column(of_all=of_all, linear=linear))

    def average(queries: Queries) -> FloatArray:
        return np.broadcast_to(mean, (len(queries), len(mean)))

    return [*columns, Column(of_all=average, fixed=mean)]


@dataclass(frozen=True, eq=False)
class PointStore:
    """Searches items' points: factors (n, r), then vectors (n, d), then a column (n,); a
    `VectorStore`.

    It uses `lists`, an approximate index of these points, if given; or else all points, or the best
    by vector and the best by the other coordinates if the vectors are in a store without an array.
    """

    factor: FloatArray
    items: VectorStore
    column: FloatArray
    lists: VectorStore | None = None

    values = None

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of items and of columns: (n, r + d + 1)."""
        return len(self.column), self.factor.shape[1] + self.items.shape[1] + 1

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, items: Any) -> FloatArray:
        """Compute the vectors of items, given their positions or a slice."""
        where = np.arange(*items.indices(len(self))) if isinstance(items, slice) else items
        return self.vectors(where)

    def vectors(self, items: IntArray) -> FloatArray:
        """See `VectorStore.vectors`."""
        parts = self.factor[items], self.items.vectors(items), self.column[items][..., None]
        return np.concatenate([part.astype(np.float32, copy=False) for part in parts], axis=-1)

    def top(
        self, vectors: FloatArray, count: int, exclude: IntArray | None = None, allowed: Mask = None
    ) -> Candidates:
        """See `VectorStore.top`."""
        if self.lists is not None:
            return self.lists.top(vectors, count, exclude, allowed)
        r = self.factor.shape[1]
        others = inner(vectors[:, :r], self.factor) + np.outer(vectors[:, -1], self.column)
        own = vectors[:, r:-1]
        if self.items.values is not None:
            return top_k(mask(others + inner(own, self.items.values), exclude, allowed), count)
        by_vector = self.items.top(own, count, exclude, allowed).items
        by_others = top_k(mask(others, exclude, allowed), count).items
        rows = []
        for vector, *both in zip(vectors, by_vector, by_others, strict=True):
            items = np.unique(np.concatenate(both))
            items = items[items >= 0]
            best = top_k((self.vectors(items) @ vector)[None], count)
            rows.append((items[best.items[0]], best.scores[0]))
        return Candidates.from_rows(rows)
