"""Sparse scores of a table."""

import numpy as np

from crossknn.scores.store import SparseScores
from crossknn.types import Pairs


def entries(table, share=1.0, *, raw=(1.0, 0.0)):
    """A random share of a table's entries, as raw scores `raw[0] * value + raw[1]`."""
    q, n = table.shape
    query, item = np.nonzero(np.random.default_rng(0).random((q, n)) < share)
    score = raw[0] * table[query, item] + raw[1]
    return SparseScores.of([f"query {r}" for r in range(q)], n, Pairs(query, item), score)
