"""The item graph: the nearest other items of every item (GAR's corpus graph).

Axes: n items, k neighbours, d dimensions.
"""

from __future__ import annotations

from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from crossknn.errors import InputError
from crossknn.index.base import Index
from crossknn.linalg import top_k
from crossknn.retrievers.base import ArrayStore, DenseRetriever, Retriever
from crossknn.retrievers.specs import unfitted
from crossknn.types import NO_ITEM, FloatArray, IntArray, Queries

Neighbours: TypeAlias = NDArray[np.int32]
"""Each item's nearest other items, nearest first, as positions (n, k); `NO_ITEM` ends a row."""

NEIGHBOURS = 16
"""GAR's k."""

SCORES = "scores"
"""The graph that is made of the anchors' exact scores."""

RANKED = 100
"""Items of an anchor query's ranking that `nearest_by_rankings` reads."""

_CELLS = 1 << 23


def nearest_items(retriever: Retriever, items: Queries, k: int, at_once: int = 64) -> Neighbours:
    """The k best other items of a retriever with each of n items as its query: (n, k).

    Padded where it finds fewer, e.g. BM25 only items that share a word.
    """
    n = len(items)
    neighbours = np.full((n, k), NO_ITEM, np.int32)
    for start in range(0, n, at_once):
        rows = np.arange(start, min(start + at_once, n))
        found = retriever.top(items.take(rows), k + 1).items
        for item, ranked in zip(rows, found, strict=True):
            others = ranked[(ranked != item) & (ranked != NO_ITEM)][:k]
            neighbours[item, : len(others)] = others
    return neighbours


def nearest_by_vectors(vectors: FloatArray, k: int) -> Neighbours:
    """The k nearest other items by cosine, ties by position: (n, d) -> (n, k), padded.

    Exact, n^2 d multiplications; a block of rows at a time, never an (n, n) array.
    """
    n, single = len(vectors), vectors.astype(np.float32)
    lengths = np.linalg.norm(single, axis=1, keepdims=True)
    unit = single / np.where(lengths > 0, lengths, 1)
    items = Queries([""] * n, {"unit": unit})
    retriever = DenseRetriever(ArrayStore(unit), lambda queries: queries.vectors["unit"])
    return nearest_items(retriever, items, k, max(1, _CELLS // n))


def nearest_by_rankings(scores: FloatArray, k: int) -> Neighbours:
    """The k other items that are ranked high by the same queries: (q, n) exact scores -> (n, k).

    L2G (2510.00887): an item at rank r of a query's first 100 has the value 101 - r in its row of
    A (q, n), others have 0. Two items are as near as their entry of A^T A, ties by position; items
    that no query ranks together are no neighbours, so rows are padded.
    """
    from scipy.sparse import csr_array

    q, n = scores.shape
    depth = min(RANKED, n)
    ranked = top_k(scores, depth).items
    values = np.tile(np.arange(depth, 0, -1, dtype=np.int64), q)
    columns = csr_array((values, ranked.ravel(), np.arange(q + 1) * depth), shape=(q, n))
    rows = columns.T.tocsr()
    neighbours = np.full((n, k), NO_ITEM, np.int32)
    step = max(1, _CELLS // n)
    for start in range(0, n, step):
        products = (rows[start : start + step] @ columns).toarray().astype(np.float64)
        each = np.arange(len(products))
        products[each, start + each] = 0
        best = top_k(np.where(products > 0, products, -np.inf), k).items
        neighbours[start + each, : best.shape[1]] = best
    return neighbours


def cosines(vectors: FloatArray, items: IntArray, others: Neighbours) -> FloatArray:
    """Cosines of items (s,) with their neighbours (s, k), any number at `NO_ITEM`: (s, k)."""
    one, two = vectors[items].astype(np.float32), vectors[others].astype(np.float32)
    products = np.einsum("sd,skd->sk", one, two)
    lengths = np.linalg.norm(two, axis=2) * np.linalg.norm(one, axis=1)[:, None]
    return products / np.where(lengths > 0, lengths, 1)


def item_graph(index: Index, name: str, k: int) -> Neighbours:
    """The k nearest other items of each item (n, k), by the vectors or the words `name`: made once
    and kept in memory. `InputError` where there are no such vectors or words."""
    k = min(k, max(1, index.n - 1))
    if name in index.vectors:
        vectors = index.vectors[name]
        return index.cache.get(
            ("graph", name, k), (vectors,), partial(nearest_by_vectors, vectors, k)
        )
    items, matchers = getattr(index, "items", None), index.retrievers
    if items is not None and name in matchers:
        make = partial(nearest_items, matchers[name], Queries(items.texts), k)
        return index.cache.get(("graph", name, k), (items,), make)
    words = () if items is None else matchers
    raise InputError(
        f"there is nothing to make an item graph {name!r} of (there are: "
        f"{', '.join([*index.vectors, *words]) or 'none'})"
    )


def default_graph(index: Index, name: str) -> str:
    """`name`; for `auto` the graph of the vectors that are not fitted, or else that of BM25."""
    return unfitted(index) or "bm25" if name == "auto" else name
