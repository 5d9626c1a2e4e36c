"""One alignment: the train queries, the vectors to start from, and the scores it pays for."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from crossknn.errors import CrossknnError, InputError, ScorerError
from crossknn.fitting.bank import ScoreBank
from crossknn.fitting.collect import CollectReport, collect
from crossknn.fitting.factors import inner_products
from crossknn.fitting.plan import Plan, per_item, per_query
from crossknn.index.base import Anchors, Scale
from crossknn.index.fitted import IndexingCost
from crossknn.index.item_index import ItemIndex
from crossknn.index.sparse import SparseScores
from crossknn.retrievers.base import RandomItems
from crossknn.retrievers.specs import open_retriever
from crossknn.scorers.base import Scorer
from crossknn.spec import Spec
from crossknn.types import FloatArray, Pairs, Progress, Queries

Tell: TypeAlias = Callable[[str, str], AbstractContextManager[Progress | None]]
"""Opens the progress of a stage: (what is done, in which unit)."""

Strategy: TypeAlias = Literal["q", "i"]

PER = {"q": 100, "i": 5}
"""Items per train query, and train queries per item, by default."""

_ENOUGH = 30
"""So many random pairs make a scale."""

BANK = "work-pairs"
"""The folder of an index where the scores of train queries lie."""


def silent(what: str, unit: str) -> AbstractContextManager[Progress | None]:
    """No progress."""
    return nullcontext()


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What may be paid, and by whom.

    `workers` threads score, or processes on Ray if `ray` is its address ("local" starts it here).
    `max_calls` and `deadline` (seconds) stop the scoring; what is paid by then is used. `rescore`
    discards scores of another cross-encoder.
    """

    workers: int = 1
    ray: str | None = None
    max_calls: int | None = None
    deadline: float | None = None
    rescore: bool = False


@dataclass(kw_only=True, eq=False)
class Job:
    """What a way to align asks for; scores are paid for when they are asked for.

    `base` names the vectors to start from. `strategy` "q" scores `per` items of `retriever` for each
    train query, "i" `per` queries for each item (AXN 2.1, B.4). Distillation begins with the model
    `start` (by default the index's dual encoder) and leaves it in `encoder_folder`.
    """

    index: ItemIndex
    scorer: Scorer
    queries: Sequence[str]
    base: str
    strategy: Strategy = "q"
    per: int = 100
    retriever: Spec | None = None
    spending: Spending = field(default_factory=Spending)
    scorer_name: str | Path | None = None
    start: str | Path | None = None
    encoder_folder: Path | None = None
    seed: int = 0
    tell: Tell = silent
    calls: int = 0
    reused: int = 0
    stopped_by: str | None = None
    unfinished: int = 0
    vector_seconds: float = 0.0
    _by_chance: SparseScores = field(init=False)

    @cached_property
    def batch(self) -> Queries:
        """The train queries, with the vectors that have been made for them."""
        return Queries(self.queries)

    def vectors(self) -> tuple[FloatArray, FloatArray]:
        """The initial vectors of items (n, d) and train queries (q, d)."""
        began = time.perf_counter()
        found = self.index.vectors(self.base), self.index.query_vectors(self.batch, self.base)
        self.vector_seconds += time.perf_counter() - began
        return found

    @cached_property
    def bank(self) -> ScoreBank:
        """The pairs that are paid; those of anchors are kept by the index."""
        folder = self.index.folder
        return ScoreBank.open(
            self.index.items.texts,
            fingerprint=self.scorer.fingerprint,
            folder=None if folder is None else folder / BANK,
            rescore=self.spending.rescore,
        )

    def sparse(self) -> SparseScores:
        """G: everything paid for of the train queries, once its plan is paid.

        Of the strategy "q" a tenth of a query's items are random ones: see `scale`. Pairs that
        anchors have the scores of are not paid again.
        """
        bank, plan = self.bank, self._plan()
        with bank.exclusive(), self.tell("scoring train queries", "pairs") as progress:
            for rows in self.index.paid_rows(self.scorer.fingerprint):
                known = rows.of(self.queries, plan.pairs)
                paid = np.flatnonzero(~np.isnan(known))
                if len(paid):
                    bank.know(self.queries, bank.items, plan.pairs.take(paid), known[paid])
            report = self._collect(plan.pairs, progress)
        self.calls, self.reused, self.stopped_by = report.calls, report.reused, report.stopped_by
        scores = bank.scores(self.queries)
        if not len(scores):
            raise _nothing("no pair has been scored yet", report.failed)
        self._by_chance = bank.scores(self.queries, plan.chance)
        return scores

    def scale(self, items: FloatArray, queries: FloatArray) -> Scale | None:
        """Brings scores to the scale of the vectors' inner products (AXN A.2), once there are any.

        From random pairs: among a retriever's best items its own scores hardly vary, and a scale
        from those alone is far from that of all items. None where there are too few.
        """
        known = self._by_chance
        if len(known) < _ENOUGH:
            return None
        inner = inner_products(queries, items, known.query, known.item)
        return Scale.match(known.score, inner)

    def dense(self) -> Anchors:
        """Scores of the train queries with every item: the index's anchors.

        Pairs that the bank has are not paid again.
        """
        spending = self.spending
        if spending.ray is not None:
            raise InputError(
                "the scores of every item are paid for on this machine, not on Ray: leave ray "
                "(--ray) out, and say how many workers score at a time"
            )
        bank = self.bank
        with bank.exclusive(), self.tell("scoring anchor queries", "pairs") as progress:
            report = self.index.add_anchors(
                self.scorer,
                self.queries,
                max_calls=spending.max_calls,
                deadline=spending.deadline,
                workers=spending.workers,
                replace=spending.rescore,
                known=bank.scores(self.queries).rows(),
                spend=bank.spend,
                progress=progress,
            )
        self.calls, self.reused, self.stopped_by = report.calls, report.reused, report.stopped_by
        self.unfinished = report.rows - report.rows_done
        anchors = self.index.anchors
        if anchors is None:
            what = f"no train query has the scores of all {self.index.n} items yet"
            raise _nothing(what, report.failed)
        n, texts = self.index.n, self.index.anchor_queries
        chance = per_query(RandomItems(n, self.seed), Queries(texts), _ENOUGH, n=n).pairs
        self._by_chance = SparseScores.of(
            texts, n, chance, anchors.scores[chance.query, chance.item]
        )
        return anchors

    def student(self) -> str | Path:
        """Where the dual encoder to distil into is: `start`, or the index's own."""
        encoder = self.index.encoder_source(self.base)
        if self.start is None and encoder is None:
            raise InputError(
                f"the vectors {self.base!r} are of no encoder that can be trained: name one to "
                "start from"
            )
        return self.start or str(encoder)

    def different(self, scores: SparseScores | Anchors) -> int:
        """Pairs of different texts: items of equal texts are paid once."""
        if isinstance(scores, SparseScores):
            return self.bank.count(scores.queries, Pairs(scores.query, scores.item))[0]
        return len(scores.scores) * len(set(self.index.items.texts))

    def cost(self, queries: int, pairs: int, fitting_seconds: float) -> IndexingCost:
        """Of vectors fitted to so many paid pairs of so many queries, whenever they were paid.

        What no run has measured (anchors that were paid for beforehand) counts as no time.
        """
        return IndexingCost(
            queries=queries,
            calls=pairs,
            vector_seconds=round(self.vector_seconds, 3),
            scoring_seconds=round(self.bank.seconds_per_pair * pairs, 3),
            fitting_seconds=round(fitting_seconds, 3),
        )

    def _plan(self) -> Plan:
        n = self.index.n
        if self.strategy == "i":
            return per_item(n, len(self.queries), self.per, seed=self.seed)
        count = min(self.per, n)
        stage = open_retriever(self.index, self.retriever or Spec(self.base), self.seed)
        with self.tell("choosing pairs", "queries") as progress:
            return per_query(
                stage,
                self.batch,
                count,
                n=n,
                random=count // 10,
                seed=self.seed,
                progress=progress,
            )

    def _collect(self, pairs: Pairs, progress: Progress | None) -> CollectReport:
        bank, spending = self.bank, self.spending
        options: dict[str, Any] = {
            "workers": spending.workers,
            "max_calls": spending.max_calls,
            "deadline": spending.deadline,
            "progress": progress,
        }
        if spending.ray is None:
            return collect(bank, self.scorer, self.queries, pairs, **options)
        from crossknn.fitting.distributed import collect_on_ray

        if self.scorer_name is None:
            raise InputError(
                "on Ray every worker opens the cross-encoder itself: give its name or folder, not "
                "an object"
            )
        address = None if spending.ray == "local" else spending.ray
        return collect_on_ray(
            bank, self.scorer_name, self.queries, pairs, address=address, **options
        )


def _nothing(what: str, failed: int) -> CrossknnError:
    if failed:
        return ScorerError(f"{what}: {failed:,} pairs were asked that could not be scored")
    return InputError(f"{what}: allow more calls or more time")
