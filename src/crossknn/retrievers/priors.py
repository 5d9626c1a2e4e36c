"""What is known of items whatever the query: how often they are read, how new they are."""

from __future__ import annotations

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import mask, top_k
from crossknn.types import BoolArray, Candidates, FloatArray, Queries


class ItemPriors:
    """One number for each item, the same for every query.

    As a retriever of its own it is a poor one; it is meant for what `kriging` predicts from:
    `index.add_retriever("views", ItemPriors(views))`, `kriging(mean=hybrid(bm25, dense, views))`.
    """

    def __init__(self, values: FloatArray) -> None:
        """`values` (n,), in the order of the items; `InputError` for one that is no number."""
        try:
            self.values = np.asarray(values, np.float32)
        except (TypeError, ValueError):
            self.values = np.full(1, np.nan, np.float32)
        if self.values.ndim != 1 or not np.isfinite(self.values).all():
            raise InputError("priors of items are an array of finite numbers, one for each item")

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The items of the highest priors, the same for each query."""
        return top_k(mask(self.scores(queries), None, allowed), count)

    def scores(self, queries: Queries) -> FloatArray:
        """The priors, for every query: (m, n)."""
        return np.tile(self.values, (len(queries), 1))
