"""Kriging: a Gaussian process whose mean and covariance were fitted to other queries' scores.

kriging                            first batch by the default retriever, trends in all retrievers
kriging(retriever=hybrid)          rank fusion picks the first batch
kriging(mean=hybrid(bm25, dense, views))   trends in these three
kriging(use_anchors=false)         as if the index knew no other query

The prior (`crossknn.methods.prior`) is what the exact scores of other queries say of a query before
its first one. Without other queries it is a Gaussian process on item vectors, with the query's own
vector as an observation and probably small slopes.

Axes: q anchor queries, n items.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Index, lacking
from crossknn.linalg import standardised, top_k
from crossknn.methods.base import POOL, Method, Rehearsal, pool_size
from crossknn.methods.features import Affine, Feature, PointStore, Spread, of_retriever
from crossknn.methods.gp import GaussianProcess
from crossknn.methods.posterior import Directional, LowRankPlusResidual, Model
from crossknn.methods.prior import Prior, fit_dense, flat_trends
from crossknn.retrievers.base import ArrayStore, Retriever, VectorStore
from crossknn.retrievers.specs import (
    AUTO,
    HYBRID,
    default_vectors,
    first_stage,
    open_retriever,
    retriever_scores,
    stage_names,
    unfitted,
)
from crossknn.search.loop import simulate
from crossknn.search.plan import Plan, Stop
from crossknn.spec import Spec, parse
from crossknn.types import Anchors, BoolArray, FloatArray, IntArray, Progress, Queries

logger = logging.getLogger(__name__)

NAME = "kriging"
"""Of the artifact that an index keeps a prior as."""

LEAST = 8
"""Items of the first round: of fewer the trend says too little, and the next rounds follow it."""

FOLDS = 10
"""Parts of the anchor queries that are searched, each with what the others teach, to calibrate."""

TEACHING_ANCHORS = 10
"""So many anchors, collected since, teach more than the searches that a prior was fitted to."""

PRIOR_POOL, PRIOR_PER_CALL = 4 * POOL, 8
"""Items of the pool with a prior: eight for each call, up to 1,600. With 400 it lost more than half
a point of recall."""

NEVER = float("inf")

SHARE = 0.7
"""Weight of the covariance between items over other queries: some hundred queries overstate it."""

CONTENT, NOISE = Directional(scale=2.0, smooth=0.3, linear=0.5), 0.25
"""Covariance of two items by their vectors, 0.3 exp(-2 d^2) + 0.5 cosine, in units of the
residuals' variance; and the variance that nothing explains, as a share of it."""

BETA = 1.0
"""Standard deviations that are added to a prediction where no other query is known. With other
queries' scores there is little left to explore: it is 0."""


@dataclass(frozen=True, kw_only=True)
class Kriging(Method):
    """Score the items predicted best, and predict again from all scores so far.

    Args:
        retriever: Picks the first batch.
        mean: Retrievers whose scores the trends are linear in; by default those of the index's
            prior, or else words and vectors.
        rounds: how often it predicts anew.
        use_anchors: false: ignore the scores of anchor queries.
        vectors: name of the item vectors of the content kernel.
        shortlist: rounds predict so many items of each retriever, and those that the linear part of
            the prediction ranks first; by default all up to 12,000 items, else three for each call,
            and at least 400; with a prior eight for each call up to 1,600.
        k: how many are to be found, for `target_recall`.
        target_recall: a query ends when it expects to have found this share of its true top `k`,
            calibrated on the anchor queries; its budget is then what it may spend at most.
    """

    name = "kriging"
    fallback = "kriging(use_anchors=false)"
    retriever: Spec = AUTO
    mean: Spec | None = None
    rounds: int = 20
    use_anchors: bool = True
    vectors: str = "auto"
    shortlist: int | None = None
    target_recall: float | None = None
    k: int = 10

    def required_artifacts(self, index: Index) -> Collection[str]:
        fitted = self._fitted_prior(index) is not None
        dense = self._anchors(index) and not (fitted and self.target_recall is None)
        return [NAME] * fitted + ["anchors"] * bool(dense)

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        prior = self.prior(index, seed)
        plan = self.plan_with(prior, index, budget, seed)
        if self.target_recall is None:
            return plan
        curve = self._curve(index, budget, seed)
        return replace(plan, stop=Stop(k=self.k, expected=curve.threshold(self.target_recall)))

    def prior(self, index: Index, seed: int) -> Prior | None:
        """What is known of the scores of any query.

        Args:
            index: What is searched.
            seed: Seed of the fit.

        Returns:
            The prior fitted to the index, or else one made of its anchors; None if it has neither.
        """
        if (fitted := self._fitted_prior(index)) is not None:
            return fitted
        if (anchors := self._anchors(index)) is None:
            return None
        exact, known = anchors.scores, (self._mean(index), seed, self.retriever)
        return index.cache.get(
            ("prior", *map(str, known)), (exact,), lambda: fit_anchors(index, *known)
        )

    def _in_space(self, index: Index) -> bool:
        """Whether there are item vectors; without any, nothing but the trends tells items apart."""
        return bool(index.vectors) or self.vectors != "auto"

    def _anchors(self, index: Index) -> Anchors | None:
        """The anchors, if they are used: a single one does not tell how items vary together, and
        without vectors they are not fitted."""
        anchors = index.anchors if self.use_anchors and self._in_space(index) else None
        return None if anchors is None or len(anchors.scores) < 2 else anchors

    def plan_with(self, prior: Prior | None, index: Index, budget: int, seed: int) -> Plan:
        """`plan` with a given prior, and without a target recall.

        Args:
            prior: The prior; None for none.
            index, budget, seed: As of `plan`.

        Returns:
            The plan.
        """
        first = min(max(budget // self.rounds, LEAST), budget)
        left, later = budget - first, min(self.rounds - 1, budget - first)
        retriever, names = open_retriever(index, self.retriever, seed), self._names(index)
        vectors = default_vectors(index, self.vectors) if self._in_space(index) else None
        predictor = process(
            index,
            vectors,
            retriever,
            names,
            prior,
            seed,
            lead_of(index, names, self.retriever),
        )
        pool = pool_size(index, budget, self.shortlist, least_pool(prior, budget))
        if vectors is None:  # the trend alone: a few products of all items
            pool = None
        if pool is not None and vectors is not None:
            predictor = replace(predictor, near=near_of(index, prior, vectors))
        return Plan(
            retriever=retriever,
            predictor=predictor,
            batches=(first, *(left // later + (r < left % later) for r in range(later))),
            shortlist=pool,
            stages=() if pool is None else [open_retriever(index, name, seed) for name in names],
        )

    def _mean(self, index: Index) -> Spec:
        stored = stored_prior(index) if self.mean is None and self.use_anchors else None
        return self.mean or (trend_retrievers(index) if stored is None else parse(stored.retriever))

    def _names(self, index: Index) -> tuple[str, ...]:
        return stage_names(index, self._mean(index))

    def _fitted_prior(self, index: Index) -> Prior | None:
        """The index's prior for these retrievers; None if anchors were collected since its fit
        (`TEACHING_ANCHORS` of them, if it was fitted to searches too). `InputError` if it is for
        other retrievers, and anchors alone would say less."""
        prior = stored_prior(index) if self.use_anchors else None
        if prior is None:
            return None
        mean = self._mean(index)
        anchors = 0 if index.anchors is None else len(index.anchors.scores)
        if stage_names(index, parse(prior.retriever)) == stage_names(index, mean):
            since = anchors - prior.n_anchor_queries
            few = prior.from_searches and since < TEACHING_ANCHORS
            return prior if few or since <= 0 else None  # the anchors may be stale by now
        if anchors and not prior.from_searches:
            return None
        raise InputError(
            f"{self}: the prior was fitted with mean={prior.retriever}, not mean={mean}: search "
            f"with mean={prior.retriever} or use_anchors=false, or fit again with  "
            f"crossknn fit INDEX stored --retriever '{mean}'"
        )

    def rehearsals(self, index: Index, budget: int, seed: int) -> Iterator[Rehearsal]:
        anchors = index.anchors if self.use_anchors else None
        if anchors is None or len(anchors.scores) < 3:
            yield from super().rehearsals(index, budget, seed)
            return
        free = replace(self, target_recall=None)
        known = (index, self._mean(index), FOLDS, seed, self.retriever)
        for fold, prior in cross_fitted(*known):
            plan = free.plan_with(prior, index, budget, seed)
            yield plan, anchors.queries.take(fold), anchors.scores[fold]

    def _curve(self, index: Index, budget: int, seed: int) -> CalibrationCurve:
        anchors = index.anchors if self.use_anchors else None
        if anchors is None or len(anchors.scores) < 3:
            raise InputError(
                f"{self}: target_recall is calibrated on three anchor queries or more"
                f", scored with this cross-encoder{lacking(index, 'anchors')}: add some with  "
                "crossknn collect INDEX --anchors QUERIES"
                + ("" if self.use_anchors else ", or leave out use_anchors=false")
            )
        key = ("curve", str(replace(self, target_recall=None)), self.k, budget, seed)
        searches = self.rehearsals(index, budget, seed)
        return index.cache.get(key, (anchors.scores,), lambda: record_curve(searches, self.k))


def least_pool(prior: Prior | None, budget: int) -> int:
    """Items that a pool holds, if it does not hold more for the calls."""
    if prior is None:
        return POOL
    return min(max(PRIOR_PER_CALL * budget, POOL), PRIOR_POOL)


def trend_retrievers(index: Index) -> Spec:
    """The retrievers whose scores the trends use by default: `hybrid`; or a single one, if queries
    have no vectors in the space of another."""
    names = stage_names(index, HYBRID)
    known = [n for n in names if n not in index.vectors or index.has_query_vectors(n)]
    return HYBRID if len(known) in (0, len(names)) else Spec(known[0])


def lead_of(index: Index, names: Sequence[str], retriever: Spec = AUTO) -> int:
    """The retriever of the trend of few columns: that which picks the first batch, if it is one of
    `names`, or else that which is used if none is named, or the first."""
    of_batch = stage_names(index, retriever)
    leads = [*(of_batch if len(of_batch) == 1 else ()), first_stage(index), *names]
    return next(names.index(lead) for lead in leads if lead in names)


def fit_anchors(
    index: Index,
    mean: Spec,
    seed: int,
    retriever: Spec = AUTO,
    rows: IntArray | None = None,
    cheap: Sequence[FloatArray] | None = None,
    progress: Progress | None = None,
) -> Prior:
    """What the anchor queries teach, or those in `rows`; `retriever` picks first batches. `cheap`
    are the scores of all anchors by the retrievers of `mean`, if they are known."""
    assert index.anchors is not None
    queries, vectors = index.anchors.queries, unfitted(index) or default_vectors(index)
    space = vectors if index.has_query_vectors(vectors) else None
    prior = fit_dense(
        index.anchors.scores,
        retriever_scores(index, mean, queries, seed) if cheap is None else cheap,
        index.vectors[vectors],
        None if space is None else index.query_vectors(queries, space),
        lead=lead_of(index, stage_names(index, mean), retriever),
        rows=rows,
        progress=progress,
    )
    return replace(prior, space=space)


def cross_fitted(
    index: Index, mean: Spec, folds: int, seed: int, retriever: Spec = AUTO
) -> Iterator[tuple[IntArray, Prior]]:
    """Each part of the anchor queries, as positions, and the prior that the others teach."""
    assert index.anchors is not None
    rows = np.arange(len(index.anchors.scores))
    cheap = retriever_scores(index, mean, index.anchors.queries, seed)
    for fold in np.array_split(rows, min(folds, len(rows))):
        others = np.setdiff1d(rows, fold)
        yield fold, fit_anchors(index, mean, seed, retriever, others, cheap)


def stored_prior(index: Index) -> Prior | None:
    """The prior that is kept with an index, if there is one that this version reads."""
    artifact = index.artifacts.get(NAME)
    if artifact is None:
        return None
    if "trend_columns" not in artifact.arrays:
        logger.warning(
            "the index's prior was made by an older version, and is not used: fit it "
            "again with  crossknn fit INDEX stored"
        )
        return None
    return index.cache.get("prior", (artifact,), lambda: Prior.from_artifact(artifact))


@dataclass(frozen=True, slots=True)
class CalibrationCurve:
    """What m searches expected of their top k before each round and at the end (NaN), and what they
    had achieved: (t, m). Predictions are a little too sure of themselves, so a target is not an
    expectation, but the expectation at which stopping reached it."""

    expected: FloatArray
    achieved: FloatArray

    def recall(self, threshold: float) -> float:
        """What queries reach that stop when they expect so much, or at the end: their mean less its
        standard error, since other queries than these are to be promised something."""
        enough: BoolArray = self.expected >= threshold
        enough[-1] = True
        reached = self.achieved[enough.argmax(axis=0), np.arange(enough.shape[1])]
        return float(reached.mean() - reached.std() / np.sqrt(len(reached)))

    def threshold(self, target: float) -> float:
        """The least expectation from which on stopping reaches the target; `NEVER` if none does."""
        found, known = NEVER, self.expected[:-1]
        for tried in np.unique(known[np.isfinite(known)])[::-1].tolist():
            if self.recall(tried) < target:
                break
            found = tried
        return found


def record_curve(searches: Iterable[Rehearsal], k: int) -> CalibrationCurve:
    """Search queries whose exact scores (m, n) are known, each part by its plan, to the end."""
    expected, achieved = [], []
    for plan, queries, scores in searches:
        search = simulate(replace(plan, stop=Stop(k=k, expected=NEVER)), queries, scores)
        picks, truth = search.picks().items, top_k(scores, k).items
        found = np.array([np.isin(p, t) for p, t in zip(picks, truth, strict=True)])
        so_far, rows = np.cumsum(found, axis=1) / truth.shape[1], np.arange(len(scores))
        before = [so_far[rows, count - 1] for count, _ in search.expectations]
        achieved.append([*before, so_far[:, -1]])
        expected.append([*(e for _, e in search.expectations), np.full(len(scores), np.nan)])
    return CalibrationCurve(np.hstack(expected), np.hstack(achieved))


def process(
    index: Index,
    vectors: str | None,
    retriever: Retriever,
    names: Sequence[str],
    prior: Prior | None,
    seed: int = 0,
    lead: int = 0,
) -> GaussianProcess:
    """Kriging's predictor, linear in the scores of the retrievers `names`.

    With a prior also in cokriging and the items' mean scores; its factors come before an item's
    vector. Without one the query counts as observed, if it has a vector. Without `vectors` all
    items are in one place, and the retrievers alone tell them apart.
    """
    one_place = ArrayStore(np.zeros((index.n, 1), np.float32))
    store: VectorStore = one_place if vectors is None else index.store(vectors)
    rank = 0 if prior is None else prior.factor.shape[1]
    kernel = LowRankPlusResidual(
        rank=rank,
        share=SHARE,
        amount=1.0 if prior is None else prior.variance or 1.0,
        rest=CONTENT,
    )
    spread = partial(_spread, index)
    stages = [open_retriever(index, name, seed) for name in names]
    features = [of_retriever(stage, store, rank, spread) for stage in stages]
    own = None
    if prior is not None:
        features += _learned(index, prior, store.shape[1])
    elif vectors is not None and index.has_query_vectors(vectors):
        own = partial(index.query_vectors, name=vectors)
    return GaussianProcess(
        arrays=[store] if prior is None else [prior.factor, store],
        model=Model(
            kernel=kernel,
            noise=NOISE,
            likely=True,
            fitted=prior is not None,
            trends=flat_trends(len(names), lead) if prior is None else prior.trends,
        ),
        retriever=retriever,
        beta=BETA if prior is None else 0.0,
        features=features,
        own=own,
    )


def near_of(index: Index, prior: Prior | None, vectors: str) -> VectorStore:
    """Searches the items' points, and in the last column their mean scores, by inner product."""
    if prior is None:
        return index.lists(vectors) or index.store(vectors)
    points = points_of(index, prior, vectors)
    return replace(points, lists=index.lists(NAME, points))


def points_of(index: Index, prior: Prior, vectors: str) -> PointStore:
    """The items' points, and in the last column their mean scores."""
    store = index.store(vectors)
    return index.cache.get(
        ("points", vectors),
        (prior, store),
        lambda: PointStore(prior.factor, store, prior.column),
    )


def _spread(index: Index, store: VectorStore) -> Spread:
    n = store.shape[0]
    return index.cache.get(("spread", n), (store,), lambda: Spread.of(store.vectors, n))


def _learned(index: Index, prior: Prior, d: int) -> list[Feature]:
    """Columns that other queries taught: cokriging, if there is any, and the items' mean. Points
    are the prior's factors, then vectors (d,)."""
    mean, cokriging, features = prior.column, prior.cokriging, list[Feature]()
    if cokriging is not None:

        def coordinates(queries: Queries) -> FloatArray:
            found = cokriging(index.query_vectors(queries, str(prior.space)))
            return found.astype(np.float32)

        def linear(queries: Queries) -> Affine:
            weights, offsets = prior.spread.standardised(coordinates(queries))
            return Affine(np.pad(weights, ((0, 0), (0, d))), offsets)

        def likely(queries: Queries) -> FloatArray:
            return standardised(coordinates(queries) @ prior.factor.T)

        features.append(Feature(of_all=likely, linear=linear))

    def average(queries: Queries) -> FloatArray:
        return np.broadcast_to(mean, (len(queries), len(mean)))

    return [*features, Feature(of_all=average, fixed=mean)]
