"""Kriging: a Gaussian process that has learned from anchor queries how items vary together.

kriging(first=de)                  mean [1, de, mean score], covariance of anchors and content
kriging(first=hybrid(bm25, de))    the mean has a column for each stage
kriging(anchors=false)             mean [1, first stage], covariance of content alone
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from crossknn.errors import InputError, SpecError
from crossknn.first.fusion import stages_of
from crossknn.indexes.base import Anchors, Index
from crossknn.indexes.covariance import RANK, Covariance
from crossknn.indexes.stages import default_vectors, first_stage
from crossknn.methods.base import HYBRID, Method, fraction, positive
from crossknn.methods.stopping import Course, course
from crossknn.predictors.kernels import Content
from crossknn.predictors.kriging import Kriging as Predictor
from crossknn.search import Plan, Stop
from crossknn.spec import Spec
from crossknn.types import FloatArray

LEAST = 8
"""Items of the first round: of fewer the trend says too little, and the next rounds follow it."""

FOLDS = 10
"""Parts of the anchor queries that are searched, each with what the others teach, to calibrate."""


@dataclass(frozen=True, kw_only=True)
class Kriging(Method):
    """Score what is predicted best, predict again from all scores so far.

    The covariance of two items' scores is `share` of that over the anchor queries (at most `rank`
    factors), and one of their vectors' directions: `smooth` of exp(-`scale` * distance^2) and
    `linear` of the cosine, times the variance of the anchors' residuals. `noise` is the variance
    that none of it explains, as a share of the vectors' part. With `beta`, so many deviations are
    added to what is predicted. `shortlist` restricts a query to that many items: half the first
    stage's best, half those that the linear part of the prediction ranks first after a round.
    With `target_recall` a query ends when it expects to have found so much of its true top `k`,
    calibrated on the anchor queries; its budget is then what it may spend at most.
    """

    name = "kriging"
    first: Spec = HYBRID
    rounds: int = 10
    anchors: bool = True
    rank: int = RANK
    share: float = 0.7
    scale: float = 2.0
    smooth: float = 0.3
    linear: float = 0.5
    noise: float = 0.25
    beta: float = 0.0
    vectors: str = "auto"
    shortlist: int | None = None
    target_recall: float | None = None
    k: int = 10

    def reads(self, index: Index) -> Collection[str]:
        return ("anchors",) if self.anchors and index.anchors is not None else ()

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        self._check(index)
        plan = self._planned(index, budget, seed, self._covariance(index, seed))
        if self.target_recall is None or index.anchors is None:
            return plan
        least = self._threshold(index, budget, seed, index.anchors, self.target_recall)
        return replace(plan, stop=Stop(k=self.k, expected=least))

    def _check(self, index: Index) -> None:
        positive(self.name, rounds=self.rounds, rank=self.rank, shortlist=self.shortlist, k=self.k)
        fraction(self.name, target_recall=self.target_recall)
        sizes = (self.share, self.smooth, self.linear, self.noise, self.beta)
        if self.scale <= 0 or min(sizes) < 0 or self.smooth + self.linear == 0:
            raise SpecError(
                f"{self}: scale must be above 0; share, smooth, linear, noise and beta 0 or more, "
                "and smooth and linear not both 0"
            )
        known = len(index.anchors.scores) if self.anchors and index.anchors is not None else 0
        if self.target_recall is not None and known < 3:
            raise InputError(
                f"{self}: target_recall is calibrated on three anchor queries or more, and there "
                f"are {known or 'none'} here: add some with  crossknn index ... --anchors QUERIES, "
                "or leave it out"
            )

    def _planned(self, index: Index, budget: int, seed: int, covariance: Covariance | None) -> Plan:
        first = first_stage(index, self.first, seed)
        return Plan(
            first=first,
            predictor=Predictor(
                index.vectors(default_vectors(index, self.vectors)),
                first,
                covariance,
                content=Content(self.scale, self.smooth, self.linear),
                share=self.share,
                noise=self.noise,
                beta=self.beta,
            ),
            batches=_batches(budget, self.rounds),
            shortlist=self.shortlist,
        )

    def _covariance(self, index: Index, seed: int) -> Covariance | None:
        if not self.anchors or index.anchors is None:
            return None
        exact = index.anchors.scores

        def made() -> Covariance:
            return Covariance.of(exact, self._cheap(index, seed), self.rank)

        return index.memo.get(("covariance", str(self.first), self.rank, seed), (exact,), made)

    def _cheap(self, index: Index, seed: int) -> list[FloatArray]:
        """Scores (q, n) of the anchor queries by each stage of the first."""
        seen, queries = index.anchored()
        return [s.scores(queries) for s in stages_of(first_stage(seen, self.first, seed))]

    def _threshold(
        self, index: Index, budget: int, seed: int, anchors: Anchors, target: float
    ) -> float:
        """Where to stop: each part of the anchors is searched with what the others teach."""
        exact, free = anchors.scores, replace(self, target_recall=None)

        def made() -> Course:
            cheap, courses = self._cheap(index, seed), []
            for fold in np.array_split(np.arange(len(exact)), min(FOLDS, len(exact))):
                others = np.setdiff1d(np.arange(len(exact)), fold)
                known = Covariance.of(exact[others], [c[others] for c in cheap], self.rank)
                seen, queries = index.anchored(int(fold[0]), int(fold[-1]) + 1)
                plan = self._planned(seen, budget, seed, known)
                courses.append(course(plan, queries, exact[fold], self.k))
            return Course.of_all(courses)

        key = ("course", str(free), self.k, budget, seed)
        return index.memo.get(key, (exact,), made).threshold(target)


def _batches(budget: int, rounds: int) -> tuple[int, ...]:
    """The first round of `LEAST` items or its share, then equal ones, the larger ones first."""
    first = min(max(budget // rounds, LEAST), budget)
    left = budget - first
    later = min(rounds - 1, left)
    return (first, *(left // later + (r < left % later) for r in range(later)))
