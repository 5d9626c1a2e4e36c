"""The loop all methods share: ask which pairs to score next, tell their exact scores.

    search = Search(plan, queries, n)
    while len(pairs := search.ask()):
        search.tell(pairs, scores_of(pairs))
    search.best(k=10)

Pure: no clock, no device, no text. Deadlines, asynchronous scorers and remote workers live outside.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.search.plan import Plan, most_of
from crossknn.search.sharing import expected_recall, shared, z_scores
from crossknn.types import (
    NO_ITEM,
    BoolArray,
    Candidates,
    FloatArray,
    IntArray,
    Observed,
    Pairs,
    Queries,
    Ranking,
)

_A = TypeVar("_A", bound=np.ndarray[Any, Any])

_EMPTY = (NO_ITEM, np.nan, 0, np.nan, np.nan)
"""What fills the arrays of a `Ranking` where there is no item."""


class Search:
    """Budgeted search over m queries and n items.

    Every query reveals min(budget, allowed items) distinct pairs, unless it stops early or pairs
    cannot be scored: what was asked and is not told by the next `ask` has failed, is not charged,
    and another item takes its place. Queries with a shared budget reveal its total, or all that
    they may.

    Args:
        plan: What a method planned.
        queries: m queries.
        n: Number of items.
        allowed: Mask (n,) of the items that may be scored; None: all.

    Raises:
        InputError: The mask does not fit, or the queries cannot share the plan's budget: the
            predictor knows no deviations, or the total is below one for each.
    """

    def __init__(
        self, plan: Plan, queries: Queries, n: int, *, allowed: BoolArray | None = None
    ) -> None:
        if allowed is not None and allowed.shape != (n,):
            raise InputError(f"the filter has shape {allowed.shape}; the index has {n} items")
        self.plan, self.queries, self.n, self.allowed = plan, queries, n, allowed
        m = len(queries)
        self.available = n if allowed is None else int(allowed.sum())
        most = sum(plan.batches) if plan.share is None else most_of(plan, plan.share, m)
        self.budget = budget = min(most, self.available)
        """Pairs that a query reveals at most."""
        self.targets = [min(t, budget) for t in accumulate(plan.batches)]
        self.round = 0
        """Rounds begun so far."""
        self.expectations: list[tuple[IntArray, FloatArray]] = []
        """With a `stop`, before each round but the first: scores known (m,), recall expected (m,),
        NaN where nothing can be said."""
        self._state = SearchState(m, budget)
        self._belief: Any = None  # the predictor's state
        self._stopped = np.zeros(m, np.bool_)
        self._backfilled = np.zeros(m, np.int64)
        self._retrieved: IntArray  # items of the first round, (m, c)
        self._pool: IntArray | None = None  # what a shortlist restricts each query to, (m, s)

    @property
    def n_scored(self) -> IntArray:
        """(m,) distinct pairs whose exact score is known."""
        return self._state.n_scored

    @property
    def n_backfilled(self) -> IntArray:
        """(m,) items picked in item order because a retriever or a shortlist ran short."""
        return frozen(self._backfilled)

    @property
    def n_failed(self) -> int:
        """Pairs that were asked and never told."""
        return int(self._state.n_failed.sum())

    @property
    def stopped(self) -> BoolArray:
        """(m,) which queries were ended before their budget, by the plan's `stop` or by `end`."""
        return frozen(self._stopped)

    @property
    def unfinished(self) -> BoolArray:
        """(m,) which queries may still reveal pairs."""
        return ~self._stopped & (self._state.n_scored < self._reachable())

    def ask(self) -> Pairs:
        """The pairs to score next; none when the budget is spent or nothing is left to score."""
        self._state.fail_unobserved()
        while (self._state.requested < self._limit()).any():
            self.round += 1
            if (calls := self._round_calls()) and len(pairs := self._pick(calls)):
                return pairs
        return Pairs(np.empty(0, np.int64), np.empty(0, np.int64))

    def tell(self, pairs: Pairs, scores: FloatArray) -> None:
        """Record exact scores.

        Args:
            pairs: p pairs that were asked, in any order; a part of them is fine.
            scores: Their exact scores (p,).

        Raises:
            ScorerError: Scores are too few, too many or not finite.
            InputError: A pair was not asked.
        """
        self._state.observe(pairs, scores)

    def end(self, query: int) -> None:
        """Ask no more pairs of this query."""
        self._stopped[query] = True

    def best(self, k: int) -> Ranking:
        """The k best scored items of each query; without batches, the retriever's k best."""
        if self.plan.batches:
            return self._state.best(k)
        found = self.plan.retriever.top(self.queries, min(k, self.available), self.allowed)
        scores = np.where(found.items == NO_ITEM, np.nan, found.scores).astype(np.float32)
        unknown = np.full_like(scores, np.nan)
        return Ranking(found.items, scores, np.zeros_like(found.items), scores, unknown)

    def picks(self) -> Ranking:
        """Every scored item of each query in the order in which it was picked."""
        return self._state.picks()

    def observed(self) -> Observed:
        """All exact scores so far, left-aligned."""
        return self._state.observed()

    def _reachable(self) -> IntArray:
        """Pairs that each query can reveal, of those that have not failed: (m,)."""
        return np.minimum(self.budget, self.available - self._state.n_failed)

    def _limit(self) -> IntArray:
        """Pairs up to which each query may request: (m,)."""
        done = self._stopped | (self._calls_left() <= 0)
        return np.where(done, self._state.requested, self._reachable())

    def _calls_left(self) -> int:
        """Calls left of a shared budget; without one, no end of them."""
        share = self.plan.share
        return sys.maxsize if share is None else share.total - int(self._state.requested.sum())

    def _equal(self) -> IntArray:
        """New items of each query in this round, if all are served alike: (m,)."""
        target = self.targets[min(self.round, len(self.targets)) - 1]
        return np.maximum(np.minimum(target, self._limit()) - self._state.requested, 0)

    def _round_calls(self) -> int:
        """New items of all queries in this round."""
        if self.plan.share is None or self.round == 1:
            return int(self._equal().sum())
        if self.round >= len(self.targets):
            return self._calls_left()
        target = len(self.queries) * self.targets[self.round - 1]
        return max(target - int(self._state.requested.sum()), 0)

    def _pick(self, calls: int) -> Pairs:
        """Choose `calls` new items, of all queries, and request them."""
        seen = self._state.seen()
        wanted, candidates = self._retrieve() if self.round == 1 else self._predict(calls, seen)
        queries, items = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for q in np.flatnonzero(wanted).tolist():
            chosen, approx, std = self._take(candidates, q, int(wanted[q]), seen[q])
            self._state.request(q, chosen, approx, std, self.round)
            queries.append(np.full(len(chosen), q, np.int64))
            items.append(chosen)
        return Pairs(np.concatenate(queries), np.concatenate(items))

    def _retrieve(self) -> tuple[IntArray, Candidates]:
        """Of the first round: how many new items each query gets, (m,), and which."""
        wanted, shortlist = self._equal(), self.plan.shortlist
        width = int(wanted.max()) if shortlist is None else max(shortlist, self.budget)
        candidates = self.plan.retriever.top(self.queries, width, self.allowed)
        self._retrieved = candidates.items
        return wanted, candidates

    def _predict(self, calls: int, seen: IntArray) -> tuple[IntArray, Candidates]:
        """Of a later round: how many new items each query gets, (m,), and which."""
        predictor, plan = self.plan.predictor, self.plan
        if self._belief is None:
            self._belief = predictor.start(self.queries)
        self._belief = predictor.update(self._belief, self.observed())
        if plan.shortlist is not None and self._pool is None:
            pool = predictor.shortlist(self._belief, self._retrieved, self.allowed)
            self._pool = np.sort(pool, axis=1)
        wanted = self._allocate(calls, seen) if plan.stop or plan.share else self._equal()
        count = int(wanted.max())
        return wanted, predictor.top(self._belief, count, seen, self.allowed, self._pool)

    def _allocate(self, calls: int, seen: IntArray) -> IntArray:
        """Apply the stopping rule, then allocate this round's calls.

        Returns the number of items to score per query, (m,).
        """
        stop, share, m = self.plan.stop, self.plan.share, len(self.queries)
        recall, room = np.full(m, np.nan), self._limit() - self._state.requested
        standing: list[FloatArray | None] = [None] * m
        for q, mean, std in self._unscored(seen):
            known = self._state.known(q)
            if stop is not None and len(known) >= stop.k:
                recall[q] = expected_recall(np.sort(known)[-stop.k :], mean, std)
            if share is not None:
                standing[q] = z_scores(known, mean, std, share.k, int(room[q]))
        if stop is not None:
            self.expectations.append((self._state.requested, frozen(recall)))
            self._stopped |= recall >= stop.expected
        if share is None:
            return self._equal()
        return shared(standing, self._limit() - self._state.requested, calls, self._calls_left())

    def _unscored(self, seen: IntArray) -> Iterator[tuple[int, FloatArray, FloatArray]]:
        """Predicted means and standard deviations (c,) of the unscored items of each query that has
        not stopped; only of queries where something can be said."""
        pool = None if self._pool is None else np.maximum(self._pool, 0)
        prediction = self.plan.predictor.posterior(self._belief, pool)
        if prediction.std is None:
            return
        for q in np.flatnonzero(~self._stopped).tolist():
            items = np.arange(self.n) if self._pool is None else self._pool[q]
            open = (items != NO_ITEM) & ~np.isin(items, seen[q])
            if self.allowed is not None:
                open &= self.allowed[items]
            mean, std = prediction.mean[q, open], prediction.std[q, open]
            if not np.isnan(std).any():
                yield q, mean, std

    def _take(
        self, candidates: Candidates, q: int, count: int, seen: IntArray
    ) -> tuple[IntArray, FloatArray, FloatArray]:
        """A query's first `count` candidates, backfilled in item order where they run short."""
        found = candidates.items[q] != NO_ITEM
        items, approx = candidates.items[q][found][:count], candidates.scores[q][found][:count]
        std = np.full(len(items), np.nan, np.float32)
        if candidates.std is not None:
            std = candidates.std[q][found][:count]
        if len(items) == count:
            return items, approx, std
        free = np.ones(self.n, np.bool_) if self.allowed is None else self.allowed.copy()
        free[seen[seen != NO_ITEM]] = False
        free[items] = False
        extra = np.flatnonzero(free)[: count - len(items)]
        self._backfilled[q] += len(extra)
        unknown = np.full(len(extra), np.nan, np.float32)
        return np.r_[items, extra], np.r_[approx, unknown], np.r_[std, unknown]


def simulate(plan: Plan, queries: Queries, scores: FloatArray) -> Search:
    """The search of m queries whose exact scores (m, n) are known, at its end; for no calls."""
    search = Search(plan, queries, scores.shape[1])
    while len(pairs := search.ask()):
        search.tell(pairs, scores[pairs.query, pairs.item])
    return search


class SearchState:
    """The pairs of m queries, at most `width` each, in the order in which they were requested.

    No array that leaves it is one that it goes on writing to: all are read-only copies. A
    requested pair is observed (its exact score is known) or failed; a failed one leaves its place
    to others, and still counts as `seen`.
    """

    def __init__(self, m: int, width: int) -> None:
        kinds = (np.int64, np.float32, np.int64, np.float32, np.float32)
        fills = zip(_EMPTY, kinds, strict=True)
        self._rows = Ranking(*(np.full((m, width), fill, kind) for fill, kind in fills))
        self._requested = np.zeros(m, np.int64)
        self._failed: list[set[int]] = [set() for _ in range(m)]
        self._position: list[dict[int, int]] = [{} for _ in range(m)]

    @property
    def requested(self) -> IntArray:
        """(m,) pairs that were requested and have not failed."""
        return frozen(self._requested)

    @property
    def n_scored(self) -> IntArray:
        """(m,) distinct pairs whose exact score is known."""
        return np.count_nonzero(~np.isnan(self._rows.scores), axis=1)

    @property
    def n_failed(self) -> IntArray:
        """(m,) pairs that were requested and never observed."""
        return np.array([len(items) for items in self._failed], np.int64)

    def request(
        self, query: int, items: IntArray, approx: FloatArray, std: FloatArray, round: int
    ) -> None:
        """Record the items (c,) requested for `query` in `round`, with their predicted means and
        standard deviations (c,)."""
        start = int(self._requested[query])
        stop = start + len(items)
        rows = self._rows
        rows.items[query, start:stop], rows.rounds[query, start:stop] = items, round
        rows.approx[query, start:stop], rows.std[query, start:stop] = approx, std
        self._position[query].update(zip(items.tolist(), range(start, stop), strict=True))
        self._requested[query] = stop

    def observe(self, pairs: Pairs, scores: FloatArray) -> None:
        """Record exact scores (p,) of pairs that were requested; a part of them is fine.

        Raises:
            ScorerError: Scores are too few, too many or not finite.
            InputError: A pair was not requested.
        """
        scores = np.asarray(scores, np.float32)
        if scores.shape != (len(pairs),):
            raise ScorerError(f"{len(pairs)} pairs were told {scores.size} scores")
        if not np.isfinite(scores).all():
            p = int(np.flatnonzero(~np.isfinite(scores))[0])
            raise ScorerError(
                f"the score of query {pairs.query[p]} and item {pairs.item[p]} is {scores[p]}"
            )
        where = np.empty(len(pairs), np.int64)
        for p, (query, item) in enumerate(
            zip(pairs.query.tolist(), pairs.item.tolist(), strict=True)
        ):
            if item not in self._position[query]:
                raise InputError(f"query {query} was not asked about item {item}")
            where[p] = self._position[query][item]
        self._rows.scores[pairs.query, where] = scores

    def fail_unobserved(self) -> None:
        """Record as failed what was requested and is not observed yet."""
        rows = self._rows
        missing = (rows.items != NO_ITEM) & np.isnan(rows.scores)
        for query in np.flatnonzero(missing.any(axis=1)).tolist():
            self._failed[query].update(rows.items[query, missing[query]].tolist())
            kept = np.flatnonzero(~missing[query, : self._requested[query]])
            for values, fill in zip(self._arrays(), _EMPTY, strict=True):
                values[query, : len(kept)] = values[query, kept]
                values[query, len(kept) :] = fill
            self._requested[query] = len(kept)
            items = rows.items[query, : len(kept)].tolist()
            self._position[query] = {item: p for p, item in enumerate(items)}

    def known(self, query: int) -> FloatArray:
        """(b,) the exact scores of a query of which all requested pairs were observed."""
        return frozen(self._rows.scores[query, : self._requested[query]])

    def seen(self) -> IntArray:
        """(m, e) all that was ever requested, failed or not, padded with `NO_ITEM`."""
        if not any(self._failed):
            return frozen(self._rows.items[:, : int(self._requested.max(initial=0))])
        rows = [
            np.array([*self._position[query], *sorted(failed)], np.int64)
            for query, failed in enumerate(self._failed)
        ]
        return Candidates.from_rows([(row, row.astype(np.float32)) for row in rows]).items

    def observed(self) -> Observed:
        """All exact scores so far, left-aligned."""
        return Observed(
            frozen(self._rows.items), frozen(self._rows.scores), frozen(self._requested)
        )

    def best(self, k: int) -> Ranking:
        """The k best scored items of each query, by exact score, ties by position."""
        rows = self._rows
        scores = np.nan_to_num(rows.scores, nan=-np.inf)
        order = np.lexsort((rows.items, -scores))[:, :k]
        known = np.take_along_axis(~np.isnan(rows.scores), order, axis=1)
        best = [
            np.where(known, np.take_along_axis(values, order, axis=1), fill)
            for values, fill in zip(self._arrays(), _EMPTY, strict=True)
        ]
        return Ranking(*best)

    def picks(self) -> Ranking:
        """Every scored item of each query, in the order in which it was requested."""
        picks = Ranking(*map(frozen, self._arrays()))
        return replace(picks, items=np.where(np.isnan(picks.scores), NO_ITEM, picks.items))

    def _arrays(self) -> tuple[Any, ...]:
        rows = self._rows
        return rows.items, rows.scores, rows.rounds, rows.approx, rows.std


def frozen(values: _A) -> _A:
    """A read-only copy: who holds it neither changes the search nor sees it change."""
    copy = values.copy()
    copy.flags.writeable = False
    return copy
