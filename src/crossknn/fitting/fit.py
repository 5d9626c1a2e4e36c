"""Collect scores, fit item vectors to them, and store the vectors in the index (AXN 2.1).

`fit` scores pairs of train queries and items into the index's store, fits item vectors to the
scores, and adds them to the index. The papers' other fits are elsewhere: a distilled dual encoder
in crossknn-train, MF_TRNS, MF_IND and a truncated R_anc in crossknn-lab.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from crossknn.data.queries import Texts
from crossknn.errors import InputError, SpecError
from crossknn.fitting.anchors import check_texts, collect_anchors
from crossknn.fitting.factors import (
    Fit,
    PairPlan,
    Targets,
    als,
    inner_products,
    per_item,
    per_query,
)
from crossknn.index.item_index import ItemIndex
from crossknn.index.vectors import IndexingCost, ItemVectors, Same
from crossknn.linalg import solvable
from crossknn.retrievers.base import RandomItems
from crossknn.retrievers.specs import default_vectors, open_retriever, unfitted
from crossknn.scorers import as_scorer
from crossknn.scorers.base import Scorer
from crossknn.scores.collect import CollectReport, Limits, collect, fingerprint_of
from crossknn.scores.sparse import SparseScores
from crossknn.scores.store import ScoreStore
from crossknn.spec import Spec, build, parse, text_of
from crossknn.types import Anchors, BoolArray, FloatArray, Pairs, Progress, Queries, Scale

OpenProgress: TypeAlias = Callable[[str, str], AbstractContextManager[Progress | None]]
"""Opens a progress display, given a description and a unit."""

DEFAULT = "als"
PER = {"q": 100, "i": 5}
"""Default numbers of items per train query, and of train queries per item."""

_ENOUGH = 30  # so many random pairs make a scale


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """The result of `fit`, whose vectors are in the index under `name`; `collected` reports the
    pairs scored in this run."""

    name: str
    vectors: ItemVectors
    collected: CollectReport

    @property
    def notes(self) -> list[str]:
        """What the data could not give."""
        notes, n = list[str](), len(self.vectors.values)
        if not self.collected.complete:
            notes.append("some train queries lack scores: run the fit again to resume")
        if untouched := self.vectors.details.get("untouched"):
            notes.append(
                f"{untouched} of {n} items have no score to fit to, and keep their initial vectors"
            )
        return notes

    def summary(self) -> dict[str, Any]:
        """The lines that the command line prints."""
        return {
            "name": self.name,
            "method": self.vectors.method,
            "dimensions": int(self.vectors.values.shape[1]),
            "cost": asdict(self.vectors.cost),
            "calls": self.collected.calls,
            "reused": self.collected.reused,
            "stopped_by": self.collected.stopped_by,
            "details": dict(self.vectors.details),
            "notes": self.notes,
        }


@solvable()
def fit(
    index: ItemIndex,
    scorer: Any,
    queries: Texts,
    method: str | FitMethod = DEFAULT,
    *,
    name: str | None = None,
    vectors: str = "auto",
    strategy: Literal["q", "i"] = "q",
    per: int | None = None,
    retriever: str | Spec | None = None,
    limits: Limits | None = None,
    replace: bool = False,
    seed: int = 0,
    progress: OpenProgress = lambda what, unit: nullcontext(),
) -> FitReport:
    """Fit item vectors with the cross-encoder, and add them to the index as `name`.

    Args:
        index: The n items.
        scorer: A cross-encoder or its name.
        queries: Texts (q) of training queries.
        method: A fitting method or its specification, such as "als(sweeps=10)".
        name: Name of the fitted vectors; by default the method's name.
        vectors: Name of the index's vectors to start from.
        strategy: Choice of pairs to score (AXN, section 2.1 and B.4). "q": `per` items for each
            query, a tenth of them random, the others the best of `retriever`. "i": `per` random
            queries for each item.
        per: Number of items or queries; by default 100 items or 5 queries.
        retriever: Specification of the retriever of strategy "q"; by default the vectors'.
        limits: Limits of the collection. Scores so far are used, and the same call resumes.
        replace: Drop anchors scored by other cross-encoders.
        seed: Seed of all randomness.
        progress: Opens a progress report: `progress(what, unit)` is a context manager that gives a
            function to be called with (done, total).
    """
    chosen = build(parse(method), METHODS, "way to fit") if isinstance(method, str) else method
    opened = as_scorer(scorer)
    index = index.for_scorer(opened.fingerprint)
    name = name or chosen.name.replace("-", "_")
    index.check_free(name)
    if strategy not in PER:
        raise InputError(f"strategy is {strategy!r}; it must be 'q' or 'i'")
    task = FitTask(
        index=index,
        scorer=opened,
        queries=check_texts(queries, "train"),
        base=_initial(index, vectors),
        strategy=strategy,
        per=PER[strategy] if per is None else per,
        retriever=retriever,
        limits=limits or Limits(),
        replace=replace,
        seed=seed,
        progress=progress,
    )
    made = chosen.fit(task)
    index.add_fitted(name, made, replace=True)
    return FitReport(name=name, vectors=made, collected=task.collected)


def _initial(index: ItemIndex, vectors: str) -> str:
    """The name of the vectors to start from, which were not fitted themselves."""
    base = (vectors == "auto" and unfitted(index)) or default_vectors(index, vectors)
    if base in index.fitted:
        raise InputError(f"the vectors {base!r} are already fitted: start from unfitted ones")
    return base


@dataclass(kw_only=True, eq=False)
class FitTask:
    """The data of a fit; pairs are scored when their scores are first requested."""

    index: ItemIndex
    scorer: Scorer
    queries: Sequence[str]
    base: str
    strategy: str
    per: int
    retriever: str | Spec | None
    limits: Limits
    replace: bool
    seed: int
    progress: OpenProgress
    vector_seconds: float = 0.0
    collected: CollectReport = field(init=False)
    _random: SparseScores = field(init=False)

    def sparse(self) -> SparseScores:
        """Return G: all scores of the train queries in the store, once the planned pairs are
        scored.

        For a query that is an anchor, which has all scores, only the planned ones are returned.
        """
        store, items, plan = self.index.scores, self.index.items.texts, self._plan()
        with self.progress("scoring train queries", "pairs") as report:
            how = dict[str, Any](limits=self.limits, progress=report)
            self.collected = collect(store, self.scorer, self.queries, items, plan.pairs, **how)
        scores = store.sparse_scores(fingerprint_of(self.scorer, store), items, self.queries)
        dense = np.diff(scores.by_query) == self.index.n
        scores = scores.take(_among(scores, plan.pairs) | ~dense[scores.query])
        if not len(scores):
            raise InputError("no pair has been scored yet: allow more calls or more time")
        self._random = scores.take(_among(scores, plan.random))
        return scores

    def dense(self) -> Anchors:
        """Return scores of the train queries with every item: the index's anchors."""
        index, n = self.index, self.index.n
        with self.progress("scoring anchor queries", "pairs") as report:
            how = dict[str, Any](limits=self.limits, replace=self.replace, progress=report)
            self.collected = collect_anchors(index, self.scorer, self.queries, **how)
        anchors = index.anchors
        if anchors is None:
            raise InputError(
                f"no train query has the scores of all {n} items yet: allow more calls or more time"
            )
        texts = anchors.queries.texts
        random = per_query(RandomItems(n, self.seed), Queries(texts), _ENOUGH, n=n).pairs
        values = np.asarray(anchors.scores)[random.query, random.item]
        self._random = SparseScores.of(texts, n, random, values)
        return anchors

    def scale(self, items: FloatArray, queries: FloatArray) -> Scale | None:
        """Return the map from scores to the scale of the vectors' inner products (AXN A.2).

        It is estimated from random pairs, because scores vary too little among a retriever's best
        items. None if there are too few.
        """
        known = self._random
        if len(known) < _ENOUGH:
            return None
        return Scale.match(known.score, inner_products(queries, items, known.query, known.item))

    def kept(self, method: FitMethod, fit: Fit, queries: int, calls: int) -> ItemVectors:
        """What the index keeps of a fit to so many scores of so many queries."""
        errors = {"held_out": fit.held_out, "initial": fit.initial, "untouched": fit.untouched}
        details = json.dumps({**errors, **fit.details})
        return ItemVectors(
            values=fit.items,
            method=str(method),
            base=None if fit.map is None else self.base,
            map=fit.map or Same(),
            scale=fit.scale,
            fingerprint=self.scorer.fingerprint,
            cost=self.cost(queries, calls, fit.seconds),
            details=json.loads(details, parse_constant=lambda nan: None),
        )

    def cost(self, queries: int, calls: int, fitting: float) -> IndexingCost:
        """Return the cost of this run, which used `calls` scores of `queries` queries."""
        return IndexingCost(
            queries=queries,
            calls=calls,
            vector_seconds=round(self.vector_seconds, 3),
            scoring_seconds=round(self.collected.seconds, 3),
            fitting_seconds=round(fitting, 3),
        )

    def _plan(self) -> PairPlan:
        n, seed, per = self.index.n, self.seed, self.per
        if self.strategy == "i":
            return per_item(n, len(self.queries), per, seed=seed)
        stage = open_retriever(self.index, self.retriever or Spec(self.base), seed)
        with self.progress("choosing pairs", "queries") as report:
            how = dict[str, Any](random=per // 10, seed=seed, progress=report)
            return per_query(stage, Queries(self.queries), per, n=n, **how)


@dataclass(frozen=True, kw_only=True)
class FitMethod(ABC):
    """A fitting method; `str(method)` is its specification in the grammar."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for option, value in vars(self).items():
            if option == "held_out" and not 0 <= value < 1:
                raise SpecError(f"{self}: held_out must be a share from 0 to below 1")
            least = 0 if option in ("bias", "held_out") else 1e-12
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and not value >= least:
                raise SpecError(f"{self}: {option} must be above 0")

    @abstractmethod
    def fit(self, task: FitTask) -> ItemVectors:
        """Fit item vectors of the task's index."""

    def __str__(self) -> str:
        return text_of(self.name, self)


@dataclass(frozen=True, kw_only=True)
class Factorization(FitMethod):
    """Fits vectors to the sparse G, starting from those of the dual encoder.

    A random share `held_out` of G determines when to stop, and measures the fit.
    """

    held_out: float = 0.05

    def fit(self, task: FitTask) -> ItemVectors:
        began, items = time.perf_counter(), task.index.vectors[task.base]
        queries = task.index.query_vectors(Queries(task.queries), task.base)
        task.vector_seconds = time.perf_counter() - began
        scores = task.sparse()
        scale = task.scale(items, queries)
        with task.progress(f"fitting {self.name}", "") as progress:
            how = dict[str, Any](scale=scale, held_out=self.held_out, seed=task.seed)
            targets = Targets.of(scores, items, queries, **how)
            found = self.factorize(targets, task.seed, progress)
        return task.kept(self, found, len(scores.scored_queries), len(scores))

    @abstractmethod
    def factorize(self, targets: Targets, seed: int, progress: Progress | None) -> Fit:
        """Fit item vectors to the exact scores in `targets`."""


@dataclass(frozen=True, kw_only=True)
class ALS(Factorization):
    """Alternating least squares, regularised towards the initial vectors with `strength`.

    An additional coordinate with `bias`, in lengths of a query's vector, holds the item's average
    level; 0 omits it.
    """

    name = "als"
    strength: float = 0.3
    bias: float = 2.0
    sweeps: int = 6

    def factorize(self, targets: Targets, seed: int, progress: Progress | None) -> Fit:
        how: dict[str, Any] = {"strength": self.strength, "bias": self.bias, "sweeps": self.sweeps}
        return als(targets, progress=progress, **how)


METHODS: dict[str, type[FitMethod]] = {ALS.name: ALS}


def add_scores(index: ItemIndex, store: ScoreStore, fingerprint: str) -> int:
    """Copy the scores of the index's items from another store, and return the number of new ones.

    Raises InputError if it has none by this cross-encoder.
    """
    items = index.items.texts
    known = store.sparse_scores(fingerprint, items)
    if not len(known):
        raise InputError(
            f"the store has no score of these items by {fingerprint}: search this index with "
            "it first, or name the cross-encoder of the store's scores (--scorer)"
        )
    return index.scores.put(
        fingerprint, known.queries, items, Pairs(known.query, known.item), known.score
    )


def _among(scores: SparseScores, pairs: Pairs) -> BoolArray:
    return np.isin(scores.query * scores.n + scores.item, pairs.query * scores.n + pairs.item)
