"""Which pairs of G to score (AXN 2.1, B.4), in an order of which any beginning is a fair sample.

Axes: q train queries, n items, p pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from crossknn.errors import InputError
from crossknn.retrievers.base import Retriever
from crossknn.types import NO_ITEM, IntArray, Pairs, Progress, Queries

_QUERIES_AT_ONCE = 256
_SCORES_AT_ONCE = 1 << 26
_DRAWN_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class PairPlan:
    """The pairs (p,) of G, and those of them that chance alone has chosen: a fair sample of all."""

    pairs: Pairs
    random: Pairs


def per_query(
    stage: Retriever,
    queries: Queries,
    count: int,
    *,
    n: int,
    random: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
) -> PairPlan:
    """Q -> *: the best items of a retriever for each train query, `count` in all (AXN 2.1: k_d).

    Whole queries follow each other in random order: `random` items drawn from all n, then the best
    of the others. Where the stage finds fewer, more random ones follow, so that every query has
    min(count, n). What a smaller `count` or `random` draws is among what a larger one does.

    Raises InputError if there are no queries, or `count` is below 1.
    """
    _check(count, len(queries), "items per query")
    rng, count, random = np.random.default_rng(seed), min(count, n), min(random, count, n)
    order = rng.permutation(len(queries))
    at_once = max(1, min(_QUERIES_AT_ONCE, _SCORES_AT_ONCE // n))
    items = np.empty((len(order), count), dtype=np.int64)
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        vectors = {name: known[chosen] for name, known in queries.vectors.items()}
        batch = Queries([queries.texts[q] for q in chosen], vectors)
        top = stage.top(batch, count).items
        for row, best in enumerate(top):
            drawn = _Drawn(batch.generator(row, seed), n)
            retriever = drawn.take(random)
            near = best[(best != NO_ITEM) & ~np.isin(best, retriever)][: count - random]
            rest = drawn.beside(np.concatenate([retriever, near]), count)
            items[start + row] = np.concatenate([retriever, near, rest])
        if progress:
            progress(start + len(chosen), len(order))
    pairs = Pairs(np.repeat(order, count), items.ravel())
    return PairPlan(pairs, pairs.take(np.flatnonzero(np.arange(len(pairs)) % count < random)))


def per_item(n: int, q: int, count: int, *, seed: int = 0) -> PairPlan:
    """I -> *: `count` different random queries, of a pool of q, for each item (AXN B.4).

    In rounds: every item, in random order, has one query before any has two.

    Raises InputError if there are fewer than `count` queries, or `count` is below 1.
    """
    _check(count, q, "queries per item")
    if count > q:
        raise InputError(f"{count} queries per item were asked for, but there are only {q}")
    rng = np.random.default_rng(seed)
    drawn = np.empty((n, 0), dtype=np.int64)  # each row sorted
    rounds: list[Pairs] = []
    for _ in range(count):
        query = rng.integers(q - len(rounds), size=n)
        for before in drawn.T:  # from a number among those left to the query it stands for
            query += query >= before
        order = rng.permutation(n)
        rounds.append(Pairs(query[order], order))
        drawn = np.sort(np.column_stack([drawn, query]), axis=1)
    pairs = Pairs(
        np.concatenate([pairs.query for pairs in rounds]),
        np.concatenate([pairs.item for pairs in rounds]),
    )
    return PairPlan(pairs, pairs)


class _Drawn:
    """Different items of n in random order, drawn as far as they are needed."""

    def __init__(self, rng: np.random.Generator, n: int) -> None:
        self._rng, self._n = rng, n
        self._items: IntArray = np.empty(0, dtype=np.int64)

    def take(self, count: int) -> IntArray:
        """The first `count` (at most n): those of any smaller count come first."""
        while len(self._items) < count:
            more = self._rng.integers(self._n, size=max(_DRAWN_AT_ONCE, len(self._items)))
            both = np.concatenate([self._items, more])
            self._items = both[np.sort(np.unique(both, return_index=True)[1])]
        return self._items[:count]

    def beside(self, known: IntArray, count: int) -> IntArray:
        """Those that `known` lacks, until there are `count` with it."""
        if len(known) >= count:
            return self._items[:0]
        drawn = self.take(count)
        others: IntArray = drawn[~np.isin(drawn, known)]
        return others[: count - len(known)]


def _check(count: int, q: int, what: str) -> None:
    if count < 1:
        raise InputError(f"{what} is {count}; it must be 1 or more")
    if not q:
        raise InputError("there are no train queries")
