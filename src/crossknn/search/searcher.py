"""Search over texts: drives the loop with a scorer, a deadline and an index."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from crossknn.data.queries import QuerySet
from crossknn.errors import CrossknnError, InputError, ScorerError
from crossknn.methods import DEFAULT, Method
from crossknn.methods import method as as_method
from crossknn.models.library import first_line
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import GIVE_UP_AFTER, Deadline
from crossknn.search.loop import Search
from crossknn.search.results import Results, hits_of, joined
from crossknn.search.sharing import SharedBudget
from crossknn.types import BoolArray, IntArray, Pairs, Progress, Queries, as_count

if TYPE_CHECKING:
    from crossknn.index.item_index import ItemIndex

logger = logging.getLogger(__name__)

Texts: TypeAlias = str | Sequence[str] | Mapping[str, str] | QuerySet
"""One query, several, or several with ids."""

FAILURES_IN_A_ROW = 3
"""So many queries failing one after the other, with no pair scored between, stand for a scorer
that is down."""

PER_QUERY = 100
"""Pairs that a query may score if nothing is said."""

_CELLS = 1 << 26
"""Approximate scores held at once (m x n): 256 MB; more queries are searched in turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """What a search may spend; `searcher.search(queries, budget=50)` is short for `per_query`.

    Args:
        per_query: Pairs that a query may score, stored scores included; 100 if nothing is said.
        total: Calls that the queries share instead, spent where they are most likely to find a true
            top item. A query gets at least k, at most four times its equal share. For methods that
            know how far their predictions may be off: `kriging` and `gp`.
        deadline: Seconds after which the search returns the best so far.
        target_recall: End a query when it expects to have found this share (0-1) of its true top k,
            for `kriging`; the budget is then what it may spend at most.
    """

    per_query: int | None = None
    total: int | None = None
    deadline: float | None = None
    target_recall: float | None = None


class Searcher:
    """Searches an index with a scorer and a method.

    >>> import crossknn as ck
    >>> index = ck.ItemIndex.build(["zip a file", "sort a list", "lock a thread"], lsa=2)
    >>> overlap = lambda pairs: [len(set(q.split()) & set(t.split())) for q, t in pairs]
    >>> results = Searcher(index, overlap).search("a list", k=1, budget=2)
    >>> results[0][0].text, results.n_calls
    ('sort a list', 2)

    Holds nothing that a search changes, so one `Searcher` serves many threads (as far as the
    scorer does; all of ours do).

    Args:
        index: What is searched.
        scorer: Anything that `as_scorer` takes; None will do for methods that make no calls, such
            as `cmc(retriever=bm25)`.
        method: A method, or its spec.
        seed: Seed of all randomness, 0 or more.

    Raises:
        InputError: The index, the scorer or the method is none.
    """

    def __init__(
        self, index: ItemIndex, scorer: Any, method: str | Method = DEFAULT, *, seed: int = 0
    ) -> None:
        from crossknn.scorers import as_scorer

        if not hasattr(index, "items"):
            raise InputError(f"{index!r} is no index: open it with ItemIndex.load(folder)")
        self.index = index
        self.method = as_method(method)
        self.scorer: Scorer | None = None if scorer is None else as_scorer(scorer)
        self._check_scorer(self.method)
        self.seed = as_count(seed, "seed", 0)

    def search(
        self,
        queries: Texts,
        k: int = 10,
        budget: int | Budget = PER_QUERY,
        *,
        filter: Iterable[str] | BoolArray | None = None,
        method: str | Method | None = None,
        seed: int | None = None,
        trace: bool = False,
        progress: Progress | None = None,
        cancel: threading.Event | None = None,
    ) -> Results:
        """The k best items of each query by exact score.

        A query whose pairs cannot be scored ends with the best found so far, and its error is in
        `errors`; after three such queries in a row all of them end.

        Args:
            queries: A text, m texts, texts by id, or a `QuerySet`.
            k: Hits of each query.
            budget: Pairs that a query may score, or a `Budget`.
            filter: Ids of the items that may be returned, or a mask (n,).
            method: In the place of the searcher's own.
            seed: In the place of the searcher's own.
            trace: Keep every pick, for explanations.
            progress: Called with (done, total) scored pairs.
            cancel: Once it is set, the search stops at the next batch with the best so far.

        Raises:
            InputError: A query is empty, an id unknown, or k and the budget do not fit each other,
                the index or the method.
            ScorerError: No query has a single score (or whatever else the scorer raised).
        """
        chosen = self.method if method is None else as_method(method)
        self._check_scorer(chosen)
        ids, texts = _ids_and_texts(queries)
        allowed = _mask(filter, self.index)
        m, spend = len(texts), budget
        if not isinstance(spend, Budget):
            spend = Budget(per_query=as_count(budget, "budget"))
        pairs = _pairs_per_query(spend, m, k, self.index.n, calls=chosen.calls)
        chosen = _with_target(chosen, spend.target_recall, k)
        self._check_fingerprints(chosen)
        if cancel is not None and not isinstance(cancel, threading.Event):
            raise InputError(f"cancel is {cancel!r}; give a threading.Event")
        if progress is not None and not callable(progress):
            raise InputError(f"progress is {progress!r}; give a function of (done, total)")
        began = time.perf_counter()
        call = _Call(
            searcher=self,
            method=chosen,
            pairs=pairs,
            total=spend.total,
            k=k,
            allowed=allowed,
            seed=self.seed if seed is None else as_count(seed, "seed", 0),
            trace=trace,
            deadline=Deadline(spend.deadline, cancel),
            cancel=cancel,
            progress=progress,
            m=m,
        )
        at_once = m if spend.deadline is not None else max(1, _CELLS // self.index.n)
        parts = [
            call.run(s, ids[s : s + at_once], texts[s : s + at_once]) for s in range(0, m, at_once)
        ]
        results = joined(parts, time.perf_counter() - began)
        if call.failure is not None and not results.n_scored:
            raise call.failure
        return results

    async def asearch(self, queries: Texts, *args: Any, **options: Any) -> Results:
        """`search` in a worker thread; cancelling the task stops it at the next batch."""
        cancel = options.setdefault("cancel", threading.Event())
        try:
            return await asyncio.to_thread(self.search, queries, *args, **options)
        except asyncio.CancelledError:
            cancel.set()
            raise

    def _check_scorer(self, chosen: Method) -> None:
        if self.scorer is None and chosen.calls:
            raise InputError("there is no scorer: CrossEncoder() is the bundled one")

    def _check_fingerprints(self, chosen: Method) -> None:
        """Scores kept in the index are of use only with the cross-encoder that made them."""
        mine = None if self.scorer is None else self.scorer.fingerprint
        for name in chosen.required_artifacts(self.index):
            known = self.index.scorer_of(name)
            if known is None or known == mine:
                continue
            here = mine or "one without a fingerprint"
            if name in self.index.artifacts and name not in ("anchors", "item_scores"):
                raise InputError(
                    f"the index was fitted to scores of the cross-encoder {known}, and this "
                    f"search uses {here}: fit to those of this one (crossknn fit INDEX log), or "
                    f"search with {chosen.fallback}"
                )
            raise InputError(
                f"the index holds scores of the cross-encoder {known}, and this search uses "
                f"{here}: collect them with this one, or use a method that does not read "
                f"them, e.g. {chosen.fallback}"
            )


@dataclass(kw_only=True)
class _Call:
    """One search: its settings, the running count of scored pairs, and what went wrong."""

    searcher: Searcher
    method: Method
    pairs: int
    total: int | None
    k: int
    allowed: BoolArray | None
    seed: int
    trace: bool
    deadline: Deadline
    cancel: threading.Event | None
    progress: Progress | None
    m: int
    done: int = 0
    failure: Exception | None = None  # the first error of the scorer
    broken: str | None = None  # why nothing is asked of the scorer any more
    in_a_row: int = 0  # queries that failed since a pair was scored

    def run(self, start: int, ids: tuple[str, ...], texts: tuple[str, ...]) -> Results:
        """Search a batch of queries that fits into memory: those from `start`."""
        searcher, began = self.searcher, time.perf_counter()
        plan = self._plan(start, start + len(texts))
        search = Search(plan, Queries(texts), searcher.index.n, allowed=self.allowed)
        scoring = _Scoring(self, search, texts)
        truncated = self._truncated()
        stopped_by = self._drive(search, scoring)
        if self.broken is not None:
            scoring.fail(range(len(texts)), self.broken)
        if any(scoring.errors):
            stopped_by = stopped_by or "scorer"
        items, name = searcher.index.items, self.method.name
        return Results(
            queries=texts,
            query_ids=ids,
            hits=hits_of(items, search.best(self.k), name),
            method=str(self.method),
            budget=min(self.pairs, search.budget),
            n_calls=scoring.calls,
            n_scored=int(search.n_scored.sum()),
            seconds=time.perf_counter() - began,
            scoring_seconds=scoring.seconds,
            stopped_by=stopped_by or ("target" if search.stopped.all() else "budget"),
            errors=tuple(scoring.errors),
            n_failed=search.n_failed,
            n_backfilled=int(search.n_backfilled.sum()),
            truncated=self._truncated() - truncated,
            trace=hits_of(items, search.picks(), name) if self.trace else None,
        )

    def _plan(self, start: int, stop: int) -> Any:
        plan = self.method.plan(self.searcher.index, self.pairs, self.seed)
        if plan.stop is not None and self.k > plan.stop.k:
            raise InputError(
                f"k is {self.k}, and the search ends when it has enough of the top {plan.stop.k}: "
                f"give the method k={self.k}, too"
            )
        if self.total is None:
            return plan
        before, until = (self.total * q // self.m for q in (start, stop))
        return replace(plan, share=SharedBudget(total=until - before, k=self.k))

    def _drive(self, search: Search, scoring: _Scoring) -> str | None:
        """Ask and tell to the end; why it was stopped, if it was."""
        stopped_by = self.stop()
        while stopped_by is None and self.broken is None:
            began = time.perf_counter()
            pairs = search.ask()
            if not len(pairs):
                break
            choosing = time.perf_counter() - began
            stopped_by = self.stop() or scoring.score(pairs)
            if stopped_by is None and search.round > 1 and search.unfinished.any():
                stopped_by = self.stop(choosing)  # the next round takes as long to choose
        return stopped_by

    def stop(self, ahead: float = 0.0) -> str | None:
        """Why to stop now, or `ahead` seconds from now, if there is a reason."""
        if self.deadline.left() > ahead:
            return None
        return "cancelled" if self.cancel is not None and self.cancel.is_set() else "deadline"

    def _truncated(self) -> int:
        return int(getattr(self.searcher.scorer, "truncated", 0))

    def report(self, count: int, search: Search) -> None:
        self.done += count
        if self.progress:
            whole = self.m * search.budget
            self.progress(self.done, whole if self.total is None else min(self.total, whole))


class _Scoring:
    """The scorer's part of a search over a batch of queries: what was scored, and what failed."""

    def __init__(self, call: _Call, search: Search, texts: Sequence[str]) -> None:
        self.call, self.search, self.texts = call, search, texts
        self.calls, self.seconds = 0, 0.0
        self.errors: list[str | None] = [None] * len(texts)
        self.unscored = np.zeros(len(texts), np.int64)  # pairs asked since the last scored one

    def score(self, pairs: Pairs) -> str | None:
        """Tell the search the scores of a round's pairs; why to stop, if there is a reason.

        A query that fails is ended; the pairs of the others are asked again. Where it is not known
        which query is at fault, they are asked query by query.
        """
        waiting, stop, before = [pairs], None, self.search.n_scored
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
                self._record(error, faulty, scored=bool(told.any()))
                if len(rest := rest.take(np.flatnonzero(~np.isin(rest.query, faulty)))):
                    waiting.append(rest)
        if stop is None:
            self._give_up(pairs, self.search.n_scored - before)
        return stop

    def fail(self, queries: Iterable[int], sentence: str) -> None:
        """End these queries, unless they have ended."""
        for query in queries:
            if self.errors[query] is None and self.search.unfinished[query]:
                self.errors[query] = sentence
                self.search.end(query)

    def _give_up(self, pairs: Pairs, scored: IntArray) -> None:
        """End the queries of which too many pairs in a row could not be scored."""
        asked = np.bincount(pairs.query, minlength=len(self.texts))
        self.unscored = np.where(scored > 0, 0, self.unscored + asked)
        for query in np.flatnonzero(self.unscored >= GIVE_UP_AFTER).tolist():
            count = self.unscored[query]
            self.fail([query], f"none of {count} pairs of this query could be scored")

    def _stream(self, pairs: Pairs, told: BoolArray) -> str | None:
        """Score pairs batch by batch; `told` (p,) is set where that is done."""
        call, items = self.call, self.call.searcher.index.items.texts
        scorer = call.searcher.scorer
        assert scorer is not None  # only a method that makes no calls does without
        began, stop = time.perf_counter(), None
        stream = scorer.score(pairs, self.texts, items, **call.deadline.rest())
        try:
            for positions, scores in stream:
                self.search.tell(pairs.take(positions), scores)
                told[positions] = True
                call.in_a_row = 0
                call.report(len(positions), self.search)
                if stop := call.stop():
                    break
        finally:
            self.calls += getattr(stream, "computed", int(told.sum()))
            getattr(stream, "close", lambda: None)()
            self.seconds += time.perf_counter() - began
        return stop or call.stop()

    def _record(self, error: Exception, queries: Sequence[int], *, scored: bool) -> None:
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


def _with_target(method: Method, target_recall: float | None, k: int) -> Method:
    """The method that ends a query at this share of its top k; the same one without a target."""
    if target_recall is None:
        return method
    if "target_recall" not in {option.name for option in fields(method)}:
        raise InputError(
            f"{method.name} does not say how much it expects to have found: use kriging, or leave "
            "target_recall out"
        )
    return replace(method, target_recall=target_recall, k=k)  # type: ignore[call-arg]


def _ids_and_texts(queries: Texts) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The queries' ids and texts; `InputError` for none, or for one that is empty."""
    if isinstance(queries, str):
        queries = [queries]
    if isinstance(queries, Mapping):
        ids, texts = tuple(map(str, queries)), tuple(queries.values())
    elif isinstance(queries, QuerySet):
        ids, texts = queries.ids, queries.texts
    elif isinstance(queries, Sequence):
        ids, texts = tuple(map(str, range(len(queries)))), tuple(queries)
    else:
        raise InputError(f"queries are {queries!r}; give a text or a list of texts")
    if not texts:
        raise InputError("there are no queries")
    for position, text in enumerate(texts):
        if not isinstance(text, str) or not text.strip():
            raise InputError(
                f"query {position} is {text!r}; a query must be a text that is not empty"
            )
    return ids, texts


def _pairs_per_query(budget: Budget, m: int, k: int, n: int, *, calls: bool) -> int:
    """Pairs that each of m queries may score of n items, or its equal share of them."""
    as_count(k, "k")
    if not calls:
        pairs = k
    elif budget.total is None:
        pairs = as_count(PER_QUERY if budget.per_query is None else budget.per_query, "budget")
    else:
        pairs = _equal_share(budget, m, k)
    if k > n:
        raise InputError(f"k is {k}, but the index has {n} items")
    if k > pairs:
        raise InputError(
            f"k is {k}, but a budget of {pairs} calls reveals {pairs} items at most: "
            "raise the budget or lower k"
        )
    limit = budget.deadline
    if limit is not None and (
        not isinstance(limit, Real) or isinstance(limit, bool) or not limit > 0
    ):
        raise InputError(f"deadline is {limit!r}; it must be above 0")
    return pairs


def _equal_share(budget: Budget, m: int, k: int) -> int:
    if budget.per_query is not None:
        raise InputError("the budget has a total and pairs per query: give one of them")
    share = as_count(budget.total, "total_budget") // m
    if k > share:
        raise InputError(
            f"k is {k}, but a total_budget of {budget.total} for {m} queries is {share} calls "
            "each: raise it or lower k"
        )
    return share


def _mask(filter: Iterable[str] | BoolArray | None, index: ItemIndex) -> BoolArray | None:
    """A mask (n,) of the items of some ids, or a mask as it is; `InputError` if none is allowed."""
    if filter is None:
        return None
    if isinstance(filter, str) or not isinstance(filter, Iterable):
        shown = f"the text {filter!r}" if isinstance(filter, str) else repr(filter)
        raise InputError(f"the filter is {shown}; give a list of ids or a mask")
    if isinstance(filter, list) and filter and all(isinstance(f, bool) for f in filter):
        filter = np.array(filter)
    if isinstance(filter, np.ndarray) and filter.dtype == np.bool_:
        allowed = filter
        if allowed.shape != (index.n,):
            raise InputError(f"the filter has shape {allowed.shape}; the index has {index.n} items")
    else:
        allowed = np.zeros(index.n, np.bool_)
        allowed[index.items.positions(filter)] = True
    if not allowed.any():
        raise InputError("the filter allows no item")
    return allowed
