"""Retrievers by chance: fresh random items for each query, or fixed ones for all."""

from __future__ import annotations

import numpy as np

from crossknn.linalg import mask, top_k
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Queries


class RandomFirst:
    """Items uniformly at random, drawn anew for each query (by its text and the seed)."""

    def __init__(self, n: int, seed: int) -> None:
        self.n, self.seed = n, seed

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        return top_k(mask(self.scores(queries), None, allowed), count)

    def scores(self, queries: Queries) -> FloatArray:
        rows = [queries.generator(q, self.seed).random(self.n) for q in range(len(queries))]
        return np.array(rows, dtype=np.float32)


class FixedFirst:
    """The same items for every query, in a fixed order (n,): ANNCUR's anchor items."""

    def __init__(self, order: IntArray, n: int) -> None:
        self.n = n
        rest = np.setdiff1d(np.arange(n), order)
        ranked = np.concatenate([order, rest])
        self.by_item = np.empty(n, dtype=np.float32)
        self.by_item[ranked] = -np.arange(n, dtype=np.float32)

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        return top_k(mask(self.scores(queries), None, allowed), count)

    def scores(self, queries: Queries) -> FloatArray:
        return np.tile(self.by_item, (len(queries), 1))
