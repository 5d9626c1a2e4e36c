"""Search over texts: drives the loop with a scorer, a clock and an index."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from crossknn.answers import hits_of, joined
from crossknn.errors import InputError
from crossknn.indexes.learned import LEARNED
from crossknn.methods import DEFAULT, Method
from crossknn.methods import method as as_method
from crossknn.predictors.sharing import Share
from crossknn.request import allowed_items, check_counts, equal_share, query_texts
from crossknn.results import Results
from crossknn.scorers.base import Scorer
from crossknn.scorers.robust import NothingScoredError
from crossknn.search import Search
from crossknn.types import BoolArray, Progress, Queries

if TYPE_CHECKING:
    from crossknn.indexes.item_index import ItemIndex

logger = logging.getLogger(__name__)

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
    methods that make no calls, such as `cmc(first=bm25)`.
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
        self.seed = seed

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

        Raises InputError for a k or budget below 1, a k above the budget or the number of items,
        an empty query or an unknown id, a total budget that the method cannot share; ScorerError if
        nothing could be scored.
        """
        chosen = self.method if method is None else as_method(method)
        self._check_scorer(chosen)
        texts = query_texts(queries)
        allowed = allowed_items(filter, self.index)
        if total_budget is not None:
            budget = equal_share(total_budget, len(texts), k)
        check_counts(k, budget if chosen.calls else k, self.index.n, deadline_ms)
        self._check_models(chosen)
        call = _Call(
            searcher=self,
            method=chosen,
            budget=budget,
            total=total_budget,
            k=k,
            allowed=allowed,
            seed=self.seed if seed is None else seed,
            trace=trace,
            clock=_Clock(deadline_ms, cancel),
            progress=progress,
            m=len(texts),
        )
        share = len(texts) if deadline_ms is not None else max(1, _CELLS // self.index.n)
        parts = [call.run(s, texts[s : s + share]) for s in range(0, len(texts), share)]
        return joined(parts, call.clock.elapsed())

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
        for name in chosen.reads(self.index):
            known = self.index.scorer_of(name)
            if known is not None and known != mine and name == LEARNED:
                raise InputError(
                    f"the index has learned from scores of the cross-encoder {known}, and this "
                    f"search uses {mine or 'one without a fingerprint'}: learn from those of this "
                    f"one (crossknn learn INDEX), or search with {chosen.unread}"
                )
            if known is not None and known != mine:
                raise InputError(
                    f"the index holds scores of the cross-encoder {known}, and this search uses "
                    f"{mine or 'one without a fingerprint'}: pay for them again with this one, or "
                    f"use a method that does not read them, e.g. {chosen.unread}"
                )


class _Clock:
    """When to stop, and how long things took."""

    def __init__(self, deadline_ms: float | None, cancel: threading.Event | None) -> None:
        self.began = time.perf_counter()
        self.limit = None if deadline_ms is None else deadline_ms / 1000
        self.cancel = cancel

    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    def stop(self) -> str | None:
        """Why to stop now, if there is a reason."""
        if self.cancel is not None and self.cancel.is_set():
            return "cancelled"
        return "deadline" if self.limit is not None and self.elapsed() >= self.limit else None


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
            plan = replace(plan, share=Share(total=until - before, k=self.k))
        search = Search(plan, Queries(texts), index.n, allowed=self.allowed)
        calls, scoring, stopped_by, truncated = 0, 0.0, None, self._truncated()
        scorer = self.searcher.scorer
        while stopped_by is None and len(pairs := search.ask()):
            assert scorer is not None  # only a method that makes no calls does without
            started = self.clock.elapsed()
            stream = scorer.score(pairs, texts, index.items.texts)
            told = 0
            try:
                for positions, scores in stream:
                    search.tell(pairs.take(positions), scores)
                    told += len(positions)
                    self._report(len(positions), search)
                    stopped_by = self.clock.stop()
                    if stopped_by:
                        break
            except NothingScoredError as error:
                if not search.revealed.any():
                    raise
                logger.warning("%s; returning what was found before", error)
                stopped_by = "scorer"
            calls += getattr(stream, "computed", told)
            getattr(stream, "close", lambda: None)()
            scoring += self.clock.elapsed() - started
        return Results(
            queries=tuple(texts),
            hits=hits_of(index.items, search.best(self.k), self.method.name),
            method=str(self.method),
            budget=min(self.budget, search.budget),
            calls=calls,
            revealed=int(search.revealed.sum()),
            seconds=self.clock.elapsed() - began,
            scoring_seconds=scoring,
            stopped_by=stopped_by or ("target" if search.stopped.all() else "budget"),
            failed=search.given_up,
            topped_up=int(search.topped_up.sum()),
            truncated=self._truncated() - truncated,
            trace=hits_of(index.items, search.picks(), self.method.name) if self.trace else None,
        )

    def _truncated(self) -> int:
        return int(getattr(self.searcher.scorer, "truncated", 0))

    def _report(self, count: int, search: Search) -> None:
        self.done += count
        if self.progress:
            whole = self.m * search.budget
            self.progress(self.done, whole if self.total is None else min(self.total, whole))
