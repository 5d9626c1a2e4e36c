"""Kriging: a Gaussian process whose mean and covariance were fitted to other queries' scores.

kriging(retriever=dense)                 mean [1, dense, mean score], covariance of anchors, content
kriging(retriever=hybrid(bm25, dense))   the mean has a basis function for each stage
kriging(retriever=dense, mean=hybrid)    dense picks the first batch, the mean has all stages
kriging(use_anchors=false)               mean [1, retriever], covariance of content alone

The prior is what the exact scores of other queries say of a query before its first one:

    score of item i = w . [1, cheap scores of i, mean score of i] + residual of i

The weights w are a query's own. Those of the other queries say what to expect of them, and their
residuals which items are liked by the same queries.

Axes: q anchor queries, n items, f basis functions, r factors.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from crossknn.errors import InputError, SpecError
from crossknn.index.base import Index
from crossknn.linalg import solve_scaled, top_k
from crossknn.methods.base import Method, Rehearsal
from crossknn.methods.gp import GaussianProcess
from crossknn.methods.posterior import Directional, LowRankPlusResidual, Model, Weights
from crossknn.retrievers.base import Retriever, stages_of
from crossknn.retrievers.specs import (
    HYBRID,
    default_vectors,
    open_retriever,
    retriever_scores,
    stage_names,
)
from crossknn.search.loop import simulate
from crossknn.search.plan import Plan, Stop
from crossknn.spec import Spec, parse
from crossknn.types import BoolArray, FloatArray, IntArray

NAME = "kriging"
"""Of the artifact that an index keeps a prior as."""

RANK = 100
"""Factors kept, at most."""

ARRAYS = ("factor", "mean", "weights", "precision")

LEAST = 8
"""Items of the first round: of fewer the trend says too little, and the next rounds follow it."""

FOLDS = 10
"""Parts of the anchor queries that are searched, each with what the others teach, to calibrate."""

NEVER = float("inf")


@dataclass(frozen=True, kw_only=True)
class Kriging(Method):
    """Score what is predicted best, predict again from all scores so far.

    Args:
        mean: retriever whose stages' scores the prediction is linear in; `retriever` by default.
            Where other queries are known, the items' mean scores are one more basis function.
        rounds: how often it predicts anew.
        use_anchors: false: ignore the scores of anchor queries.
        rank: factors of the covariance over other queries, at most.
        share, scale, smooth, linear, noise: of the covariance: the share that other queries teach
            (0.7); scale of squared distances (2), weight of exp(-scale distance^2) (0.3), of the
            cosine (0.5); unexplained variance (0.25). By default the index's prior has them.
        beta: standard deviations that are added to the prediction to rank items.
        vectors: name of the item vectors of the content kernel.
        shortlist: restricts a query to so many items: half the retriever's best, half those that
            the linear part of the prediction ranks first after a round.
        target_recall: a query ends when it expects to have found this share of its true top `k`,
            calibrated on the anchor queries; its budget is then what it may spend at most.
    """

    name = "kriging"
    fallback = "kriging(use_anchors=false)"
    retriever: Spec = HYBRID
    mean: Spec | None = None
    rounds: int = 10
    use_anchors: bool = True
    rank: int = RANK
    share: float | None = None
    scale: float | None = None
    smooth: float | None = None
    linear: float | None = None
    noise: float | None = None
    beta: float = 0.0
    vectors: str = "auto"
    shortlist: int | None = None
    target_recall: float | None = None
    k: int = 10

    def required_artifacts(self, index: Index) -> Collection[str]:
        fitted = self._fitted_prior(index) is not None
        anchors = self.use_anchors and index.anchors is not None
        dense = anchors and not (fitted and self.target_recall is None)
        return [NAME] * fitted + ["anchors"] * dense

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        prior = self.prior(index, seed)
        plan = self._plan(index, budget, seed, prior)
        if self.target_recall is None:
            return plan
        curve = self._curve(index, budget, seed)
        return replace(plan, stop=Stop(k=self.k, expected=curve.threshold(self.target_recall)))

    def prior(self, index: Index, seed: int) -> Prior | None:
        """The index's prior, or else one of its anchors; None without either or `anchors`."""
        if (fitted := self._fitted_prior(index)) is not None:
            return replace(fitted, factor=fitted.factor[:, : self.rank])
        if not self.use_anchors or index.anchors is None:
            return None
        exact = index.anchors.scores

        def fit() -> Prior:
            return fit_dense(exact, anchor_scores(index, self._mean, seed), self.rank)

        return index.cache.get(("prior", str(self._mean), self.rank, seed), (exact,), fit)

    def _plan(self, index: Index, budget: int, seed: int, prior: Prior | None) -> Plan:
        first = min(max(budget // self.rounds, LEAST), budget)
        left, later = budget - first, min(self.rounds - 1, budget - first)
        return Plan(
            retriever=open_retriever(index, self.retriever, seed),
            predictor=process(
                index.vectors[default_vectors(index, self.vectors)],
                open_retriever(index, self._mean, seed),
                prior,
                self._parameters(prior),
                self.beta,
            ),
            batches=(first, *(left // later + (r < left % later) for r in range(later))),
            shortlist=self.shortlist,
        )

    @property
    def _mean(self) -> Spec:
        return self.mean or self.retriever

    def _fitted_prior(self, index: Index) -> Prior | None:
        """The index's prior, if it is of all anchors there are and for these stages; `InputError`
        if it is for others, and anchors alone would say less."""
        prior = stored_prior(index) if self.use_anchors else None
        if prior is None:
            return None
        anchors = 0 if index.anchors is None else len(index.anchors.scores)
        if stage_names(index, parse(prior.retriever)) == stage_names(index, self._mean):
            return prior if prior.from_searches or prior.n_anchor_queries == anchors else None
        if anchors and not prior.from_searches:
            return None
        raise InputError(
            f"{self}: the prior predicts from {prior.retriever}, not from {self._mean}: "
            f"search with mean={prior.retriever} or use_anchors=false, or fit again with  "
            f"crossknn fit INDEX stored --retriever '{self._mean}'"
        )

    def _parameters(self, prior: Prior | None) -> KernelParameters:
        """Those given, or else the prior's, or else the defaults."""
        known = asdict(KernelParameters() if prior is None else prior.parameters)
        given = {name: getattr(self, name) for name in known}
        found = KernelParameters(**{n: known[n] if v is None else v for n, v in given.items()})
        least = min(found.share, found.smooth, found.linear, found.noise, self.beta)
        if found.scale <= 0 or least < 0 or found.smooth + found.linear == 0:
            raise SpecError(
                f"{self}: scale must be above 0; share, smooth, linear, noise and beta 0 or more, "
                "and smooth and linear not both 0"
            )
        return found

    def rehearsals(self, index: Index, budget: int, seed: int) -> Iterator[Rehearsal]:
        anchors = index.anchors if self.use_anchors else None
        if anchors is None or len(anchors.scores) < 3:
            yield from super().rehearsals(index, budget, seed)
            return
        parameters = self._parameters(self.prior(index, seed))
        free = replace(self, target_recall=None, **asdict(parameters))
        for fold, prior in cross_fitted(index, self._mean, self.rank, FOLDS, seed):
            plan = free._plan(index, budget, seed, prior)
            yield plan, anchors.queries.take(fold), anchors.scores[fold]

    def _curve(self, index: Index, budget: int, seed: int) -> CalibrationCurve:
        anchors = index.anchors if self.use_anchors else None
        if anchors is None or len(anchors.scores) < 3:
            raise InputError(
                f"{self}: target_recall is calibrated on three anchor queries or more: add some "
                "with  crossknn collect INDEX --anchors QUERIES, or leave out use_anchors=false"
            )
        key = ("curve", str(replace(self, target_recall=None)), self.k, budget, seed)
        searches = self.rehearsals(index, budget, seed)
        return index.cache.get(key, (anchors.scores,), lambda: record_curve(searches, self.k))


def anchor_scores(index: Index, retriever: Spec, seed: int) -> list[FloatArray]:
    """Scores (q, n) of the anchor queries by each of the retriever's stages."""
    assert index.anchors is not None
    return retriever_scores(index, retriever, index.anchors.queries, seed)


def cross_fitted(
    index: Index, retriever: Spec, rank: int, folds: int, seed: int
) -> Iterator[tuple[IntArray, Prior]]:
    """Each part of the anchor queries, as positions, and the prior that the others teach."""
    assert index.anchors is not None
    exact, cheap = index.anchors.scores, anchor_scores(index, retriever, seed)
    rows = np.arange(len(exact))
    for fold in np.array_split(rows, min(folds, len(rows))):
        others = np.setdiff1d(rows, fold)
        yield fold, fit_dense(exact[others], [c[others] for c in cheap], rank)


def stored_prior(index: Index) -> Prior | None:
    """The prior that is kept with an index, if there is one."""
    artifact = index.artifacts.get(NAME)
    if artifact is None:
        return None
    known = {**artifact.meta, "parameters": KernelParameters(**artifact.meta["parameters"])}
    return Prior(**known, **artifact.arrays)


@dataclass(frozen=True, slots=True)
class CalibrationCurve:
    """What m searches expected of their top k before each round and at the end (NaN), and what they
    had achieved: (t, m). Predictions are a little too sure of themselves, so a target is not an
    expectation, but the expectation at which stopping reached it."""

    expected: FloatArray
    achieved: FloatArray

    def recall(self, threshold: float) -> float:
        """Mean over queries that stop when they expect so much, or at the end."""
        enough: BoolArray = self.expected >= threshold
        enough[-1] = True
        return float(self.achieved[enough.argmax(axis=0), np.arange(enough.shape[1])].mean())

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


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelParameters:
    """See `Kriging`: in units of the residuals' variance, `noise` as a share of smooth + linear."""

    share: float = 0.7
    scale: float = 2.0
    smooth: float = 0.3
    linear: float = 0.5
    noise: float = 0.25


@dataclass(frozen=True, kw_only=True, eq=False)
class Prior:
    """What is known before a query's first score, and what it was fitted to.

    Args:
        factor: (n, r), whose products with itself are the residuals' covariance between items.
        mean: (n,) the items' mean scores, about their mean.
        weights: (f,) expected weights of a query.
        precision: (f, f) of these, flat in the first: where zero lies does not matter.
        variance: mean square of the residuals.
        retriever: whose searches it serves, as a spec.
        fingerprint: of the cross-encoder.
        queries, pairs: how many were scored, the `n_anchor_queries` among them with every item.
    """

    factor: FloatArray
    mean: FloatArray
    weights: FloatArray
    precision: FloatArray
    variance: float
    parameters: KernelParameters = KernelParameters()
    retriever: str = ""
    fingerprint: str | None = None
    queries: int = 0
    pairs: int = 0
    n_anchor_queries: int = 0

    @property
    def from_searches(self) -> bool:
        """Whether it was fitted to scores of more queries than the anchors."""
        return self.queries > self.n_anchor_queries

    def meta(self) -> dict[str, Any]:
        """All but the arrays, as JSON."""
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ARRAYS}
        return {**kept, "parameters": asdict(self.parameters)}


def fit_dense(scores: FloatArray, cheap: Sequence[FloatArray], rank: int = RANK) -> Prior:
    """A prior from exact scores (q, n) of anchor queries and their `cheap` ones, each (q, n); an
    item's mean, in the regression of an anchor, is that over the others. `InputError` for fewer
    than two anchors."""
    q, n = scores.shape
    if q < 2:
        raise InputError(
            "one anchor query says nothing about how items vary together: add more, or use "
            "kriging(use_anchors=false)"
        )
    total = _centred(scores.sum(axis=0, dtype=np.float64))
    weights, residuals = np.zeros((q, 2 + len(cheap))), np.empty((q, n), np.float32)
    for row in range(q):
        exact = _centred(scores[row])
        basis = np.stack([*(_centred(c[row]) for c in cheap), (total - exact) / (q - 1)])
        weights[row, 1:] = solve_scaled(basis @ basis.T, basis @ exact)
        residuals[row] = exact - weights[row, 1:] @ basis
    # E'E / q = F F' by the eigenvectors of the smaller EE' / q (q, q), E being the residuals.
    values, vectors = np.linalg.eigh((residuals @ residuals.T).astype(np.float64) / q)
    kept = np.flatnonzero(values > 1e-6 * values[-1])[::-1][:rank]
    return Prior(
        factor=residuals.T @ (vectors[:, kept] / np.sqrt(q)).astype(np.float32),
        mean=(total / q).astype(np.float32),
        weights=weights.mean(axis=0),
        precision=_precision(weights),
        variance=float(np.square(residuals).mean(dtype=np.float64)),
        queries=q,
        pairs=q * n,
        n_anchor_queries=q,
    )


def _centred(values: FloatArray) -> FloatArray:
    exact: FloatArray = values.astype(np.float64)
    return exact - exact.mean()


def _precision(weights: FloatArray) -> FloatArray:
    """Of all weights but the first: (q, f) -> (f, f), 0 where anchors are too few to tell."""
    q, f = weights.shape
    precision = np.zeros((f, f))
    if q > f + 1:
        spread = np.atleast_2d(np.cov(weights[:, 1:].T))
        size = np.sqrt(np.diag(spread))
        size[size == 0] = 1
        correlation = spread / size / size[:, None]
        correlation[np.diag_indices(f - 1)] *= 1 + 1e-6
        inverse = np.linalg.pinv(correlation, rcond=1e-12, hermitian=True)
        precision[1:, 1:] = inverse / size / size[:, None]
    return precision


def process(
    vectors: FloatArray,
    retriever: Retriever,
    prior: Prior | None,
    parameters: KernelParameters,
    beta: float = 0.0,
) -> GaussianProcess:
    """Kriging's predictor over item vectors (n, d), linear in the scores of `retriever`'s stages.

    With a prior also in the items' mean scores; its factors come before an item's vector.
    """
    kernel = LowRankPlusResidual(
        rank=0 if prior is None else prior.factor.shape[1],
        share=parameters.share,
        amount=1.0 if prior is None else prior.variance or 1.0,
        rest=Directional(parameters.scale, parameters.smooth, parameters.linear),
    )
    return GaussianProcess(
        arrays=[vectors] if prior is None else [prior.factor, vectors],
        model=Model(
            kernel=kernel,
            noise=parameters.noise,
            likely=True,
            prior=None if prior is None else Weights(prior.weights, prior.precision),
        ),
        retriever=retriever,
        beta=beta,
        stages=stages_of(retriever),
        item_mean=None if prior is None else prior.mean,
    )
