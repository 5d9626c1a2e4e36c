"""Search over texts: drives the loop with a scorer, a clock and an index."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from crossknn.checks import as_count
from crossknn.errors import CrossknnError, InputError, ScorerError
from crossknn.methods import DEFAULT, Method
from crossknn.methods import method as as_method
from crossknn.models.library import first_line
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import GIVE_UP_AFTER
from crossknn.search.answers import hits_of, joined
from crossknn.search.loop import Search
from crossknn.search.request import allowed_items, check_counts, equal_share, query_texts
from crossknn.search.results import Results
from crossknn.search.sharing import SharedBudget
from crossknn.types import BoolArray, IntArray, Pairs, Progress, Queries

if TYPE_CHECKING:
    from crossknn.index.item_index import ItemIndex

logger = logging.getLogger(__name__)

FAILURES_IN_A_ROW = 3
"""So many queries failing one after the other, with no pair scored between, stand for a scorer
that is down."""

_CELLS = 1 << 26
"""Approximate scores held at once (m x n): 256 MB; more queries are searched in turn."""


class Searcher:
    """Searches an index with a scorer and a method.

    >>> import crossknn as ck
    >>> index = ck.ItemIndex.build(["zip a file", "sort a list", "lock a thread"], lsa=2)
    >>> overlap = lambda pairs: [len(set(q.split()) & set(t.split())) for q, t in pairs]
    >>> results = Searcher(index, overlap)("a list", k=1, budget=2)
    >>> results[0][0].text, results.calls
    ('sort a list', 2)

    Holds nothing that a search changes, so one `Searcher` serves many threads (as far as the
    scorer does; all of ours do). `scorer` may be anything `as_scorer` takes; None will do for
    methods that make no calls, such as `cmc(retriever=bm25)`.
    """

    def __init__(
        self,
        index: ItemIndex,
        scorer: Any,
        method: str | Method = DEFAULT,
        *,
        seed: int = 0,
    ) -> None:
        from crossknn.scorers import as_scorer

        if not hasattr(index, "items"):
            raise InputError(f"{index!r} is no index: open it with ItemIndex.load(folder)")
        self.index = index
        self.method = as_method(method)
        self.scorer: Scorer | None = None if scorer is None else as_scorer(scorer)
        self._check_scorer(self.method)
        self.seed = as_count(seed, "seed", 0)

    def __call__(
        self,
        queries: str | Sequence[str],
        k: int = 10,
        budget: int = 100,
        *,
        total_budget: int | None = None,
        filter: Iterable[str] | BoolArray | None = None,
        deadline_ms: float | None = None,
        method: str | Method | None = None,
        seed: int | None = None,
        trace: bool = False,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> Results:
        """The k best items of each query by exact score, for `budget` scored pairs a query.

        With `total_budget` in place of `budget` the queries share so many calls, spent where they
        are most likely to find a true top item; for methods that know how far their predictions may
        be off, `kriging` and `gp`. A query gets at least k, at most four times its equal share.
        `filter` restricts the items: ids, or a mask (n,). After `deadline_ms` milliseconds, or
        once `cancel` is set, the search stops at the next batch and returns the best so far.
        `progress(done, total)` counts scored pairs. `trace` keeps every pick, for explanations.

        A query whose pairs cannot be scored ends with the best found so far, and its error is in
        `errors`; after three such queries in a row all of them end.

        Raises InputError for a k or budget below 1, a k above the budget or the number of items,
        an empty query or an unknown id, a total budget that the method cannot share; what the
        scorer raised if no query has a single score.
        """
        chosen = self.method if method is None else as_method(method)
        self._check_scorer(chosen)
        texts = query_texts(queries)
        allowed = allowed_items(filter, self.index)
        if total_budget is not None:
            budget = equal_share(total_budget, len(texts), k)
        check_counts(k, budget if chosen.calls else k, self.index.n, deadline_ms)
        self._check_models(chosen)
        if cancel is not None and not isinstance(cancel, threading.Event):
            raise InputError(f"cancel is {cancel!r}; give a threading.Event")
        if progress is not None and not callable(progress):
            raise InputError(f"progress is {progress!r}; give a function of (done, total)")
        call = _Call(
            searcher=self,
            method=chosen,
            budget=budget,
            total=total_budget,
            k=k,
            allowed=allowed,
            seed=self.seed if seed is None else as_count(seed, "seed", 0),
            trace=trace,
            clock=_Clock(deadline_ms, cancel),
            progress=progress,
            m=len(texts),
        )
        share = len(texts) if deadline_ms is not None else max(1, _CELLS // self.index.n)
        parts = [call.run(s, texts[s : s + share]) for s in range(0, len(texts), share)]
        results = joined(parts, call.clock.elapsed())
        if call.failure is not None and not results.n_scored:
            raise call.failure
        return results

    async def asearch(self, queries: str | Sequence[str], *args: Any, **options: Any) -> Results:
        """The same search in a worker thread; cancelling the task stops it at the next batch."""
        cancel = options.setdefault("cancel", threading.Event())
        try:
            return await asyncio.to_thread(self, queries, *args, **options)
        except asyncio.CancelledError:
            cancel.set()
            raise

    def _check_scorer(self, chosen: Method) -> None:
        if self.scorer is None and chosen.calls:
            raise InputError("there is no scorer: CrossEncoder() is the bundled one")

    def _check_models(self, chosen: Method) -> None:
        """Scores kept in the index are of use only with the cross-encoder that made them."""
        mine = None if self.scorer is None else self.scorer.fingerprint
        for name in chosen.required_artifacts(self.index):
            known = self.index.scorer_of(name)
            if known is not None and known != mine and name in self.index.artifacts:
                raise InputError(
                    f"the index has learned from scores of the cross-encoder {known}, and this "
                    f"search uses {mine or 'one without a fingerprint'}: learn from those of this "
                    f"one (crossknn learn INDEX), or search with {chosen.fallback}"
                )
            if known is not None and known != mine:
                raise InputError(
                    f"the index holds scores of the cross-encoder {known}, and this search uses "
                    f"{mine or 'one without a fingerprint'}: pay for them again with this one, or "
                    f"use a method that does not read them, e.g. {chosen.fallback}"
                )


class _Clock:
    """When to stop, and how long things took."""

    def __init__(self, deadline_ms: float | None, cancel: threading.Event | None) -> None:
        self.began = time.perf_counter()
        self.limit = None if deadline_ms is None else deadline_ms / 1000
        self.cancel = cancel

    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def left(self) -> float | None:
        """Seconds left, if there is a limit."""
        return None if self.limit is None else max(0.0, self.limit - self.elapsed())

    def stop(self, ahead: float = 0.0) -> str | None:
        """Why to stop now, or `ahead` seconds from now, if there is a reason."""
        if self.cancel is not None and self.cancel.is_set():
            return "cancelled"
        late = self.limit is not None and self.elapsed() + ahead >= self.limit
        return "deadline" if late else None


@dataclass(kw_only=True)
class _Call:
    """One search: its settings, and the running count of scored pairs."""

    searcher: Searcher
    method: Method
    budget: int
    total: int | None
    k: int
    allowed: BoolArray | None
    seed: int
    trace: bool
    clock: _Clock
    progress: Progress | None
    m: int
    done: int = 0
    failure: Exception | None = None
    """The first error of the scorer, if there was one."""
    broken: str | None = None
    """Why nothing is asked of the scorer any more."""
    in_a_row: int = 0
    """Queries that failed since a pair was scored."""

    def run(self, start: int, texts: Sequence[str]) -> Results:
        """Search a batch of queries that fits into memory: those from `start`."""
        index, began = self.searcher.index, self.clock.elapsed()
        plan = self.method.plan(index, self.budget, self.seed)
        if plan.stop is not None and self.k > plan.stop.k:
            raise InputError(
                f"k is {self.k}, and the search ends when it has enough of the top {plan.stop.k}: "
                f"give the method k={self.k}, too"
            )
        if self.total is not None:
            before, until = (self.total * q // self.m for q in (start, start + len(texts)))
            plan = replace(plan, share=SharedBudget(total=until - before, k=self.k))
        search = Search(plan, Queries(texts), index.n, allowed=self.allowed)
        work = _Work(self, search, texts)
        truncated, stopped_by = self._truncated(), self.clock.stop()
        while stopped_by is None and self.broken is None:
            began_round = self.clock.elapsed()
            pairs = search.ask()
            if not len(pairs):
                break
            choosing = self.clock.elapsed() - began_round
            stopped_by = self.clock.stop() or work.score(pairs)
            if stopped_by is None and search.round > 1 and search.unfinished.any():
                stopped_by = self.clock.stop(choosing)  # the next round takes as long to choose
        if self.broken is not None:
            work.fail(range(len(texts)), self.broken)
        if any(work.errors):
            stopped_by = stopped_by or "scorer"
        return Results(
            queries=tuple(texts),
            hits=hits_of(index.items, search.best(self.k), self.method.name),
            method=str(self.method),
            budget=min(self.budget, search.budget),
            calls=work.calls,
            n_scored=int(search.n_scored.sum()),
            seconds=self.clock.elapsed() - began,
            scoring_seconds=work.seconds,
            stopped_by=stopped_by or ("target" if search.stopped.all() else "budget"),
            errors=tuple(work.errors),
            failed=search.n_failed,
            n_backfilled=int(search.n_backfilled.sum()),
            truncated=self._truncated() - truncated,
            trace=hits_of(index.items, search.picks(), self.method.name) if self.trace else None,
        )

    def _truncated(self) -> int:
        return int(getattr(self.searcher.scorer, "truncated", 0))

    def report(self, count: int, search: Search) -> None:
        self.done += count
        if self.progress:
            whole = self.m * search.budget
            self.progress(self.done, whole if self.total is None else min(self.total, whole))


class _Work:
    """The scorer's part of a search over a batch of queries: what was scored, and what failed."""

    def __init__(self, call: _Call, search: Search, texts: Sequence[str]) -> None:
        self.call, self.search, self.texts = call, search, texts
        self.calls, self.seconds = 0, 0.0
        self.errors: list[str | None] = [None] * len(texts)
        self.lost = np.zeros(len(texts), np.int64)
        """(m,) pairs asked since the last one that was scored."""

    def score(self, pairs: Pairs) -> str | None:
        """Tell the search the scores of a round's pairs; why to stop, if there is a reason.

        A query that fails is ended; the pairs of the others are asked again. Where it is not known
        which query is at fault, they are asked query by query.
        """
        waiting, stop, n_scored = [pairs], None, self.search.n_scored
        while waiting and stop is None and self.call.broken is None:
            part = waiting.pop()
            told = np.zeros(len(part), np.bool_)
            try:
                stop = self._stream(part, told)
            except Exception as error:
                rest = part.take(np.flatnonzero(~told))
                queries = np.unique(rest.query)
                at_fault = getattr(error, "query", None)
                if at_fault is None and len(queries) > 1:
                    waiting += [rest.take(np.flatnonzero(rest.query == q)) for q in queries[::-1]]
                    continue
                faulty = queries.tolist() if at_fault is None else [int(at_fault)]
                self._note(error, faulty, scored=bool(told.any()))
                if len(rest := rest.take(np.flatnonzero(~np.isin(rest.query, faulty)))):
                    waiting.append(rest)
        if stop is None:
            self._give_up(pairs, self.search.n_scored - n_scored)
        return stop

    def _give_up(self, pairs: Pairs, told: IntArray) -> None:
        """End the queries of which too many pairs in a row could not be scored."""
        asked = np.bincount(pairs.query, minlength=len(self.texts))
        self.lost = np.where(told > 0, 0, self.lost + asked)
        for query in np.flatnonzero(self.lost >= GIVE_UP_AFTER).tolist():
            self.fail([query], f"none of {self.lost[query]} pairs of this query could be scored")

    def fail(self, queries: Iterable[int], sentence: str) -> None:
        """End these queries, unless they have ended."""
        for query in queries:
            if self.errors[query] is None and self.search.unfinished[query]:
                self.errors[query] = sentence
                self.search.end(query)

    def _stream(self, pairs: Pairs, told: BoolArray) -> str | None:
        call, clock = self.call, self.call.clock
        scorer = call.searcher.scorer
        assert scorer is not None  # only a method that makes no calls does without
        started, stop = clock.elapsed(), None
        stream = scorer.score(
            pairs,
            self.texts,
            call.searcher.index.items.texts,
            time_left=clock.left(),
            cancel=clock.cancel,
        )
        try:
            for positions, scores in stream:
                self.search.tell(pairs.take(positions), scores)
                told[positions] = True
                call.in_a_row = 0
                call.report(len(positions), self.search)
                if stop := clock.stop():
                    break
        finally:
            self.calls += getattr(stream, "computed", int(told.sum()))
            getattr(stream, "close", lambda: None)()
            self.seconds += clock.elapsed() - started
        return stop or clock.stop()

    def _note(self, error: Exception, queries: Sequence[int], *, scored: bool) -> None:
        """These queries failed, after pairs of the same stream were `scored` or not."""
        call = self.call
        if not isinstance(error, CrossknnError):
            logger.debug("the scorer raised", exc_info=error)
            said = f"the scorer failed: {type(error).__name__}: {first_line(error)}"
            error, cause = ScorerError(said), error
            error.__cause__ = cause
        call.failure = call.failure or error
        call.in_a_row = 1 if scored else call.in_a_row + 1
        self.fail(queries, str(error))
        if call.in_a_row >= FAILURES_IN_A_ROW:
            call.broken = str(error)
