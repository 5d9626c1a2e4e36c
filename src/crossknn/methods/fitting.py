"""Kriging's settings for an index: those that predict its anchor queries best.

Every anchor is searched as a query would be, with what the other folds' anchors teach. Of the
scores that the search reveals each is predicted from all others, in closed form (leave-one-out
predictive density, Rasmussen and Williams 2006, 5.4.2), with the trend integrated out under its
prior; settings are better if they make these densities higher. All scores of anchors are known, so
this calls no cross-encoder.

Axes: q anchor queries, n items, b scored items, f columns of the trend.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace

import numpy as np

from crossknn.index.base import Index
from crossknn.index.covariance import RANK, Covariance
from crossknn.index.settings import Settings
from crossknn.predictors.kernels import distances
from crossknn.predictors.kriging import Kriging, content_of
from crossknn.predictors.posterior import FLOOR
from crossknn.retrievers.specs import default_vectors, open_retriever, retriever_scores
from crossknn.search.loop import simulate
from crossknn.search.plan import Plan, equal_rounds
from crossknn.spec import Spec
from crossknn.types import FloatArray, IntArray, Queries

LEAST = 20
"""Anchors, at least: fewer than so many leave the settings as they are."""

MOST = 160
"""Anchors that are searched, at most: evenly spaced ones of all."""

FOLDS = 5
BUDGET = 100
ROUNDS = 10
SHORTLIST = 5_000
STEP = 2**0.5
"""By this factor a step changes one setting."""

FARTHEST = 6
"""Steps that a setting may be from its start."""


@dataclass(frozen=True, slots=True)
class Revealed:
    """What searches of q anchors n_scored, b items each, and what was known of these before.

    `known` (q, b, b) are the products of the items' factors, `distances` (q, b, b) those of their
    vectors' directions, squared; `variance` (q,) the residuals' mean square; `drift` (q, b, f) the
    trend's columns, the first constant, with prior `weights` (q, f) and `precision` (q, f, f);
    `scores` (q, b) the exact ones.
    """

    known: FloatArray
    distances: FloatArray
    variance: FloatArray
    drift: FloatArray
    weights: FloatArray
    precision: FloatArray
    scores: FloatArray

    def density(self, settings: Settings) -> FloatArray:
        """Sum over an anchor's items of the log density of its score given all others': (q,).

        With K the scores' covariance under `settings`, P = K^-1 less what the trend takes of it
        and r the scores less the prior's trend, item i is predicted with the variance 1 / P_ii and
        the error (P r)_i / P_ii (equations 5.10-5.12; P as in 2.7.1 of the book).
        """
        inverse = np.linalg.inv(self._covariance(settings))
        carried = inverse @ self.drift
        weights = self.drift.transpose(0, 2, 1) @ carried + self.precision
        precision = inverse - carried @ np.linalg.solve(weights, carried.transpose(0, 2, 1))
        rest = self.scores - (self.drift @ self.weights[:, :, None])[:, :, 0]
        error = (precision @ rest[:, :, None])[:, :, 0]
        left = np.maximum(np.einsum("qbb->qb", precision), np.finfo(np.float64).tiny)
        density: FloatArray = (np.log(left / (2 * np.pi)) - error**2 / left).sum(axis=1) / 2
        return density

    def _covariance(self, settings: Settings) -> FloatArray:
        amount = self.variance[:, None, None]
        noise = max(settings.noise, FLOOR) * (settings.smooth + settings.linear)
        rest = content_of(settings).at(self.distances) + noise * np.eye(self.distances.shape[1])
        return settings.share * self.known + amount * rest

    @classmethod
    def of_all(cls, parts: Sequence[Revealed]) -> Revealed:
        """What several anchors' searches n_scored, as one."""
        names = [field.name for field in fields(cls)]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))


def choose(
    index: Index,
    retriever: Spec,
    *,
    vectors: str = "auto",
    rank: int = RANK,
    seed: int = 0,
    start: Settings | None = None,
) -> Settings:
    """The settings of `kriging(retriever=..., vectors=..., rank=...)` for an index with anchors.

    From `start` (the defaults) one setting after the other is changed by a step, as long as the
    anchors' densities rise by more than the standard error of their mean. `start` itself if fewer
    than `LEAST` anchors tell anything. Costs a search of `BUDGET` calls for each anchor, and about
    40 times q b^3 multiplications: 160 anchors of 5,000 items take some 15 seconds on one core.
    """
    start = start or Settings()
    if index.anchors is None or len(index.anchors.scores) < LEAST:
        return start
    parts = _searched(index, retriever, default_vectors(index, vectors), rank, seed, start)
    told = [part for part in parts if np.ptp(part.scores) > 0]
    return climb(Revealed.of_all(told), start) if len(told) >= LEAST else start


def climb(n_scored: Revealed, start: Settings) -> Settings:
    """The settings that coordinate steps from `start` reach; see `choose`."""
    values = asdict(start)
    steps = dict.fromkeys(values, 0)
    best, density = start, n_scored.density(start)
    for _ in range(FARTHEST):
        before = best
        for name in (name for name, value in values.items() if value > 0):
            for step in (steps[name] + 1, steps[name] - 1):
                if abs(step) > FARTHEST:
                    continue
                tried = replace(best, **{name: values[name] * STEP**step})
                found = n_scored.density(tried)
                gain = found - density
                if gain.mean() > gain.std(ddof=1) / np.sqrt(len(gain)):
                    best, density, steps[name] = tried, found, step
                    break
        if best == before:
            break
    return best


def _searched(
    index: Index, retriever: Spec, vectors: str, rank: int, seed: int, start: Settings
) -> Iterator[Revealed]:
    """What a search of each anchor reveals (q = 1), with what the other folds teach."""
    assert index.anchors is not None
    exact = index.anchors.scores
    seen, queries = index.anchored()
    cheap = retriever_scores(seen, retriever, queries, seed)
    rows, batches = np.arange(len(exact)), equal_rounds(min(BUDGET, index.n), ROUNDS)
    searched = np.unique(np.linspace(0, len(exact) - 1, MOST).round().astype(int))
    for fold in np.array_split(rows, FOLDS):
        others = np.setdiff1d(rows, fold)
        known = Covariance.of(exact[others], [c[others] for c in cheap], rank)
        for row in np.intersect1d(fold, searched).tolist():
            seen, query = index.anchored(row, row + 1)
            stage = open_retriever(seen, retriever, seed)
            items = seen.vectors(vectors)
            predictor = Kriging(items, stage, known, settings=start, beta=0.0)
            plan = Plan(retriever=stage, predictor=predictor, batches=batches, shortlist=SHORTLIST)
            picks = simulate(plan, query, exact[row : row + 1]).observed().items[0]
            yield _revealed(predictor, known, query, picks, exact[row, picks])


def _revealed(
    predictor: Kriging, known: Covariance, query: Queries, items: IntArray, scores: FloatArray
) -> Revealed:
    """The scores (b,) of one query with its `items` (b,), and what `known` says of these."""
    factor, vectors = np.split(
        predictor.vectors(items).astype(np.float64), [known.factor.shape[1]], axis=1
    )
    return Revealed(
        known=(factor @ factor.T)[None],
        distances=distances(vectors, vectors)[None],
        variance=np.array([known.variance]),
        drift=predictor.columns(query)[:, 0, items].T[None].astype(np.float64),
        weights=known.weights[None],
        precision=known.precision[None],
        scores=scores[None].astype(np.float64),
    )
