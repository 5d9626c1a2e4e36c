"""The search loop: `ask` it which pairs to score, and `tell` it the scores. It reads no clock,
device or text: its callers handle deadlines, asynchronous scorers and remote workers.

Axes: m queries, n items, b pairs of a query to score so far, p pairs, s items of a shortlist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.methods.base import Plan, Stop
from crossknn.retrievers.base import Ranked, extended
from crossknn.search.groups import Groups
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

JOINS, JOINING = {2 + r * (r + 1) for r in range(999)}, 8
"""Before rounds 2, 4, 8, 14 and so on, a shortlist may grow by eight times the number of items that
the largest round scores, and by at least half of its first length. Growth before every round finds
no more and takes longer."""


class RoundState(NamedTuple):
    """The state of a search in one round; the next round gets a new state.

    `picks` (m, b) are the items that `ask` has chosen so far, in order; a score is NaN until `tell`
    writes it into this array, the only one that is modified, because scores come in small batches.
    `columns` has the column in `picks` of each pair (query, item) of this round, `scored` and
    `failed` (m,) count earlier pairs, and `stopped` (m,) marks queries ended before their budget
    was spent. `belief` is the predictor's state, None before the second round; `retrieved` are the
    candidates for the first round, and `pool` (m, s) the items from which later rounds choose,
    None: all.
    """

    picks: Ranking
    stopped: BoolArray
    scored: IntArray
    failed: IntArray
    columns: Mapping[tuple[int, int], int]
    number: int = 0
    belief: Any = None
    retrieved: Candidates | None = None
    pool: IntArray | None = None


class Search:
    """A search with a budget over m queries and n items.

    Every query scores min(budget, allowed items) distinct pairs, unless it stops early or pairs
    cannot be scored. A pair without a score at the next `ask` counts as failed: it does not use the
    budget, and another item replaces it. All returned arrays are copies.

    Args:
        plan, queries, n: The plan of a method, m queries, and the number of items.
        allowed: Mask (n,) of the items that may be scored; None: all.
        depth: Minimum number of items that the retriever returns in round 1, for `first`.
        groups: Groups of items, if the search is for the best groups.
    """

    def __init__(
        self,
        plan: Plan,
        queries: Queries,
        n: int,
        *,
        allowed: BoolArray | None = None,
        depth: int = 0,
        groups: Groups | None = None,
    ) -> None:
        if allowed is not None and allowed.shape != (n,):
            raise InputError(f"the filter has shape {allowed.shape}, but the index has {n} items")
        self.plan, self.queries, self.n, self.allowed, self.depth = plan, queries, n, allowed, depth
        self.groups, m = groups, len(queries)
        self.available = n if allowed is None else int(allowed.sum())
        self.budget = min(sum(plan.batches), self.available)
        """Maximum number of pairs that a query scores."""
        self._targets = [min(target, self.budget) for target in accumulate(plan.batches)]
        self.expectations: list[tuple[IntArray, FloatArray]] = []
        """If the plan has a `stop`: before each round but the first, each query's number of scores
        (m,) and expected recall (m,), NaN if unknown."""
        self._state = RoundState(
            picks=Ranking.empty(m),
            stopped=np.zeros(m, np.bool_),
            scored=np.zeros(m, np.int64),
            failed=np.zeros(m, np.int64),
            columns={},
        )

    @property
    def round(self) -> int:
        """Number of rounds begun so far."""
        return self._state.number

    @property
    def n_scored(self) -> IntArray:
        """Number (m,) of distinct pairs with an exact score, for each query."""
        return np.count_nonzero(~np.isnan(self._state.picks.scores), axis=1)

    @property
    def n_failed(self) -> int:
        """Number of pairs that `ask` returned but that never got a score."""
        return int(self._state.failed.sum())

    @property
    def taught(self) -> int:
        """Number of queries that have learned from each other's scores."""
        belief = self._state.belief
        return 0 if belief is None else self.plan.predictor.taught(belief)

    @property
    def stopped(self) -> BoolArray:
        """Mask (m,) of the queries that were ended, by `Plan.stop` or `end`, with budget left."""
        return self._state.stopped.copy()

    @property
    def unfinished(self) -> BoolArray:
        """Mask (m,) of the queries that may still score pairs."""
        return self._room(self._state, self.n_scored) > 0

    def ask(self) -> Pairs:
        """Begin the next round, and return the pairs to score, none if all queries are done."""
        asked, scored = self._state.picks.items, self.n_scored
        failed = np.count_nonzero(asked != NO_ITEM, axis=1) - scored
        state = self._state._replace(columns={}, scored=scored, failed=failed)
        self._state, pairs = state, Pairs(*np.empty((2, 0), np.int64))
        while not len(pairs) and self._room(state, scored).any():
            state = state._replace(number=state.number + 1)
            if self._wanted(state).any():
                state, pairs = self._pick(state)
        self._state = state
        return pairs

    def tell(self, pairs: Pairs, scores: FloatArray) -> None:
        """Record the exact scores (p,) of any pairs from `ask`, in any order. Raises `ScorerError`
        unless `scores` are p finite numbers, and `InputError` for a pair that is not from `ask`.
        """
        scores = np.asarray(scores, np.float32)
        if scores.shape != (len(pairs),):
            raise ScorerError(f"{scores.size} scores were given for {len(pairs)} pairs")
        for p in np.flatnonzero(~np.isfinite(scores)).tolist():
            pair = f"query {pairs.query[p]} and item {pairs.item[p]}"
            raise ScorerError(f"the score of {pair} is {scores[p]}")
        asked, columns = list(zip(pairs.query.tolist(), pairs.item.tolist(), strict=True)), []
        for query, item in asked:
            if (query, item) not in self._state.columns:
                raise InputError(f"query {query} was not asked about item {item}")
            columns.append(self._state.columns[query, item])
        self._state.picks.scores[pairs.query, columns] = scores

    def end(self, query: int) -> None:
        """End the query at this position: `ask` returns no more of its pairs."""
        stopped = self._state.stopped.copy()
        stopped[query] = True
        self._state = self._state._replace(stopped=stopped)

    def hurry(self, rounds: int) -> None:
        """Score what is left of the budget in at most so many more rounds of equal size; the first
        round of all is as large as planned, or larger."""
        done = self._state.number
        if (rounds := max(rounds, 1)) >= len(self._targets) - done:
            return
        targets = self._targets[:done] or [max(self._targets[0], -(-self.budget // rounds))]
        more = rounds + done - len(targets)
        left = self.budget - targets[-1]
        self._targets = [*targets, *(targets[-1] + left * r // more for r in range(1, more + 1))]

    def best(self, k: int) -> Ranking:
        """The k best scored items of each query, by final score; for a plan without rounds, the k
        best items of the retriever."""
        if not self.plan.batches and self.available:
            count = min(k, self.available)
            return of_retriever(self.plan.retriever.top(self.queries, count, self.allowed), k)
        picks = self._state.picks
        final = np.nan_to_num(picks.final, nan=-np.inf)
        return self._scored(np.lexsort((picks.items, -final))[:, :k])

    def filled(self, k: int) -> Ranking:
        """Return `best(k)`, filled up to k with unscored items by predicted final score; their
        `scores` are NaN."""
        best, state, predictor = self.best(k), self._state, self.plan.predictor
        count = min(k, self.available) - best.items.shape[1]
        if count <= 0:
            return best
        pool = state.pool
        if pool is not None:
            pool = joined(pool, self.plan.retriever.top(self.queries, k, self.allowed).items)
        more = predictor.top(self._learn(state), count, state.picks.items, self.allowed, pool)
        below, added = Ranking.empty(*more.items.shape), self._added(more.items)
        std = below.std if more.std is None else more.std
        below = replace(below, items=more.items, approx=more.scores, std=std, added=added)
        return best.beside(below.where(more.items != NO_ITEM))

    def ranked(self) -> Candidates:
        """Rank items by exact score where it is known, and by predicted score elsewhere: all items,
        or those of the shortlist. What a retriever "predicts" follows all exact scores."""
        state, plan, picks = self._state, self.plan, self.picks()
        if state.retrieved is None:
            return plan.retriever.top(self.queries, self.available, self.allowed)
        if not getattr(plan.predictor, "predictor", plan.predictor).predicts_scores:
            best = self.best(picks.items.shape[1])
            rest = joined(best.items, state.retrieved.items)[:, best.items.shape[1] :]
            return extended(Candidates(best.items, best.final), rest)
        belief, pool = self._learn(state), state.pool
        if plan.shortlist is not None and pool is None:
            pool = self._restriction(state._replace(belief=belief), plan.shortlist, picks.items)
        others = plan.predictor.top(belief, self.available, picks.items, self.allowed, pool)
        items = np.hstack([picks.items, others.items])
        scores = np.hstack([np.nan_to_num(picks.final, nan=-np.inf), others.scores])
        order = np.lexsort((items, -scores))
        return Candidates(*(np.take_along_axis(each, order, axis=1) for each in (items, scores)))

    def picks(self) -> Ranking:
        """Every scored item of each query, in the order in which the items were chosen."""
        order = np.argsort(np.isnan(self._state.picks.scores), axis=1, kind="stable")
        return self._scored(order[:, : int(self.n_scored.max(initial=0))])

    def first(self, k: int) -> Ranking:
        """The retriever's candidates for the first round, at most k; empty before that round."""
        retrieved, none = self._state.retrieved, Ranking.empty(len(self.queries))
        return none if retrieved is None else of_retriever(retrieved, k)

    def observed(self) -> Observed:
        """All exact scores so far, without gaps in a query's row."""
        picks = self._state.picks
        if np.isnan(picks.scores).any():
            picks = self.picks()
        return Observed(picks.items.copy(), picks.scores.copy(), self.n_scored)

    def _scored(self, columns: IntArray) -> Ranking:
        chosen = self._state.picks.take(columns)
        return chosen.where(~np.isnan(chosen.scores))

    def _room(self, state: RoundState, scored: IntArray) -> IntArray:
        """Number (m,) of new items that each query may still score."""
        reachable = np.minimum(self.budget, self.available - state.failed)
        return np.where(state.stopped, 0, reachable - scored)

    def _wanted(self, state: RoundState) -> IntArray:
        """Number (m,) of new items that each query scores in this round."""
        target = self._targets[min(state.number, len(self._targets)) - 1]
        room = self._room(state, state.scored)
        return np.minimum(np.maximum(target - state.scored, 0), room)

    def _pick(self, state: RoundState) -> tuple[RoundState, Pairs]:
        seen = state.picks.items.copy()
        if state.number == 1:
            rank: Callable[[int], Candidates] = self._retrieve
        else:
            state = self._prepared(state._replace(belief=self._learn(state)), seen)
            belief, pool = state.belief, state.pool
            rank = lambda count: self.plan.predictor.top(  # noqa: E731
                belief, count, seen, self.allowed, pool
            )
        wanted = self._wanted(state)
        if self.groups is None:
            candidates = rank(int(wanted.max()))
        else:
            given = int(wanted.max()), self.available, seen, state.picks.final
            candidates = self.groups.spread(rank, *given)
        if state.number == 1:
            state = state._replace(retrieved=candidates)
        new = Ranking.empty(len(wanted), int(wanted.max()))
        for q in np.flatnonzero(wanted).tolist():
            items, approx, std = _first(candidates, q, int(wanted[q]))
            if lacking := int(wanted[q]) - len(items):
                more = np.flatnonzero(self._free(np.append(seen[q], items)))[:lacking]
                items = np.append(items, more)
            new.items[q, : len(items)], new.rounds[q, : len(items)] = items, state.number
            new.approx[q, : len(approx)], new.std[q, : len(std)] = approx, std
        query, column = np.nonzero(new.items != NO_ITEM)
        pairs = Pairs(query, new.items[query, column])
        new = replace(new, added=self._added(new.items))
        asked = zip(query.tolist(), pairs.item.tolist(), strict=True)
        columns = dict(zip(asked, (seen.shape[1] + column).tolist(), strict=True))
        picks = state.picks.beside(new)
        return state._replace(picks=picks, columns=columns), pairs

    def _retrieve(self, wanted: int) -> Candidates:
        shortlist = self.plan.shortlist
        width = wanted if shortlist is None else max(shortlist, self.budget)
        depth = max(width, min(self.depth, self.available))
        return self.plan.retriever.top(self.queries, depth, self.allowed)

    def _learn(self, state: RoundState) -> Any:
        belief = self.plan.predictor.start(self.queries) if state.belief is None else state.belief
        return self.plan.predictor.update(belief, self.observed())

    def _prepared(self, state: RoundState, seen: IntArray) -> RoundState:
        """Prepare a round after the first: extend the shortlist, and end queries whose expected
        recall is high enough."""
        if self.plan.shortlist is not None:
            state = state._replace(pool=self._restriction(state, self.plan.shortlist, seen))
        if self.plan.stop is None:
            return state
        value = self._expected(state, self.plan.stop)
        self.expectations.append((state.scored, value))
        return state._replace(stopped=state.stopped | (value >= self.plan.stop.expected))

    def _restriction(self, state: RoundState, shortlist: int, seen: IntArray) -> IntArray:
        """Return each query's shortlist (m, s): the previous shortlist and items added to it."""
        pool = state.pool
        if pool is None:
            assert state.retrieved is not None
            own = state.retrieved.items[:, : max(shortlist, self.budget)]
            stages = [s.top(self.queries, shortlist, self.allowed) for s in self.plan.stages]
            pool = joined(own, *(stage.items for stage in stages))
        elif state.number not in JOINS:
            return pool
        count = JOINING * max(shortlist // (2 * JOINING), *np.diff(self._targets).tolist(), 1)
        return joined(pool, self.plan.predictor.joining(state.belief, count, seen, self.allowed))

    def _expected(self, state: RoundState, stop: Stop) -> FloatArray:
        """Expected recall (m,) of each query according to `stop`, NaN if unknown."""
        expected = np.full(len(self.queries), np.nan)
        prediction, final = self.plan.predictor.predict(state.belief, state.pool), state.picks.final
        if prediction.std is None:
            return expected
        for q in np.flatnonzero(~state.stopped).tolist():
            items = np.arange(self.n) if state.pool is None else state.pool[q]
            unscored = (items != NO_ITEM) & self._free(state.picks.items[q])[items]
            mean, std = prediction.mean[q, unscored], prediction.std[q, unscored]
            scores = final[q, ~np.isnan(final[q])]
            if len(scores) >= stop.k and not np.isnan(std).any():
                expected[q] = stop.value(scores, mean, std)
        return expected

    def _free(self, seen: IntArray) -> BoolArray:
        """Mask (n,) of the items that a query may still score."""
        free = np.ones(self.n, np.bool_) if self.allowed is None else self.allowed.copy()
        free[seen[seen != NO_ITEM]] = False
        return free

    def _added(self, items: IntArray) -> FloatArray:
        """Return the weighted retrievers' scores of these items (m, k), 0 without fusion."""
        if self.plan.added is None:
            return np.zeros(items.shape, np.float32)
        added = np.take_along_axis(self.plan.added(self.queries), np.maximum(items, 0), axis=1)
        return np.where(items == NO_ITEM, 0, added)


class SearchRetriever(Ranked):
    """Retrieves what a search has found: an item has its exact score if the search computed it, or
    else the search's prediction of it (as in recursive cokriging, Le Gratiet 2013). Queries are
    searched when items are first retrieved for them: `search` takes texts (m,), and returns
    `Search.ranked` and its results."""

    def __init__(self, search: Callable[[Sequence[str]], tuple[Candidates, Any]], n: int) -> None:
        self.n, self._search = n, search
        self._found: dict[tuple[str, ...], tuple[Candidates, Any]] = {}

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        ranking = self.searched(queries)
        kept = ranking.items != NO_ITEM
        if allowed is not None:
            kept &= allowed[ranking.items]
        both = zip(ranking.items, ranking.scores, kept, strict=True)
        return Candidates.from_rows([(i[k][:count], s[k][:count]) for i, s, k in both])

    def searched(self, queries: Queries) -> Candidates:
        """Search for the queries, unless that has been done, and return the ranking."""
        key, found = tuple(queries.texts), self._found
        if key not in found:  # the last batch is enough; other threads may replace it
            found = self._found = {key: self._search(key)}
        return found[key][0]

    def results(self, queries: Queries) -> Any:
        """Return the results of the search for these queries; None if they were not searched."""
        return self._found.get(tuple(queries.texts), (None, None))[1]


def _first(candidates: Candidates, q: int, count: int) -> tuple[IntArray, FloatArray, FloatArray]:
    columns = np.flatnonzero(candidates.items[q] != NO_ITEM)[:count]
    std = np.full(len(columns), np.nan) if candidates.std is None else candidates.std[q, columns]
    return candidates.items[q, columns], candidates.scores[q, columns], std


def of_retriever(candidates: Candidates, k: int) -> Ranking:
    """Convert candidates to a ranking without rounds, with the retriever's scores."""
    items = candidates.items[:, :k]
    own = candidates.scores[:, :k].astype(np.float32)
    ranking = replace(Ranking.empty(*items.shape), items=items, scores=own, approx=own)
    return ranking.where(items != NO_ITEM)


def joined(pool: IntArray, *more: IntArray) -> IntArray:
    """Append further items to each row of items (m, s), keeping each item once."""
    rows = []
    for row in zip(pool, *more, strict=True):
        items = np.concatenate(row)
        items = items[items != NO_ITEM]
        _, first = np.unique(items, return_index=True)
        rows.append(items[np.sort(first)])
    return Candidates.from_rows([(row, np.zeros(len(row))) for row in rows]).items


def drive(search: Search, score: Callable[[Pairs], FloatArray]) -> Search:
    """Run a search to its end. `score` returns the exact scores (p,) of pairs, NaN for pairs that
    it cannot score."""
    while len(pairs := search.ask()):
        scores = score(pairs)
        scored = np.flatnonzero(~np.isnan(scores))
        search.tell(pairs.take(scored), scores[scored])
    return search


def simulate(
    plan: Plan, queries: Queries, scores: FloatArray, groups: Groups | None = None
) -> Search:
    """Run a search of m queries whose exact scores (m, n) are known, without calling a scorer."""
    search = Search(plan, queries, scores.shape[1], groups=groups)
    return drive(search, lambda pairs: scores[pairs.query, pairs.item])
