"""Which pairs of G to score (AXN 2.1, B.4), in an order of which any beginning is a fair sample.

Axes: q train queries, n items, p pairs.
"""

from __future__ import annotations

import numpy as np

from crossknn.errors import InputError
from crossknn.first.base import FirstStage
from crossknn.types import NO_ITEM, IntArray, Pairs, Progress, Queries

_QUERIES_AT_ONCE = 256
_SCORES_AT_ONCE = 1 << 26


def per_query(
    stage: FirstStage,
    queries: Queries,
    count: int,
    *,
    n: int,
    random: int = 0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Pairs:
    """Q -> *: the best items of a first stage for each train query, `count` in all (AXN 2.1: k_d).

    Whole queries follow each other in random order, the items of each best first. The last `random`
    are random other ones, and more are where the stage finds fewer: every query has min(count, n).

    Raises InputError if there are no queries, or `count` is below 1.
    """
    _check(count, len(queries), "items per query")
    rng, count, random = np.random.default_rng(seed), min(count, n), min(random, count, n)
    order = rng.permutation(len(queries))
    at_once = max(1, min(_QUERIES_AT_ONCE, _SCORES_AT_ONCE // n))
    items = np.full((len(order), count), NO_ITEM, dtype=np.int64)
    for start in range(0, len(order), at_once):
        chosen = order[start : start + at_once]
        vectors = {name: known[chosen] for name, known in queries.vectors.items()}
        batch = Queries([queries.texts[q] for q in chosen], vectors)
        top = stage.top(batch, count - random).items
        rows = items[start : start + len(chosen)]
        rows[:, : top.shape[1]] = top
        for row in np.flatnonzero((rows == NO_ITEM).any(axis=1)):
            rows[row] = _filled(rows[row], n, batch.generator(int(row), seed))
        if progress:
            progress(start + len(chosen), len(order))
    return Pairs(np.repeat(order, count), items.ravel())


def per_item(n: int, q: int, count: int, *, seed: int = 0) -> Pairs:
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
    return Pairs(
        np.concatenate([pairs.query for pairs in rounds]),
        np.concatenate([pairs.item for pairs in rounds]),
    )


def _filled(row: IntArray, n: int, rng: np.random.Generator) -> IntArray:
    """A short row of items (count,) with random others in the place of `NO_ITEM`."""
    found = row[row != NO_ITEM]
    drawn = rng.choice(n, size=len(row), replace=False)
    others = drawn[~np.isin(drawn, found)]
    return np.concatenate([found, others[: len(row) - len(found)]])


def _check(count: int, q: int, what: str) -> None:
    if count < 1:
        raise InputError(f"{what} is {count}; it must be 1 or more")
    if not q:
        raise InputError("there are no train queries")
