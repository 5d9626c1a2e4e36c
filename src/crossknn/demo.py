"""The demonstration: the documentation of the Python standard library, searched for real.

Held-out docstrings give test queries: their first sentence is the query, the item keeps the rest.
"""

from __future__ import annotations

import numpy as np

from crossknn.data.dataset import Dataset
from crossknn.data.queries import QuerySet
from crossknn.scorers import CrossEncoder, Scorer

BUDGETS = (25, 50, 100, 200)
KS = (1, 10, 50)
METHODS = {
    "rerank(retriever=bm25)": "BM25, rerank",
    "rerank(retriever=dense)": "dual encoder, rerank",
    "rerank(retriever=hybrid(bm25, dense))": "hybrid, rerank",
    "axn(retriever=hybrid(bm25, dense), rounds=10, blend=0.5)": "AXN as in the paper",
    "axn(retriever=hybrid(bm25, dense), rounds=10, ridge=0.3)": "AXN with ridge, the default",
}
"""What the demo compares: spec -> short name."""

SEARCHES = (
    "how do I unzip a file",
    "run a function in another thread and get its result",
    "remove duplicates from a list but keep the order",
)


MAX_LENGTH = 96
"""Tokens of a pair that the demo's cross-encoder reads: most docstrings say what they do early."""


def open_scorer() -> Scorer:
    """The bundled cross-encoder as the demo uses it."""
    return CrossEncoder(max_length=MAX_LENGTH, threads=1)


def sample(data: Dataset, count: int, seed: int) -> QuerySet:
    """`count` of the held-out queries, by seed, in their own order."""
    size = min(count, len(data))
    chosen = np.random.default_rng(seed).choice(len(data), size, replace=False)
    return data.queries.take(np.sort(chosen).tolist())
