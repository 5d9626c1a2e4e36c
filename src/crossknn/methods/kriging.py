"""Kriging: a Gaussian process that has learned from anchor queries how items vary together.

kriging(retriever=dense)                  mean [1, dense, mean score], covariance of anchors and content
kriging(retriever=hybrid(bm25, dense))    the mean has a column for each stage
kriging(retriever=dense, mean=hybrid)     dense picks the first batch, the mean has all columns
kriging(anchors=false)             mean [1, retriever], covariance of content alone
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields, replace

import numpy as np

from crossknn.errors import InputError, SpecError
from crossknn.index.base import Anchors, Index
from crossknn.index.covariance import RANK, Covariance
from crossknn.index.learned import LEARNED, Prior, fits
from crossknn.index.settings import Settings
from crossknn.methods.base import HYBRID, Method, fraction, positive
from crossknn.methods.stopping import Course, course
from crossknn.predictors.kriging import Kriging as Predictor
from crossknn.retrievers.specs import default_vectors, open_retriever, retriever_scores
from crossknn.search.plan import Plan, Stop
from crossknn.spec import Spec
from crossknn.types import FloatArray

LEAST = 8
"""Items of the first round: of fewer the trend says too little, and the next rounds follow it."""

SETTINGS = tuple(setting.name for setting in fields(Settings))

FOLDS = 10
"""Parts of the anchor queries that are searched, each with what the others teach, to calibrate."""


@dataclass(frozen=True, kw_only=True)
class Kriging(Method):
    """Score what is predicted best, predict again from all scores so far.

    What is predicted is linear in the scores of the stages of `mean` (those of `retriever`, if it is
    not given) and, where other queries are known, in the items' mean scores. The covariance of two
    items' scores is `share` of that over the anchor queries (at most `rank` factors), and one of
    their vectors' directions: `smooth` of exp(-`scale` * distance^2) and `linear` of the cosine,
    times the variance of the anchors' residuals. `noise` is the variance that none of it explains,
    as a share of the vectors' part. What of these is not given is as the index has learned it, or
    else as `Settings` has it. With `beta`, so many deviations are added to what is predicted.
    `shortlist` restricts a query to that many items: half the retriever's best, half those that
    the linear part of the prediction ranks first after a round. With `target_recall` a query ends
    when it expects to have found so much of its true top `k`, calibrated on the anchor queries; its
    budget is then what it may spend at most.
    """

    name = "kriging"
    fallback = "kriging(anchors=false)"
    retriever: Spec = HYBRID
    mean: Spec | None = None
    rounds: int = 10
    anchors: bool = True
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
        learned = self._learned(index) is not None
        anchored = self.anchors and index.anchors is not None
        calibrated = self.target_recall is not None or not learned
        return (*((LEARNED,) * learned), *(("anchors",) * (anchored and calibrated)))

    def plan(self, index: Index, budget: int, seed: int) -> Plan:
        self._check(index)
        plan = self._planned(index, budget, seed, self.covariance(index, seed))
        if self.target_recall is None or index.anchors is None:  # read where it is needed only
            return plan
        least = self._threshold(index, budget, seed, index.anchors, self.target_recall)
        return replace(plan, stop=Stop(k=self.k, expected=least))

    def _check(self, index: Index) -> None:
        positive(self.name, rounds=self.rounds, rank=self.rank, shortlist=self.shortlist, k=self.k)
        fraction(self.name, target_recall=self.target_recall)
        known = self._settings(index)
        sizes = (known.share, known.smooth, known.linear, known.noise, self.beta)
        if known.scale <= 0 or min(sizes) < 0 or known.smooth + known.linear == 0:
            raise SpecError(
                f"{self}: scale must be above 0; share, smooth, linear, noise and beta 0 or more, "
                "and smooth and linear not both 0"
            )
        learned = index.learned if self.anchors else None
        useful = learned is None or self._learned(index) is not None
        if learned is not None and not useful and (learned.logged or index.anchors is None):
            raise InputError(
                f"{self}: the index has learned to predict from {learned.retriever}, not from "
                f"{self._stages}: search with mean={learned.retriever} or anchors=false, or learn "
                f"again with  crossknn learn INDEX --retriever '{self._stages}'"
            )
        if self.target_recall is None:
            return
        if not self.anchors:
            raise SpecError(f"{self}: target_recall needs the anchors: leave anchors=false out")
        anchors = 0 if index.anchors is None else len(index.anchors.scores)
        if anchors < 3:
            raise InputError(
                f"{self}: target_recall is calibrated on three anchor queries or more, and there "
                f"are {anchors or 'none'} here: add some with  crossknn index ... --anchors "
                "QUERIES, or leave it out"
            )

    def _planned(self, index: Index, budget: int, seed: int, covariance: Covariance | None) -> Plan:
        return Plan(
            retriever=open_retriever(index, self.retriever, seed),
            predictor=Predictor(
                index.vectors(default_vectors(index, self.vectors)),
                open_retriever(index, self._stages, seed),
                covariance,
                settings=self._settings(index),
                beta=self.beta,
            ),
            batches=_batches(budget, self.rounds),
            shortlist=self.shortlist,
        )

    @property
    def _stages(self) -> Spec:
        return self.retriever if self.mean is None else self.mean

    def _learned(self, index: Index) -> Prior | None:
        """What the index has learned, if it is of use here."""
        learned = index.learned if self.anchors else None
        return learned if learned is not None and fits(learned, index, self._stages) else None

    def _settings(self, index: Index) -> Settings:
        """Those given, or else learned, or else the defaults."""
        learned = self._learned(index)
        given = {name: getattr(self, name) for name in SETTINGS}
        known = {name: value for name, value in given.items() if value is not None}
        return replace(learned.settings if learned else Settings(), **known)

    def covariance(self, index: Index, seed: int) -> Covariance | None:
        """What is known of other queries' scores: as the index has learned it, or else of its
        anchors; None if nothing is, or is wanted.

        To search with other knowledge, override it; `target_recall` is calibrated with that of the
        anchors all the same.
        """
        if (learned := self._learned(index)) is not None:
            known = learned.covariance
            return replace(known, factor=known.factor[:, : self.rank])
        if not self.anchors or index.anchors is None:
            return None
        exact = index.anchors.scores

        def made() -> Covariance:
            return Covariance.of(exact, self._cheap(index, seed), self.rank)

        return index.memo.get(("covariance", str(self._stages), self.rank, seed), (exact,), made)

    def _cheap(self, index: Index, seed: int) -> list[FloatArray]:
        """Scores (q, n) of the anchor queries by each stage of the mean."""
        seen, queries = index.anchored()
        return retriever_scores(seen, self._stages, queries, seed)

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
    retriever = min(max(budget // rounds, LEAST), budget)
    left = budget - retriever
    later = min(rounds - 1, left)
    return (retriever, *(left // later + (r < left % later) for r in range(later)))
