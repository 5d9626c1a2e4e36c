"""A search request, its execution, and its policy for failures.

Axes: m queries, n items, p pairs.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from crossknn.data.queries import QuerySet
from crossknn.errors import (
    CrossknnError,
    InputError,
    ScorerError,
    StoreError,
    counted,
    scorer_failure,
)
from crossknn.index.database import Column
from crossknn.linalg import one_thread
from crossknn.methods.base import Method, planned
from crossknn.methods.plan import Plan
from crossknn.retrievers.base import ItemPriors, RandomItems
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import GIVE_UP_AFTER, Deadline, NothingScoredError
from crossknn.search.calibration import CONTEXT, Calibration
from crossknn.search.fusion import Fusion
from crossknn.search.loop import Search, SearchGroup
from crossknn.search.results import EqualTexts, Hit, Results, hits_of, merged
from crossknn.types import (
    BoolArray,
    FloatArray,
    Pairs,
    Progress,
    Ranking,
)

if TYPE_CHECKING:
    from crossknn.index.item_index import ItemIndex

logger = logging.getLogger(__name__)

OnRound: TypeAlias = Callable[[int, list[list[Hit]]], None]

FAILURES_IN_A_ROW = 3
"""The scorer is taken to be down after this many failed queries (or pairs of a query) in a row."""
AT_ONCE = 1 << 26
"""Maximum number of approximate scores held at once (m x n), 256 MB; further queries are searched
afterwards."""
QUERIES, CHARACTERS, CELLS = 8, 8_192, 1 << 21
"""Maximum work between two checks of the clock: queries, characters of their texts, and approximate
scores (m x n)."""


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class SearchRequest:
    """The arguments of a search, checked; see `Searcher.search` for the fields.

    `pairs` is the budget per query, and `allowed` the mask (n,) of the filter.
    """

    queries: QuerySet
    method: Method
    k: int
    pairs: int
    allowed: BoolArray | None
    seed: int
    deadline: float | None
    min_score: float | None = None
    trace: bool = False
    progress: Progress | None = None
    cancel: threading.Event | None = None
    on_round: OnRound | None = None
    fallback: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot:
    """The data that a search reads: the index as it was at the start, with the fits of one
    scorer."""

    index: ItemIndex
    scorer: Scorer | None
    fusion: Fusion | None
    calibration: Calibration | None

    def plan(self, request: SearchRequest) -> Plan:
        """Return the method's plan; with fusion, it searches for the top k by final score."""
        plan = planned(request.method, self.index, request.pairs, request.seed)
        if plan.stop is not None and request.k > plan.stop.k:
            raise InputError(
                f"k is {request.k}, but the method's target_recall refers to the top "
                f"{plan.stop.k}: give the method k={request.k}, too"
            )
        return plan if self.fusion is None else self.fusion.plan(plan)

    def equal_texts(self, request: SearchRequest) -> EqualTexts:
        """Return the items that share the score of another item with the same text."""
        items, none = self.index.items, np.zeros(0, np.int64)
        fits = request.allowed is None or request.allowed.shape == (len(items),)
        reads_texts = request.method.calls and getattr(self.scorer, "reads_texts", True)
        # Texts in a database are not compared. `Search` refuses a mask of the wrong length.
        if not fits or not reads_texts or isinstance(items.texts, Column):
            return EqualTexts(none, none)
        return EqualTexts.among(items.alike, request.allowed)


class FailurePolicy:
    """Decides when a search ends early: after the deadline, when cancelled, or when the scorer or a
    store is down.

    A query that fails is ended, and the others continue. The scorer counts as down once
    `FAILURES_IN_A_ROW` queries have failed without any scored pair in between.
    """

    def __init__(self, request: SearchRequest) -> None:
        self.deadline, self.cancel = Deadline(request.deadline, request.cancel), request.cancel
        self.first_error: Exception | None = None
        self.down: str | None = None
        """Why no more pairs are asked for."""
        self._in_a_row = 0

    @property
    def watches(self) -> bool:
        """Whether a search may have to end before its budget is spent."""
        return self.deadline.limited or self.cancel is not None

    def stop(self, ahead: float = 0.0) -> str | None:
        """Return the reason to stop now, or `ahead` seconds from now; None if there is none."""
        if self.deadline.left() > ahead:
            return None
        return "cancelled" if self.cancel is not None and self.cancel.is_set() else "deadline"

    def half_the_time(self) -> Callable[[bool], bool]:
        """Return a function that allows a group to ask one more search while half of the remaining
        time suffices; the first is always allowed before the deadline."""
        until = time.monotonic() + self.deadline.left() / 2

        def go_on(some: bool) -> bool:
            return self.deadline.left() > 0 and not (some and time.monotonic() > until)

        return go_on if self.watches else lambda some: True

    def scored(self) -> None:
        """Note that a pair was scored."""
        self._in_a_row = 0

    def store_failed(self, error: StoreError) -> None:
        """Note that the items' database failed, so that no more pairs are asked for."""
        self.first_error, self.down = self.first_error or error, str(error)

    def query_failed(self, error: Exception, *, scored: bool) -> str:
        """Count an error of the scorer; `scored` says whether the same call had scored pairs.
        Return the message for the queries that failed."""
        if not isinstance(error, CrossknnError):
            logger.debug("the scorer raised", exc_info=error)
            error = scorer_failure(error)
        self.first_error = self.first_error or error
        self._in_a_row = 1 if scored else self._in_a_row + 1
        if self._in_a_row >= FAILURES_IN_A_ROW:
            self.down = str(error)
        return str(error)


def few_at_a_time(texts: Sequence[str], n: int) -> list[int]:
    """Return the position of each search's first query in a group.

    The first stage, encoding queries and predicting for many queries take longer than a deadline
    allows, so each search must be small enough for a check of the clock in between.
    """
    most, starts, length = max(1, min(QUERIES, CELLS // max(n, 1))), [0], 0
    for q, text in enumerate(texts):
        if q - starts[-1] >= most or (q > starts[-1] and length + len(text) > CHARACTERS):
            starts.append(q)
            length = 0
        length += len(text)
    return starts


class SearchRun:
    """One execution of a request, for queries that fit into memory together.

    `told` is the number of the request's pairs that were scored before.
    """

    def __init__(
        self,
        snapshot: Snapshot,
        request: SearchRequest,
        queries: QuerySet,
        policy: FailurePolicy,
        told: int,
    ) -> None:
        self.snapshot, self.request, self.policy, self.told = snapshot, request, policy, told
        self.queries, m, n = queries, len(queries), snapshot.index.n
        self.equal_texts = snapshot.equal_texts(request)
        with one_thread(m * n):
            plan = snapshot.plan(request)
            # Random items, or items that are the same for all queries, are no answer.
            drawn = isinstance(plan.retriever, ItemPriors | RandomItems)
            self.fallback = request.fallback and not drawn
            self.divided = m > 1 and policy.watches
            self.group = SearchGroup(
                plan,
                queries.texts,
                n,
                starts=few_at_a_time(queries.texts, n) if self.divided else [0],
                allowed=self.equal_texts.left_out(n, request.allowed),
                depth=request.k if self.fallback else 0,
            )
        self.cells = m * n // len(self.group.searches)  # of a product
        self.errors: list[str | None] = [None] * m
        self.unscored = np.zeros(m, np.int64)  # pairs asked since the last scored one
        self.n_calls, self.scoring_seconds = 0, 0.0

    def results(self) -> Results:
        """Run the search and return its results."""
        truncated = getattr(self.snapshot.scorer, "truncated", 0)
        stopped_by = self._drive()
        with one_thread(self.cells):
            found = self._answered(stopped_by)
        return replace(found, truncated=getattr(self.snapshot.scorer, "truncated", 0) - truncated)

    def _drive(self) -> str | None:
        """Ask for and score pairs until all queries are finished; return the reason if it stopped
        earlier."""
        group, policy = self.group, self.policy
        stopped_by = policy.stop()
        while stopped_by is None and policy.down is None:
            began = time.perf_counter()
            try:
                with one_thread(self.cells):
                    pairs = self._ask()
            except StoreError as error:
                policy.store_failed(error)
                return "store"
            if not len(pairs):
                return policy.stop() if group.each("unfinished").any() else None
            choosing = time.perf_counter() - began
            stopped_by = policy.stop() or self._score(pairs)
            if self.request.on_round is not None:
                self.request.on_round(group.round, self._latest())
            if stopped_by is None and group.round > 1:
                # The next round takes as long to choose as this one, unless the group checks the
                # clock.
                late = policy.stop(0.0 if self.divided else choosing)
                stopped_by = late if late and group.each("unfinished").any() else None
        return stopped_by

    def _ask(self) -> Pairs:
        """Return the next pairs and read their texts; items of a database with empty texts are left
        out."""
        items, go_on = self.snapshot.index.items, self.policy.half_the_time
        while len(pairs := self.group.ask(go_on())) and isinstance(items.texts, Column):
            asked = np.unique(pairs.item)  # read at once, not one by one
            empty = asked[[not text for text in items.texts.fetch(asked.tolist())]]
            if len(empty):
                count, first = counted(len(empty), "item"), items.ids[int(empty[0])]
                logger.warning("left out %s without a text, the first with the id %r", count, first)
            if len(kept := pairs.take(np.flatnonzero(~np.isin(pairs.item, empty)))):
                return kept
        return pairs

    def _score(self, pairs: Pairs) -> str | None:
        """Score a round's pairs; return the reason to stop, if there is one.

        A query that fails is ended, and the pairs of the others are asked again. If it is unknown
        which query failed, queries are asked one by one. A query with scores continues even if none
        of a round's pairs can be scored, unless `FAILURES_IN_A_ROW` pairs failed in a row.
        """
        waiting, stopped_by, before = [pairs], None, self.group.each("n_scored")
        asked = np.bincount(pairs.query, minlength=len(self.queries))
        while waiting and stopped_by is None and self.policy.down is None:
            part = waiting.pop()
            scored = np.zeros(len(part), np.bool_)
            try:
                stopped_by = self._stream(part, scored)
            except Exception as error:
                left = part.take(np.flatnonzero(~scored))
                if isinstance(error, NothingScoredError):
                    # A round may be a single pair, whose failure is not enough to end a query with
                    # scores.
                    ends = (before == 0) | (self.unscored + asked >= FAILURES_IN_A_ROW)
                    left = left.take(np.flatnonzero(ends[left.query]))
                    if not len(left):
                        continue
                queries, at_fault = np.unique(left.query), getattr(error, "query", None)
                if at_fault is None and len(queries) > 1:
                    waiting += [left.take(np.flatnonzero(left.query == q)) for q in queries[::-1]]
                    continue
                faulty = queries.tolist() if at_fault is None else [int(at_fault)]
                self._end(faulty, self.policy.query_failed(error, scored=bool(scored.any())))
                if len(others := left.take(np.flatnonzero(~np.isin(left.query, faulty)))):
                    waiting.append(others)
        if stopped_by is None:
            some = self.group.each("n_scored") > before
            self.unscored = np.where(some, 0, self.unscored + asked)
            for query in np.flatnonzero(self.unscored >= GIVE_UP_AFTER).tolist():
                count = self.unscored[query]
                self._end([query], f"none of {count} pairs of this query could be scored")
        return stopped_by

    def _stream(self, pairs: Pairs, scored: BoolArray) -> str | None:
        """Score pairs batch by batch, marking the finished ones in `scored` (p,)."""
        scorer, items = self.snapshot.scorer, self.snapshot.index.items.texts
        assert scorer is not None  # only a method that makes no calls does without
        began, stopped_by = time.perf_counter(), None
        stream = scorer.score(pairs, self.queries.texts, items, **self.policy.deadline.rest())
        try:
            for positions, scores in stream:
                self.group.tell(pairs.take(positions), scores)
                scored[positions] = True
                self.policy.scored()
                self.told += len(positions)
                if self.request.progress is not None:
                    budget = self.group.searches[0].budget
                    self.request.progress(self.told, len(self.request.queries) * budget)
                if stopped_by := self.policy.stop():
                    break
        finally:
            self.n_calls += getattr(stream, "computed", int(scored.sum()))
            getattr(stream, "close", lambda: None)()
            self.scoring_seconds += time.perf_counter() - began
        return stopped_by or self.policy.stop()

    def _end(self, queries: Iterable[int], sentence: str) -> None:
        """End these queries, unless they have ended already."""
        unfinished = self.group.each("unfinished")
        for query in queries:
            if self.errors[query] is None and unfinished[query]:
                self.errors[query] = sentence
                self.group.end(query)

    def _latest(self) -> list[list[Hit]]:
        """Return each query's hits that were scored in the last round."""
        found = list[list[Hit]]()
        for number, search in enumerate(self.group.searches):
            asked = number in self.group.asked
            found += self._hits(search.latest() if asked else Ranking.empty(len(search.queries)))
        return found

    def _answered(self, stopped_by: str | None) -> Results:
        """Return the results, given the reason for stopping, if there is one."""
        request, group, policy = self.request, self.group, self.policy
        if policy.down is not None:
            self._end(range(len(self.queries)), policy.down)
        if any(self.errors):
            stopped_by = stopped_by or "scorer"
        hits, trace = list[list[Hit]](), list[list[Hit]]()
        best_scores, none_relevant = list[float | None](), list[float | None]()
        for number, search in enumerate(group.searches):
            ranking = self._ranking(number, stopped_by)
            ranking, calibrated = self.equal_texts.put_back(ranking, request.k), None
            final, calibration = ranking.final, self.snapshot.calibration
            if calibration is not None:
                context = search.best(CONTEXT).final.astype(np.float64)
                scores = np.where(np.isnan(final), ranking.approx, final).astype(np.float64)
                calibrated = calibration.probabilities(scores, context)
                none_relevant += _or_none(calibration.none_relevant(context))
            best_scores += _or_none(np.fmax.reduce(final, axis=1, initial=-np.inf))
            if request.min_score is not None:
                ranking = ranking.where(final >= request.min_score)
            hits += self._with_fallback(search, self._hits(ranking, calibrated))
            trace += self._hits(search.picks()) if request.trace else ()
        if self.divided and len(late := group.not_begun()):
            stopped_by = stopped_by or policy.stop() or "deadline"
            for query in late.tolist():
                said = "the time was up before this query was searched"
                self.errors[query] = self.errors[query] or said
        return Results(
            queries=self.queries.texts,
            query_ids=self.queries.ids,
            numbered=self.queries.numbered,
            hits=tuple(hits),
            method=str(request.method),
            budget=min(request.pairs, group.searches[0].budget),
            stopped_by=stopped_by or ("target" if group.each("stopped").all() else "budget"),
            errors=tuple(self.errors),
            n_calls=self.n_calls,
            n_scored=int(group.each("n_scored").sum()),
            n_failed=sum(search.n_failed for search in group.searches),
            n_backfilled=int(group.each("n_backfilled").sum()),
            scoring_seconds=self.scoring_seconds,
            trace=tuple(trace) if request.trace else None,
            min_score=request.min_score,
            best_scores=tuple(best_scores),
            none_relevant=None if self.snapshot.calibration is None else tuple(none_relevant),
        )

    def _ranking(self, number: int, stopped_by: str | None) -> Ranking:
        """Return the k best items of each query of one search, followed by predicted ones if the
        budget was less than k; nothing if the deadline came before its first stage."""
        request, search, left = self.request, self.group.searches[number], self.policy.deadline.left
        if not search.plan.batches:
            if self.divided and left() <= 0:
                return Ranking.empty(len(search.queries))
            self.group.begun.add(number)
        in_time = left() > 0 or (stopped_by is None and not self.divided)
        fill = request.min_score is None and request.k > request.pairs and stopped_by != "store"
        return search.filled(request.k) if fill and in_time else search.best(request.k)

    def _with_fallback(self, search: Search, hits: list[list[Hit]]) -> list[list[Hit]]:
        """Return the hits, or those of the first stage if there are none."""
        if not self.fallback or all(hits):
            return hits
        first, lacking = search.first(self.request.k), np.array([not own for own in hits])
        others = self._hits(first.where(np.broadcast_to(lacking[:, None], first.items.shape)))
        return [own or other for own, other in zip(hits, others, strict=True)]

    def _hits(self, ranking: Ranking, calibrated: FloatArray | None = None) -> list[list[Hit]]:
        return hits_of(self.snapshot.index.items, ranking, self.request.method.name, calibrated)


def _or_none(values: FloatArray) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]


def execute(snapshot: Snapshot, request: SearchRequest) -> Results:
    """Execute a request, for as many queries at once as fit into memory.

    Raises the first error of the scorer or a store if no pair could be scored.
    """
    began, policy, parts = time.perf_counter(), FailurePolicy(request), list[Results]()
    m = len(request.queries)
    at_once = m if policy.deadline.limited else max(1, AT_ONCE // snapshot.index.n)
    for start in range(0, m, at_once):
        queries = request.queries.take(range(start, min(start + at_once, m)))
        told = sum(part.n_scored for part in parts)
        parts.append(SearchRun(snapshot, request, queries, policy, told).results())
    results, error = merged(parts), policy.first_error
    forgiven = request.fallback and isinstance(error, ScorerError)
    if error is not None and not results.n_scored and not forgiven:
        raise error
    return replace(results, seconds=time.perf_counter() - began)
