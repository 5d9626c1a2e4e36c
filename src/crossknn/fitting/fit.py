"""Collect scores, fit item vectors to them, and store the vectors in the index (AXN 2.1).

The papers' other fits are in other packages: a distilled dual encoder in crossknn-train; MF_TRNS,
MF_IND and a truncated R_anc in crossknn-lab.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from crossknn.data.queries import Texts
from crossknn.errors import InputError
from crossknn.fitting.anchors import check_texts
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
from crossknn.index.vectors import ItemVectors, Same
from crossknn.linalg import solvable
from crossknn.retrievers.specs import default_vectors, open_retriever, unfitted
from crossknn.scorers.base import Scorer
from crossknn.scorers.opening import as_scorer
from crossknn.scores.collect import CollectReport, Limits, collect, fingerprint_of
from crossknn.scores.sparse import SparseScores
from crossknn.spec import Spec, build, check_options, option, parse, text_of
from crossknn.types import BoolArray, FloatArray, Pairs, Progress, Queries, Scale, json_value

OpenProgress: TypeAlias = Callable[[str, str], AbstractContextManager[Progress | None]]
"""Opens a progress display, given a description and a unit."""

DEFAULT = "als"
PER = {"q": 100, "i": 5}
"""Default numbers of items per train query, and of train queries per item."""

_ENOUGH = 30  # minimum number of random pairs for a scale


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """The result of `fit`, whose vectors are in the index under `name`; `collected` reports the
    pairs scored in this run."""

    name: str
    vectors: ItemVectors
    collected: CollectReport

    @property
    def notes(self) -> list[str]:
        """What is missing: scores of train queries, or scores of some items."""
        notes, n = list[str](), len(self.vectors.values)
        if not self.collected.complete:
            notes.append("some train queries lack scores: run the fit again to resume")
        if untouched := self.vectors.details.get("untouched"):
            notes.append(
                f"{untouched} of {n} items have no score to fit to, and keep their initial vectors"
            )
        return notes

    def summary(self) -> dict[str, Any]:
        """The values that the command line prints."""
        return {
            "name": self.name,
            "method": self.vectors.method,
            "dimensions": int(self.vectors.values.shape[1]),
            "cost": dict(self.vectors.cost),
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
    seed: int = 0,
    progress: OpenProgress = lambda what, unit: nullcontext(),
) -> FitReport:
    """Fit item vectors with the cross-encoder, and add them to the index as `name`.

    Args:
        index, scorer, queries: The n items, a cross-encoder or its name, and q training queries.
        method: A fitting method or its specification, such as "als(sweeps=10)".
        name: Name of the fitted vectors; by default the method's name.
        vectors: Name of the index's vectors to start from.
        strategy: Choice of pairs to score (AXN, section 2.1 and B.4). "q": `per` items for each
            query, a tenth of them random, the others the best of `retriever`. "i": `per` random
            queries for each item.
        per: Number of items or queries; by default 100 items or 5 queries.
        retriever: Specification of the retriever of strategy "q"; by default the vectors'.
        limits: Limits on calls and time. Scores computed by then are fitted; the same call resumes.
        seed: Seed of all randomness.
        progress: Opens a progress display, given a description and a unit.
    """
    chosen = build(parse(method), METHODS, "way to fit") if isinstance(method, str) else method
    opened = as_scorer(scorer)
    index = index.for_scorer(opened.fingerprint)
    name = name or chosen.name.replace("-", "_")
    index.check_free(name)
    base = (vectors == "auto" and unfitted(index)) or default_vectors(index, vectors)
    if base in index.fitted:
        raise InputError(f"the vectors {base!r} are already fitted: start from unfitted ones")
    if strategy not in PER:
        raise InputError(f"strategy is {strategy!r}; it must be 'q' or 'i'")
    task = FitTask(
        index=index,
        scorer=opened,
        queries=check_texts(queries),
        base=base,
        strategy=strategy,
        per=PER[strategy] if per is None else per,
        retriever=retriever,
        limits=limits or Limits(),
        seed=seed,
        progress=progress,
    )
    made = chosen.fit(task)
    index.add_fitted(name, made, replace=True)
    return FitReport(name=name, vectors=made, collected=task.collected)


@dataclass(kw_only=True, eq=False)
class FitTask:
    """The data of a fit; `collected` is the report of the scoring, which `sparse` does."""

    index: ItemIndex
    scorer: Scorer
    queries: Sequence[str]
    base: str
    strategy: str
    per: int
    retriever: str | Spec | None
    limits: Limits
    seed: int
    progress: OpenProgress
    collected: CollectReport = field(init=False)
    _random: SparseScores = field(init=False)

    def sparse(self) -> SparseScores:
        """Score the planned pairs, and return G: all stored scores of the train queries, but only
        the planned pairs of queries that were scored with every item."""
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

    def scale(self, items: FloatArray, queries: FloatArray) -> Scale | None:
        """Return the map from scores to the scale of the vectors' inner products (AXN A.2), from
        random pairs, because scores vary too little among a retriever's best items; None if there
        are too few."""
        drawn = self._random
        if len(drawn) < _ENOUGH:
            return None
        return Scale.match(drawn.score, inner_products(queries, items, drawn.query, drawn.item))

    def kept(self, method: FitMethod, fit: Fit, queries: int, calls: int) -> ItemVectors:
        """Make what the index stores of a fit to `calls` scores of `queries` queries."""
        errors = {"held_out": fit.held_out, "initial": fit.initial, "untouched": fit.untouched}
        return ItemVectors(
            values=fit.items,
            method=str(method),
            base=None if fit.map is None else self.base,
            map=fit.map or Same(),
            scale=fit.scale,
            fingerprint=self.scorer.fingerprint,
            cost={"queries": queries, "calls": calls},
            details=json_value({**errors, **fit.details}),
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
    """A fitting method; `str(method)` is its specification."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_options(self.name, self)

    @abstractmethod
    def fit(self, task: FitTask) -> ItemVectors:
        """Fit item vectors of the task's index."""

    def __str__(self) -> str:
        return text_of(self.name, self)


@dataclass(frozen=True, kw_only=True)
class Factorization(FitMethod):
    """Fits vectors to the sparse G, starting from the dual encoder's vectors. A random share of G,
    `held_out`, decides when to stop, and measures the fit."""

    held_out: float = option(0.05, least=0, most=0.99)

    def fit(self, task: FitTask) -> ItemVectors:
        items, scores = task.index.vectors[task.base], task.sparse()
        queries = task.index.query_vectors(Queries(task.queries), task.base)
        scale = task.scale(items, queries)
        with task.progress(f"fitting {self.name}", "") as progress:
            how = dict[str, Any](scale=scale, held_out=self.held_out, seed=task.seed)
            targets = Targets.of(scores, items, queries, **how)
            fitted = self.factorize(targets, task.seed, progress)
        return task.kept(self, fitted, len(scores.scored_queries), len(scores))

    @abstractmethod
    def factorize(self, targets: Targets, seed: int, progress: Progress | None) -> Fit:
        """Fit item vectors to the exact scores in `targets`."""


@dataclass(frozen=True, kw_only=True)
class ALS(Factorization):
    """Alternating least squares, regularised towards the initial vectors with `strength`.

    Vectors get one more coordinate. An item's is its average score; a query's is `bias` times the
    length of the query's vector. With `bias` 0 there is no such coordinate.
    """

    name = "als"
    strength: float = option(0.3, least=1e-9)
    bias: float = option(2.0, least=0)
    sweeps: int = option(6, least=1)

    def factorize(self, targets: Targets, seed: int, progress: Progress | None) -> Fit:
        how: dict[str, Any] = {"bias": self.bias, "sweeps": self.sweeps, "progress": progress}
        return als(targets, strength=self.strength, **how)


METHODS: dict[str, type[FitMethod]] = {ALS.name: ALS}


def _among(scores: SparseScores, pairs: Pairs) -> BoolArray:
    return np.isin(scores.query * scores.n + scores.item, pairs.query * scores.n + pairs.item)
