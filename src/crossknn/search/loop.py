"""The loop behind `Searcher`, for whoever scores pairs otherwise: ask which, tell their scores.

Pure: no clock, no device, no text. Deadlines, asynchronous scorers and remote workers live outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.search.plan import Plan, Stop
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

JOINING = 4
"""Items that may join a shortlist before each round, for each that the largest round scores; at
least so many that four rounds double it."""

_NO_PAIRS = Pairs(np.empty(0, np.int64), np.empty(0, np.int64))
_COLUMNS = {
    "items": (NO_ITEM, np.int64),
    "scores": (np.nan, np.float32),
    "rounds": (0, np.int64),
    "approx": (np.nan, np.float32),
    "std": (np.nan, np.float32),
    "known": (0.0, np.float32),
}
"""Of a `Ranking`: what fills each array where there is no item, and its type."""


class Search:
    """Budgeted search over m queries and n items.

    Every query scores min(budget, allowed items) distinct pairs, unless it stops early or pairs
    cannot be scored: a pair that `ask` returned and whose score `tell` has not got before the next
    `ask` counts as failed; it is not charged, and another item takes its place.

    All arrays that it returns are copies.

    Args:
        plan: What a method planned.
        queries: m queries.
        n: Number of items.
        allowed: Mask (n,) of the items that may be scored; None: all.
        depth: Items that the retriever finds at least, for `first`.

    Raises:
        InputError: The mask does not fit.
    """

    def __init__(
        self,
        plan: Plan,
        queries: Queries,
        n: int,
        *,
        allowed: BoolArray | None = None,
        depth: int = 0,
    ) -> None:
        if allowed is not None and allowed.shape != (n,):
            raise InputError(f"the filter has shape {allowed.shape}; the index has {n} items")
        self.plan, self.queries, self.n, self.allowed = plan, queries, n, allowed
        m = len(queries)
        self.available = n if allowed is None else int(allowed.sum())
        self.budget = budget = min(sum(plan.batches), self.available)
        """Pairs that a query scores at most."""
        self.targets = [min(t, budget) for t in accumulate(plan.batches)]
        self.round = 0
        """Rounds begun so far."""
        self.expectations: list[tuple[IntArray, FloatArray]] = []
        """With a `stop`, before each round but the first: scores known (m,), its value (m,), the
        recall expected; NaN where nothing can be said."""
        # Pairs in the order in which they were asked, with a score once it is told.
        self._rows = {name: np.empty((m, 0), kind) for name, (_, kind) in _COLUMNS.items()}
        self._begun = 0  # columns of earlier rounds: what has no score there has failed
        self._column: dict[tuple[int, int], int] = {}  # of the pairs of this round
        self._belief: Any = None  # the predictor's state
        self._stopped = np.zeros(m, np.bool_)
        self._backfilled = np.zeros(m, np.int64)
        self._depth = depth
        self._first: Candidates | None = None  # of the first round, (m, c)
        self._retrieved: IntArray  # items of these, (m, c)
        self._pool: IntArray | None = None  # what a shortlist restricts each query to, (m, s)

    @property
    def n_scored(self) -> IntArray:
        """(m,) distinct pairs whose exact score is known."""
        return np.count_nonzero(~np.isnan(self._rows["scores"]), axis=1)

    @property
    def n_backfilled(self) -> IntArray:
        """(m,) items picked in item order because a retriever or a shortlist ran short."""
        return self._backfilled.copy()

    @property
    def n_failed(self) -> int:
        """Pairs that were asked and never told."""
        return int(self._failed().sum())

    @property
    def stopped(self) -> BoolArray:
        """(m,) which queries were ended before their budget, by the plan's `stop` or by `end`."""
        return self._stopped.copy()

    @property
    def unfinished(self) -> BoolArray:
        """(m,) which queries may still score pairs."""
        return self._room() > 0

    def ask(self) -> Pairs:
        """Begin the next round.

        Returns:
            The pairs to score next; none when the budget is spent or nothing is left to score.
        """
        self._begun, self._column = self._rows["items"].shape[1], {}
        while self.unfinished.any():
            self.round += 1
            if self._wanted().any() and len(pairs := self._pick()):
                return pairs
        return _NO_PAIRS

    def tell(self, pairs: Pairs, scores: FloatArray) -> None:
        """Record exact scores.

        Args:
            pairs: p pairs that were asked, in any order; a part of them is fine.
            scores: Their exact scores (p,).

        Raises:
            ScorerError: Scores are too few, too many or not finite.
            InputError: A pair was not asked.
        """
        scores = np.asarray(scores, np.float32)
        if scores.shape != (len(pairs),):
            raise ScorerError(f"{len(pairs)} pairs were told {scores.size} scores")
        for p in np.flatnonzero(~np.isfinite(scores)).tolist():
            pair = f"query {pairs.query[p]} and item {pairs.item[p]}"
            raise ScorerError(f"the score of {pair} is {scores[p]}")
        asked = list(zip(pairs.query.tolist(), pairs.item.tolist(), strict=True))
        for query, item in asked:
            if (query, item) not in self._column:
                raise InputError(f"query {query} was not asked about item {item}")
        self._rows["scores"][pairs.query, [self._column[pair] for pair in asked]] = scores

    def end(self, query: int) -> None:
        """Ask no more pairs of a query.

        Args:
            query: Its position.
        """
        self._stopped[query] = True

    def best(self, k: int) -> Ranking:
        """The best scored items of each query, by final score; of a plan without rounds, the
        retriever's best.

        Args:
            k: How many.

        Returns:
            Items, scores, and rounds in which they were picked: (m, at most k) each.
        """
        if not self.plan.batches and self.available:
            found = self.plan.retriever.top(self.queries, min(k, self.available), self.allowed)
            return _of_retriever(found, k)
        items, final = self._rows["items"], self._rows["scores"] + self._rows["known"]
        order = np.lexsort((items, -np.nan_to_num(final, nan=-np.inf)))[:, :k]
        return self._ranking(order)

    def filled(self, k: int) -> Ranking:
        """`best(k)`, and below it unscored items by predicted final score.

        Args:
            k: How many items of each query, as far as a filter allows so many.

        Returns:
            As of `best`; `scores` of items that were not scored are NaN.
        """
        best = self.best(k)
        available = self.available
        count = min(k, available) - best.items.shape[1]
        if count <= 0:
            return best
        predictor, pool, belief = self.plan.predictor, self._pool, self._belief
        if pool is not None:
            pool = joined(pool, self.plan.retriever.top(self.queries, k, self.allowed).items)
        belief = predictor.start(self.queries) if belief is None else belief
        belief = predictor.update(belief, self.observed())
        more = predictor.top(belief, count, self._rows["items"], self.allowed, pool)
        none, width = more.items == NO_ITEM, more.items.shape[1]
        empty = {n: np.full((len(none), width), fill, kind) for n, (fill, kind) in _COLUMNS.items()}
        approx = np.where(none, np.nan, more.scores)
        std = empty["std"] if more.std is None else np.where(none, np.nan, more.std)
        found = empty | {"items": more.items, "approx": approx, "std": std}
        if self.plan.known is not None:
            part = self.plan.known(self.queries)
            found["known"] = np.take_along_axis(part, np.maximum(more.items, 0), axis=1)
        return Ranking(
            **{n: np.concatenate([getattr(best, n), found[n]], axis=1) for n in _COLUMNS}
        )

    def picks(self) -> Ranking:
        """Every scored item of each query.

        Returns:
            As of `best`, but in the order in which the items were picked.
        """
        order = np.argsort(np.isnan(self._rows["scores"]), axis=1, kind="stable")
        return self._ranking(order[:, : int(self.n_scored.max(initial=0))])

    def latest(self) -> Ranking:
        """As of `picks`, of the last round alone."""
        picks = self.picks()
        return replace(picks, items=np.where(picks.rounds == self.round, picks.items, NO_ITEM))

    def nothing(self) -> Ranking:
        """No items of any query, (m, 0)."""
        return self._ranking(np.empty((len(self.queries), 0), np.int64))

    def first(self, k: int) -> Ranking:
        """What the retriever has found for the first round, as of `best` without rounds.

        Args:
            k: How many, up to `depth`.

        Returns:
            Items and the retriever's scores: (m, at most k) each; nothing before the first round.
        """
        return self.nothing() if self._first is None else _of_retriever(self._first, k)

    def observed(self) -> Observed:
        """All exact scores so far, left-aligned."""
        picks = self.picks()
        return Observed(picks.items, picks.scores, self.n_scored)

    def _ranking(self, order: IntArray) -> Ranking:
        """The scored items of each query in the order of these columns (m, k)."""
        known = np.take_along_axis(~np.isnan(self._rows["scores"]), order, axis=1)
        return Ranking(
            **{
                name: np.where(known, np.take_along_axis(values, order, axis=1), _COLUMNS[name][0])
                for name, values in self._rows.items()
            }
        )

    def _failed(self) -> IntArray:
        """Pairs of each query that were asked in earlier rounds and never told: (m,)."""
        lost = np.isnan(self._rows["scores"]) & (self._rows["items"] != NO_ITEM)
        return np.count_nonzero(lost[:, : self._begun], axis=1)

    def _room(self) -> IntArray:
        """New items that each query may still get: (m,)."""
        reachable = np.minimum(self.budget, self.available - self._failed())
        return np.where(self._stopped, 0, reachable - self.n_scored)

    def _wanted(self) -> IntArray:
        """How many new items each query gets in this round: (m,)."""
        target = self.targets[min(self.round, len(self.targets)) - 1]
        return np.minimum(np.maximum(target - self.n_scored, 0), self._room())

    def _pick(self) -> Pairs:
        """Choose each query's new items: first the retriever's, then the predictor's."""
        seen = self._rows["items"].copy()
        if self.round == 1:
            wanted, shortlist = self._wanted(), self.plan.shortlist
            width = int(wanted.max()) if shortlist is None else max(shortlist, self.budget)
            depth = max(width, min(self._depth, self.available))
            candidates = self.plan.retriever.top(self.queries, depth, self.allowed)
            self._first, self._retrieved = candidates, candidates.items[:, :width]
        else:
            wanted, candidates = self._predict(seen)
        shape = len(wanted), int(wanted.max())
        new = {name: np.full(shape, fill, kind) for name, (fill, kind) in _COLUMNS.items()}
        for q in np.flatnonzero(wanted).tolist():
            items, approx, std = self._take(candidates, q, int(wanted[q]), seen[q])
            values = {"items": items, "rounds": self.round, "approx": approx, "std": std}
            for name, value in values.items():
                new[name][q, : len(items)] = value
        if self.plan.known is not None:
            part = np.take_along_axis(self.plan.known(self.queries), new["items"], axis=1)
            new["known"] = np.where(new["items"] == NO_ITEM, 0, part)
        self._rows = {n: np.concatenate([rows, new[n]], axis=1) for n, rows in self._rows.items()}
        query, column = np.nonzero(new["items"] != NO_ITEM)
        pairs = Pairs(query, new["items"][query, column])
        asked = zip(query.tolist(), pairs.item.tolist(), strict=True)
        self._column = dict(zip(asked, (self._begun + column).tolist(), strict=True))
        return pairs

    def _predict(self, seen: IntArray) -> tuple[IntArray, Candidates]:
        """Of a later round: how many new items each query gets, (m,), and which."""
        predictor, plan = self.plan.predictor, self.plan
        if self._belief is None:
            self._belief = predictor.start(self.queries)
        self._belief = predictor.update(self._belief, self.observed())
        if plan.shortlist is not None:
            self._pool = self._restriction(plan.shortlist, seen)
        if plan.stop is not None:
            self._end_those_done(plan.stop, seen)
        wanted = self._wanted()
        count = int(wanted.max())
        return wanted, predictor.top(self._belief, count, seen, self.allowed, self._pool)

    def _restriction(self, shortlist: int, seen: IntArray) -> IntArray:
        """What each query is restricted to, (m, s): what it was, and what joins it."""
        if self._pool is None:
            stages = [s.top(self.queries, shortlist, self.allowed) for s in self.plan.stages]
            pool = joined(self._retrieved, *(found.items for found in stages))
        else:
            pool = self._pool
        count = JOINING * max(shortlist // JOINING**2, *self.plan.batches[1:], 1)
        more = self.plan.predictor.joining(self._belief, count, seen, self.allowed)
        return joined(pool, more)

    def _end_those_done(self, stop: Stop, seen: IntArray) -> None:
        """End the queries that expect to have found enough."""
        value = np.full(len(self.queries), np.nan)
        for q, mean, std in self._unscored(seen):
            known = self._rows["scores"][q] + self._rows["known"][q]
            known = known[~np.isnan(known)]
            if len(known) >= stop.k:
                value[q] = stop.value(known, mean, std)
        self.expectations.append((self.n_scored, value))
        self._stopped |= value >= stop.expected

    def _unscored(self, seen: IntArray) -> Iterator[tuple[int, FloatArray, FloatArray]]:
        """Predicted means and standard deviations (c,) of the unscored items of each query that has
        not stopped; only of queries where something can be said."""
        prediction = self.plan.predictor.predict(self._belief, self._pool)
        if prediction.std is None:
            return
        for q in np.flatnonzero(~self._stopped).tolist():
            items = np.arange(self.n) if self._pool is None else self._pool[q]
            open = (items != NO_ITEM) & self._free(seen[q])[items]
            mean, std = prediction.mean[q, open], prediction.std[q, open]
            if not np.isnan(std).any():
                yield q, mean, std

    def _free(self, seen: IntArray) -> BoolArray:
        """Items that a query may get which has seen these: (n,)."""
        free = np.ones(self.n, np.bool_) if self.allowed is None else self.allowed.copy()
        free[seen[seen != NO_ITEM]] = False
        return free

    def _take(
        self, candidates: Candidates, q: int, count: int, seen: IntArray
    ) -> tuple[IntArray, FloatArray, FloatArray]:
        """A query's first `count` candidates, backfilled in item order where they run short."""
        first = np.flatnonzero(candidates.items[q] != NO_ITEM)[:count]
        items, approx = candidates.items[q, first], candidates.scores[q, first]
        std = np.full(len(items), np.nan) if candidates.std is None else candidates.std[q, first]
        if len(items) == count:
            return items, approx, std
        extra = np.flatnonzero(self._free(np.append(seen, items)))[: count - len(items)]
        self._backfilled[q] += len(extra)
        unknown = np.full(len(extra), np.nan)
        return np.r_[items, extra], np.r_[approx, unknown], np.r_[std, unknown]


@dataclass(frozen=True, eq=False)
class Copies:
    """Items that have the text of an earlier one: `items` (c,), and `of` (c,), ascending, which one
    that is. Of equal texts a search scores the first, and its answer has them all."""

    items: IntArray
    of: IntArray

    @classmethod
    def among(cls, alike: tuple[IntArray, IntArray], allowed: BoolArray | None) -> Copies:
        """Those of `Items.alike` that a search may return."""
        positions, texts = alike
        if allowed is not None:
            kept = allowed[positions]
            positions, texts = positions[kept], texts[kept]
        first = np.diff(texts, prepend=-1) != 0
        of = positions[first][np.cumsum(first) - 1][~first]
        order = np.argsort(of, kind="stable")
        return cls(positions[~first][order], of[order])

    def left_out(self, n: int, allowed: BoolArray | None) -> BoolArray | None:
        """Mask (n,) of what is allowed, without the copies."""
        if not len(self.items):
            return allowed
        mask = np.ones(n, np.bool_) if allowed is None else allowed.copy()
        mask[self.items] = False
        return mask

    def put_back(self, ranking: Ranking, k: int) -> Ranking:
        """A ranking with the copies of its items beside them, cut to k; ties by position."""
        if not np.isin(ranking.items, self.of).any():
            return ranking
        bounds = (np.searchsorted(self.of, ranking.items, side) for side in ("left", "right"))
        final, rows = ranking.scores + ranking.known, list[tuple[IntArray, IntArray]]()
        for row, start, stop, score in zip(ranking.items, *bounds, final, strict=True):
            here = np.flatnonzero(row != NO_ITEM)
            columns = np.repeat(here, 1 + (stop - start)[here])
            items = np.array([i for c in here for i in (row[c], *self.items[start[c] : stop[c]])])
            # The scored ones by score; those that are predicted come after them, in their order.
            later = np.isnan(score[columns]) * columns
            order = np.lexsort((items, later, -score[columns]))[:k]
            rows.append((columns[order], items[order]))
        shape = len(rows), max(len(items) for _, items in rows)
        found = {name: np.full(shape, fill, kind) for name, (fill, kind) in _COLUMNS.items()}
        for q, (columns, items) in enumerate(rows):
            for name, values in found.items():
                values[q, : len(items)] = getattr(ranking, name)[q, columns]
            found["items"][q, : len(items)] = items
        return Ranking(**found)


def _of_retriever(found: Candidates, k: int) -> Ranking:
    """Candidates as a ranking: both scores are the retriever's, and there are no rounds."""
    items = found.items[:, :k]
    own = np.where(items == NO_ITEM, np.nan, found.scores[:, :k]).astype(np.float32)
    unknown, zeros = np.full_like(own, np.nan), np.zeros_like(own)
    return Ranking(items, own, np.zeros_like(items), own, unknown, zeros)


def joined(pool: IntArray, *more: IntArray) -> IntArray:
    """Rows (m, s) of items, and after them what else is in the rows of `more`, each item once."""
    rows = []
    for row in zip(pool, *more, strict=True):
        items = np.concatenate(row)
        items = items[items != NO_ITEM]
        _, first = np.unique(items, return_index=True)
        rows.append(items[np.sort(first)])
    width = max(map(len, rows), default=0)
    filled = np.full((len(rows), width), NO_ITEM, np.int64)
    for r, items in enumerate(rows):
        filled[r, : len(items)] = items
    return filled


def drive(search: Search, score: Callable[[Pairs], FloatArray]) -> Search:
    """The search at its end. `score` gives the exact scores (p,) of pairs, NaN for a pair that it
    cannot score."""
    while len(pairs := search.ask()):
        scores = score(pairs)
        scored = np.flatnonzero(~np.isnan(scores))
        search.tell(pairs.take(scored), scores[scored])
    return search


def simulate(plan: Plan, queries: Queries, scores: FloatArray) -> Search:
    """The search of m queries whose exact scores (m, n) are known, at its end; for no calls."""
    search = Search(plan, queries, scores.shape[1])
    return drive(search, lambda pairs: scores[pairs.query, pairs.item])
