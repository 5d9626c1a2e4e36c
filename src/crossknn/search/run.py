"""The execution of a search, and its policy for failures.

Axes: m queries, n items, p pairs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from crossknn.data.passages import DOCUMENT
from crossknn.errors import CrossknnError, StoreError, counted, scorer_failure
from crossknn.index.database import Column
from crossknn.linalg import one_thread
from crossknn.methods.kriging import ROUNDS
from crossknn.retrievers.base import ItemPriors, RandomItems
from crossknn.scorers.streaming import GIVE_UP_AFTER, Deadline, NothingScoredError
from crossknn.scores.stored import StoredScorer
from crossknn.search.fusion import CONTEXT
from crossknn.search.loop import Search, of_retriever
from crossknn.search.request import SearchRequest
from crossknn.search.results import Hit, Results, as_documents, completed, hits_of, with_members
from crossknn.types import NO_ITEM, BoolArray, FloatArray, Pairs, Queries, Ranking

logger = logging.getLogger(__name__)

_LATE = "the deadline passed before a pair was scored"

FAILURES_IN_A_ROW = 3
"""Number of failed pairs in a row that end a query, and of failed queries that end the search."""


class FailurePolicy:
    """Decides when a search ends early: after the deadline, when cancelled, when a store fails, or
    once `FAILURES_IN_A_ROW` queries in a row have failed without a scored pair."""

    def __init__(self, request: SearchRequest) -> None:
        self.cancel, self.whole = request.cancel, Deadline(request.deadline, request.cancel)
        self.deadline = self.whole
        """The deadline of the current batch of queries; `whole` is the deadline of the request."""
        self.first_error: Exception | None = None
        self.down: str | None = None
        """The error after which no more pairs are scored, or None."""
        self.down_by, self._in_a_row = "scorer", 0

    def share(self, batches: int) -> None:
        """Give the current batch its share of the remaining time; `batches` batches are left."""
        if batches > 1 and self.whole.limited:
            self.deadline = Deadline(self.whole.left() / batches, self.cancel)

    def stop(self, ahead: float = 0.0) -> str | None:
        """Return why to stop if at most `ahead` seconds are left, or None to continue."""
        if self.deadline.left() > ahead:
            return None
        return "cancelled" if self.cancel is not None and self.cancel.is_set() else "deadline"

    def scored(self) -> None:
        """Note that a pair was scored."""
        self._in_a_row = 0

    def store_failed(self, error: StoreError) -> None:
        """Note that the items' database failed, so that no more pairs are scored."""
        self.first_error, self.down = self.first_error or error, str(error)
        self.down_by = "store"

    def query_failed(self, error: Exception, *, scored: bool) -> str:
        """Count an error of the scorer, and return its message; `scored` says whether the scorer
        had scored some of the same pairs before it."""
        if not isinstance(error, CrossknnError):
            logger.debug("the scorer raised", exc_info=error)
            error = scorer_failure(error)
        self.first_error = self.first_error or error
        self._in_a_row = 1 if scored else self._in_a_row + 1
        if self._in_a_row >= FAILURES_IN_A_ROW:
            self.down = str(error)
        return str(error)


class SearchRun:
    """The execution of a request for one batch of its queries, at the positions `rows`; `batches`
    are left, with this one."""

    def __init__(
        self, request: SearchRequest, policy: FailurePolicy, rows: range, batches: int
    ) -> None:
        self.request, self.policy, self.rows, self.batches = request, policy, rows, batches
        self.queries, m, n = request.queries.take(rows), len(rows), request.index.n
        self.scorer = request.scorer
        known = not isinstance(request.index.items.texts, Column)  # which items have equal texts
        if isinstance(self.scorer, StoredScorer) and known and len(request.plan.batches) > 1:
            self.scorer = self.scorer.of_search()
        self.cells = m * n  # of the largest matrix product
        with one_thread(self.cells):
            # Random items, or the same items for all queries, do not answer a query.
            drawn = isinstance(request.plan.retriever, ItemPriors | RandomItems)
            self.fallback = (request.fallback and not drawn) or request.found is not None
            self.search = Search(
                request.plan,
                Queries(self.queries.texts),
                n,
                allowed=request.equal_texts.left_out(n, request.allowed),
                depth=request.k if self.fallback else 0,
                groups=request.groups,
            )
        self.errors: list[str | None] = [None] * m
        self.unscored = np.zeros(m, np.int64)  # failed pairs since the last scored one
        self.n_calls, self.scoring_seconds = 0, 0.0

    @property
    def cheaper(self) -> Results | None:
        """The results of the search with a cheaper scorer, if it has run for these queries."""
        found = self.request.found
        return None if found is None else found.results(self.search.queries)

    def results(self) -> Results:
        """Run the search and return its results."""
        policy, scorer = self.policy, self.request.scorer
        truncated, spent = getattr(scorer, "truncated", 0), getattr(scorer, "spent", None)
        policy.deadline = policy.whole
        late = policy.stop() if self.batches > 1 or self.rows.start else None
        if late or (policy.down is not None and not self.fallback):
            said = policy.down or "the deadline passed before this query was searched"
            self.errors = [said for _ in self.rows]
            return self._answer([[] for _ in self.rows], late or policy.down_by)
        try:
            stopped_by = self._drive()
        finally:
            if isinstance(self.scorer, StoredScorer):
                try:
                    self.scorer.flush()
                except CrossknnError as error:
                    logger.warning("%s", error)
        if policy.down is not None:
            self._end(range(len(self.queries)), policy.down)
        if stopped_by == "deadline" and not (self.fallback or self.search.n_scored.any()):
            self._end(range(len(self.queries)), _LATE)
        if any(self.errors):
            stopped_by = stopped_by or "scorer"
        with one_thread(self.cells):
            results = self._ranked(stopped_by)
        after = getattr(scorer, "spent", None)
        cost = None if spent is None or after is None else after - spent
        truncated = getattr(scorer, "truncated", 0) - truncated
        return replace(results, truncated=truncated, cost=cost)

    def _drive(self) -> str | None:
        """Score pairs until all queries are finished, or return why the search stopped early."""
        search, policy = self.search, self.policy
        stopped_by = policy.stop()
        if (found := self.request.found) is not None:
            policy.share(self.batches)
            if stopped_by is None and found is self.request.plan.retriever:
                found.searched(search.queries)  # here, as `_ask` limits the threads
        # If the scorer fails, the first stage may still answer.
        while stopped_by is None and (policy.down is None or (self.fallback and not search.round)):
            began = time.perf_counter()
            self._limit_rounds()
            try:
                with one_thread(self.cells):
                    pairs = self._ask()
            except StoreError as error:
                policy.store_failed(error)
                return "store"
            if not len(pairs) or policy.down is not None:
                break
            if search.round == 1 and found is None:
                policy.share(self.batches)
            choosing = time.perf_counter() - began
            stopped_by = policy.stop() or self._score(pairs)
            # The next round takes as long to choose as this one.
            if stopped_by is None and search.round > 1 and search.unfinished.any():
                stopped_by = policy.stop(choosing)
        return stopped_by

    def _limit_rounds(self) -> None:
        """Make fewer rounds if the scorer's batches take long, unless their number is given or the
        search may stop between them."""
        rounds, search = getattr(self.request.scorer, "rounds", None), self.search
        is_given = getattr(self.request.method, "rounds", 0) is not None
        if callable(rounds) and not is_given and search.plan.stop is None:
            search.hurry(rounds(ROUNDS, search.budget, len(self.queries)) - search.round)

    def _ask(self) -> Pairs:
        """Return the next pairs, leaving out items of a database that have no text."""
        items = self.request.index.items
        while len(pairs := self.search.ask()) and isinstance(items.texts, Column):
            asked = np.unique(pairs.item)  # read at once, not one by one
            empty = asked[[not text for text in items.texts.fetch(asked.tolist())]]
            if len(empty):
                count, first = counted(len(empty), "item"), items.ids[int(empty[0])]
                logger.warning("left out %s without a text, the first with the id %r", count, first)
            if len(kept := pairs.take(np.flatnonzero(~np.isin(pairs.item, empty)))):
                return kept
        return pairs

    def _score(self, pairs: Pairs) -> str | None:
        """Score a round's pairs; return why the search has to stop, or None.

        A query that fails is ended, and the other queries' pairs are scored again, query by query
        if it is unknown which query failed. A query with scores continues even if no pair of a
        round can be scored, unless `FAILURES_IN_A_ROW` pairs failed in a row.
        """
        waiting, stopped_by, before = [pairs], None, self.search.n_scored
        asked = np.bincount(pairs.query, minlength=len(self.queries))
        while waiting and stopped_by is None and self.policy.down is None:
            batch = waiting.pop()
            scored = np.zeros(len(batch), np.bool_)
            try:
                stopped_by = self._stream(batch, scored)
            except Exception as error:
                left = batch.take(np.flatnonzero(~scored))
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
            some = self.search.n_scored > before
            self.unscored = np.where(some, 0, self.unscored + asked)
            for query in np.flatnonzero(self.unscored >= GIVE_UP_AFTER).tolist():
                count = self.unscored[query]
                self._end([query], f"none of {count} pairs of this query could be scored")
        return stopped_by

    def _stream(self, pairs: Pairs, scored: BoolArray) -> str | None:
        """Score pairs batch by batch, marking the scored pairs in `scored` (p,)."""
        request, scorer = self.request, self.scorer
        assert scorer is not None  # only methods that score no pairs work without a scorer
        began, stopped_by, texts = time.perf_counter(), None, request.index.items.texts
        stream = scorer.score(pairs, self.queries.texts, texts, **self.policy.deadline.rest())
        try:
            for positions, scores in stream:
                self.search.tell(pairs.take(positions), scores)
                scored[positions] = True
                self.policy.scored()
                if request.scored is not None:
                    request.scored(len(positions))
                if stopped_by := self.policy.stop():
                    break
        finally:
            self.n_calls += getattr(stream, "computed", int(scored.sum()))
            getattr(stream, "close", lambda: None)()
            self.scoring_seconds += time.perf_counter() - began
        return stopped_by or self.policy.stop()

    def _end(self, queries: Iterable[int], sentence: str) -> None:
        """End these queries, unless they have ended already."""
        unfinished = self.search.unfinished
        for query in queries:
            if self.errors[query] is None and unfinished[query]:
                self.errors[query] = sentence
                self.search.end(query)

    def _ranked(self, stopped_by: str | None) -> Results:
        """Return the k best scored items of each query, followed by items with predicted scores if
        the budget was less than k; for a query without scores, the first stage's hits."""
        request, search, calibration = self.request, self.search, self.request.calibration
        in_time = stopped_by is None or (stopped_by != "store" and self.policy.stop() is None)
        # After a search with a cheaper scorer, its hits follow instead (`completed`).
        predict = request.min_score is None and request.found is None and in_time
        ranking, members, calibrated = *self._best(predict), None
        final, none_relevant = ranking.final, None
        if calibration is not None:
            context = search.best(CONTEXT).final.astype(np.float64)
            scores = np.where(np.isnan(final), ranking.approx, final).astype(np.float64)
            calibrated = calibration.probabilities(scores, context)
            none_relevant = _or_none(calibration.none_relevant(context))
        best_scores = _or_none(np.fmax.reduce(final, axis=1, initial=-np.inf))
        if request.min_score is not None:
            ranking = ranking.where(final >= request.min_score)
        hits = self._hits(ranking, calibrated, members)
        if self.cheaper is not None and request.min_score is None:
            of = None if request.groups is None else request.groups.of
            hits = list(map(partial(completed, request.k, of), hits, self.cheaper.hits))
        if self.fallback and request.min_score is None and not all(hits):
            ranking, members = self._first()
            first = self._hits(ranking, members=members)
            hits = [own or others for own, others in zip(hits, first, strict=True)]
        stopped_by = stopped_by or ("target" if search.stopped.all() else "budget")
        if stopped_by == "deadline" and request.min_score is None:  # a cheaper scorer was late, too
            both = zip(self.errors, hits, strict=True)
            self.errors = [error or (None if own else _LATE) for error, own in both]
        trace = tuple(self._hits(search.picks())) if request.trace else None
        figures: Any = {"best_scores": best_scores, "none_relevant": none_relevant}
        return replace(self._answer(hits, stopped_by), trace=trace, **figures)

    def _best(self, predict: bool) -> tuple[Ranking, Ranking | None]:
        """Return the k best items, or the best items of the k best groups and other scored items of
        these. With `predict`, unscored items follow if the budget is below k, or if fewer than k
        groups have a score."""
        request, search, k = self.request, self.search, self.request.k
        if request.groups is None:
            find = search.filled if predict and k > request.pairs else search.best
            return request.equal_texts.put_back(find(k), k), None
        if search.plan.batches:
            ranking, members = self._grouped(search.best(search.budget))
            if not predict or (ranking.items != NO_ITEM).sum() == k * len(ranking.items):
                return ranking, members
        return self._widened(search.filled, search.budget + k)

    def _first(self) -> tuple[Ranking, Ranking | None]:
        """Return the best items or groups of the first stage."""
        request, search = self.request, self.search
        if request.groups is None or not search.round:
            return search.first(request.k), None
        top, allowed = request.plan.retriever.top, search.allowed
        find = lambda count: of_retriever(top(search.queries, count, allowed), count)  # noqa: E731
        return self._widened(find, request.k)

    def _widened(self, find: Callable[[int], Ranking], width: int) -> tuple[Ranking, Ranking]:
        """Group the first `width` items that `find` returns, or more until there are k groups."""
        n, k = self.search.n, self.request.k
        while True:
            ranking, members = self._grouped(find(width))
            if width >= n or (ranking.items != NO_ITEM).sum() == k * len(ranking.items):
                return ranking, members
            width = min(4 * width, n)

    def _grouped(self, ranking: Ranking) -> tuple[Ranking, Ranking]:
        assert self.request.groups is not None
        ranking = self.request.equal_texts.put_back(ranking, self.search.n)
        best, members = self.request.groups.best(ranking, self.request.group_size)
        return best, members.where(~np.isnan(members.scores))

    def _answer(self, hits: list[list[Hit]], stopped_by: str) -> Results:
        request, search, none = self.request, self.search, (None,) * len(hits)
        return Results(
            queries=self.queries.texts,
            query_ids=self.queries.ids,
            numbered=self.queries.numbered,
            hits=tuple(hits),
            method=str(request.method),
            budget=min(request.pairs, search.budget),
            stopped_by=stopped_by,
            errors=tuple(self.errors),
            n_calls=self.n_calls,
            n_scored=int(search.n_scored.sum()),
            rounds=int(search.picks().rounds.max(initial=0)),
            n_failed=search.n_failed,
            scoring_seconds=self.scoring_seconds,
            trace=tuple([] for _ in hits) if request.trace else None,
            min_score=request.min_score,
            best_scores=none,
            none_relevant=None if request.calibration is None else none,
            together=search.taught,
            cheaper=self.cheaper,
        )

    def _hits(
        self, ranking: Ranking, calibrated: FloatArray | None = None, members: Ranking | None = None
    ) -> list[list[Hit]]:
        of, method = self.request, self.request.method.name
        hits = hits_of(of.index.items, ranking, method, of.rung, calibrated)
        if members is None or of.groups is None:
            return hits
        if of.min_score is not None:
            members = members.where(members.final >= of.min_score)
        each = zip(hits, hits_of(of.index.items, members, method, of.rung), strict=True)
        rows = [with_members(*both, str(of.group_by), of.groups.of) for both in each]
        if of.group_by != DOCUMENT or of.index.passages is None:
            return rows
        return [as_documents(row, of.index.items) for row in rows]


def _or_none(values: FloatArray) -> tuple[float | None, ...]:
    return tuple(value if np.isfinite(value) else None for value in values.tolist())
