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
from itertools import accumulate
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.search.expected import expected_recall
from crossknn.search.plan import Plan, most_of
from crossknn.search.sharing import shared, z_scores
from crossknn.search.state import SearchState, frozen
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


class Search:
    """Budgeted search over m queries and n items.

    Every query reveals min(budget, allowed items) distinct pairs, unless it stops early or pairs
    cannot be scored: what was asked and is not told by the next `ask` is given up, not
    charged, and another item takes its place. Those that share a budget reveal its total, or all
    that they may; `InputError` if they cannot share: the predictor knows no deviations, or the
    total is below one for each.
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
        self._topped_up = np.zeros(m, np.int64)
        self._ledger = SearchState(m, budget)
        self._stopped = np.zeros(m, np.bool_)
        self.expectations: list[tuple[IntArray, FloatArray]] = []
        """With a `stop`, before each round but the first: scores known (m,), recall expected (m,),
        NaN where nothing can be said."""
        self._state: Any = None
        self._found: IntArray
        self._pool: IntArray | None = None

    @property
    def n_scored(self) -> IntArray:
        """(m,) distinct pairs whose exact score is known."""
        return self._ledger.n_scored

    @property
    def n_backfilled(self) -> IntArray:
        """(m,) items picked in item order because a retriever or a shortlist ran short."""
        return frozen(self._topped_up)

    @property
    def stopped(self) -> BoolArray:
        """(m,) which queries were ended before their budget, by the plan's `stop` or by `end`."""
        return frozen(self._stopped)

    @property
    def given_up(self) -> int:
        """Pairs that were asked and never told."""
        return int(self._ledger.given_up.sum())

    def ask(self) -> Pairs:
        """The pairs to score next; none when the budget is spent or nothing is left to score."""
        self._ledger.give_up_untold()
        while (self._ledger.asked < self._limit()).any():
            self.round += 1
            if (calls := self._calls()) and len(pairs := self._pick(calls)):
                return pairs
        return Pairs(np.empty(0, np.int64), np.empty(0, np.int64))

    def tell(self, pairs: Pairs, scores: FloatArray) -> None:
        """Exact scores (p,) of pairs that were asked; a part of them is fine."""
        self._ledger.tell(pairs, scores)

    @property
    def unfinished(self) -> BoolArray:
        """(m,) which queries may still reveal pairs."""
        room = np.minimum(self.budget, self.available - self._ledger.given_up)
        return ~self._stopped & (self._ledger.n_scored < room)

    def end(self, query: int) -> None:
        """Ask no more pairs of this query."""
        self._stopped[query] = True

    def best(self, k: int) -> Ranking:
        """The k best scored items of each query; without batches, the retriever's k best."""
        return self._ledger.best(k) if self.plan.batches else self._unscored(k)

    def picks(self) -> Ranking:
        """Every scored item of each query in the order in which it was picked."""
        return self._ledger.picks()

    def observed(self) -> Observed:
        """All exact scores so far, left-fitted."""
        return self._ledger.observed()

    def _unscored(self, k: int) -> Ranking:
        found = self.plan.retriever.top(self.queries, min(k, self.available), self.allowed)
        scores = np.where(found.items == NO_ITEM, np.nan, found.scores).astype(np.float32)
        unknown = np.full_like(scores, np.nan)
        return Ranking(found.items, scores, np.zeros_like(found.items), scores, unknown)

    def _limit(self) -> IntArray:
        """How many pairs each query can reveal: (m,)."""
        limit = np.minimum(self.budget, self.available - self._ledger.given_up)
        return np.where(self._stopped | (self._left() <= 0), self._ledger.asked, limit)

    def _left(self) -> int:
        """Calls left of a shared budget; without one, no end of them."""
        share = self.plan.share
        return sys.maxsize if share is None else share.total - int(self._ledger.asked.sum())

    def _equal(self) -> IntArray:
        """New items of each query in this round, if all are served alike: (m,)."""
        target = self.targets[min(self.round, len(self.targets)) - 1]
        return np.maximum(np.minimum(target, self._limit()) - self._ledger.asked, 0)

    def _calls(self) -> int:
        """New items of all queries in this round."""
        if self.plan.share is None or self.round == 1:
            return int(self._equal().sum())
        if self.round >= len(self.targets):
            return self._left()
        return max(
            len(self.queries) * self.targets[self.round - 1] - int(self._ledger.asked.sum()), 0
        )

    def _pick(self, calls: int) -> Pairs:
        """Choose `calls` new items, of all queries, and note them down as asked."""
        exclude = self._ledger.seen()
        if self.round == 1:
            wanted = self._equal()
            width = int(wanted.max())
            if self.plan.shortlist is not None:
                width = max(self.plan.shortlist, self.budget)
            candidates = self.plan.retriever.top(self.queries, width, self.allowed)
            self._found = candidates.items
        else:
            wanted, candidates = self._predicted(calls, exclude)
        queries, items = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for row, count in enumerate(wanted):
            if count == 0:
                continue
            chosen, approx, std = self._row(candidates, row, int(count), exclude[row])
            self._ledger.note(row, chosen, approx, std, self.round)
            queries.append(np.full(len(chosen), row, np.int64))
            items.append(chosen)
        return Pairs(np.concatenate(queries), np.concatenate(items))

    def _predicted(self, calls: int, exclude: IntArray) -> tuple[IntArray, Candidates]:
        """How many new items each query gets, (m,), and which."""
        predictor, plan = self.plan.predictor, self.plan
        if self._state is None:
            self._state = predictor.start(self.queries)
        self._state = predictor.update(self._state, self.observed())
        if plan.shortlist is not None and self._pool is None:
            pool = predictor.shortlist(self._state, self._found, self.allowed)
            self._pool = np.sort(pool, axis=1)
        wanted = self._foreseen(calls, exclude) if plan.stop or plan.share else self._equal()
        count = int(wanted.max())
        return wanted, predictor.top(self._state, count, exclude, self.allowed, self._pool)

    def _foreseen(self, calls: int, exclude: IntArray) -> IntArray:
        """Stop the queries that expect enough; how many new items each of the others gets: (m,)."""
        stop, share, m = self.plan.stop, self.plan.share, len(self.queries)
        found, room = np.full(m, np.nan), self._limit() - self._ledger.asked
        standing: list[FloatArray | None] = [None] * m
        for row, mean, std in self._unknown(exclude):
            known = self._ledger.known(row)
            if stop is not None and len(known) >= stop.k:
                found[row] = expected_recall(np.sort(known)[-stop.k :], mean, std)
            if share is not None:
                standing[row] = z_scores(known, mean, std, share.k, int(room[row]))
        if stop is not None:
            self.expectations.append((self._ledger.asked, frozen(found)))
            self._stopped |= found >= stop.expected
        if share is None:
            return self._equal()
        return shared(standing, self._limit() - self._ledger.asked, calls, self._left())

    def _unknown(self, exclude: IntArray) -> Iterator[tuple[int, FloatArray, FloatArray]]:
        """What is predicted of the unscored items of each query that has not stopped, with its
        deviation, both (c,); only of queries where something can be said."""
        pool = None if self._pool is None else np.maximum(self._pool, 0)
        prediction = self.plan.predictor.posterior(self._state, pool)
        if prediction.std is None:
            return
        for row in np.flatnonzero(~self._stopped):
            items = np.arange(self.n) if self._pool is None else self._pool[row]
            there = (items != NO_ITEM) & ~np.isin(items, exclude[row])
            if self.allowed is not None:
                there &= self.allowed[items]
            mean, std = prediction.mean[row, there], prediction.std[row, there]
            if not np.isnan(std).any():
                yield int(row), mean, std

    def _row(
        self, candidates: Candidates, row: int, count: int, exclude: IntArray
    ) -> tuple[IntArray, FloatArray, FloatArray]:
        """The first `count` candidates of a query, topped up in item order where they run short."""
        found = candidates.items[row] != NO_ITEM
        items, approx = candidates.items[row][found][:count], candidates.scores[row][found][:count]
        std = np.full(len(items), np.nan, np.float32)
        if candidates.std is not None:
            std = candidates.std[row][found][:count]
        missing = count - len(items)
        if missing <= 0:
            return items, approx, std
        free = np.ones(self.n, np.bool_) if self.allowed is None else self.allowed.copy()
        free[exclude[exclude != NO_ITEM]] = False
        free[items] = False
        extra = np.flatnonzero(free)[:missing]
        self._topped_up[row] += len(extra)
        unknown = np.full(len(extra), np.nan, np.float32)
        return (
            np.concatenate([items, extra]),
            np.concatenate([approx, unknown]),
            np.concatenate([std, unknown]),
        )


def simulate(plan: Plan, queries: Queries, scores: FloatArray) -> Search:
    """The search of m queries whose exact scores (m, n) are known, at its end; for no calls."""
    search = Search(plan, queries, scores.shape[1])
    while len(pairs := search.ask()):
        search.tell(pairs, scores[pairs.query, pairs.item])
    return search
