"""The item graph: the nearest other items of every item (GAR's corpus graph).

Axes: n items, k neighbours, d dimensions.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossknn.errors import InputError, nearest
from crossknn.index.base import Index
from crossknn.linalg import inner, top_k
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.specs import unfitted
from crossknn.types import (
    NO_ITEM,
    Artifact,
    Candidates,
    FloatArray,
    IntArray,
    Neighbours,
    Progress,
    Queries,
)

NEIGHBOURS = 16
"""How many neighbours GAR uses (its k), and the default of everything here."""

_CELLS = 1 << 23
_QUERIES = 64
_SAMPLE = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemGraph:
    """What an index keeps: `neighbours` (n, k), mapped if it was loaded, and what they are of.

    `vectors` is a checksum of the vectors they were computed from, None if they are by words.
    """

    neighbours: Neighbours
    vectors: int | None = None

    @staticmethod
    def make(
        name: str,
        k: int,
        vectors: Mapping[str, FloatArray],
        words: Mapping[str, Retriever],
        texts: Sequence[str],
        progress: Progress | None = None,
    ) -> ItemGraph:
        """The graph by the vectors `name`, or by that retriever with the items (n) as queries.

        Raises `InputError` for a name that is neither.
        """
        if name in vectors:
            values = vectors[name]
            found = nearest_by_vectors(values, k, progress)
            return ItemGraph(neighbours=found, vectors=checksum(values))
        if name in words:
            return ItemGraph(neighbours=nearest_by_words(words[name], texts, k, progress))
        raise InputError(
            f"an item graph cannot be made of {name!r} ({nearest(name, [*vectors, *words])}): it "
            "needs item vectors, bm25 or tfidf"
        )

    def artifact(self) -> Artifact:
        """What an index keeps."""
        meta = {"neighbours": int(self.neighbours.shape[1]), "vectors": self.vectors}
        return Artifact(meta, {"neighbours": self.neighbours})

    @staticmethod
    def of(artifact: Artifact) -> ItemGraph:
        """The stored graph, mapped."""
        neighbours = artifact.arrays["neighbours"]
        return ItemGraph(neighbours=neighbours, vectors=artifact.meta["vectors"])


def nearest_by_vectors(vectors: FloatArray, k: int, progress: Progress | None = None) -> Neighbours:
    """The k nearest other items by cosine, ties by position: (n, d) -> (n, k), padded.

    Exact, n^2 d multiplications; a block of rows at a time, never an (n, n) array.
    """
    n = len(vectors)
    at_once = max(1, _CELLS // n)
    lengths = np.concatenate([_lengths(vectors[s : s + at_once]) for s in range(0, n, at_once)])

    def rank(start: int, stop: int) -> Candidates:
        # A row's own length does not change its ranking.
        cosines = inner(vectors[start:stop].astype(np.float32), vectors) / lengths
        cosines[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        return top_k(cosines, k)

    return _in_blocks(rank, n, k, at_once, progress)


def nearest_by_words(
    retriever: Retriever, texts: Sequence[str], k: int, progress: Progress | None = None
) -> Neighbours:
    """The k best other items of a retriever with each of the n items as its query: (n, k).

    Padded where it finds fewer, e.g. BM25 only items that share a word.
    """

    def rank(start: int, stop: int) -> Candidates:
        found = retriever.top(Queries(texts[start:stop]), k + 1)
        rows = [
            (items[others], scores[others])
            for item, (items, scores) in enumerate(zip(found.items, found.scores, strict=True))
            for others in [np.flatnonzero((items != start + item) & (items != NO_ITEM))[:k]]
        ]
        return Candidates.from_rows(rows)

    return _in_blocks(rank, len(texts), k, _QUERIES, progress)


def cosines(vectors: FloatArray, items: IntArray, others: Neighbours) -> FloatArray:
    """Cosines of items (s,) with their neighbours (s, k), any number at `NO_ITEM`: (s, k)."""
    one, two = vectors[items].astype(np.float32), vectors[others].astype(np.float32)
    products = np.einsum("sd,skd->sk", one, two)
    lengths = np.linalg.norm(two, axis=2) * np.linalg.norm(one, axis=1)[:, None]
    return products / np.where(lengths > 0, lengths, 1)


def check_neighbours(neighbours: Any, n: int, what: str) -> Neighbours:
    """The array as (n, k) int32; `InputError` unless it holds other items, each once in a row."""
    if neighbours.dtype.kind not in "iu" or neighbours.ndim != 2 or len(neighbours) != n:
        raise InputError(
            f"{what} is an array of {neighbours.dtype} of the shape {neighbours.shape}; it must be "
            f"whole numbers of the shape ({n}, neighbours)"
        )
    found = neighbours.astype(np.int64)
    if not ((found >= NO_ITEM) & (found < n)).all():
        raise InputError(f"{what} must hold positions of items, 0 to {n - 1}, and -1 for none")
    own = (found == np.arange(n)[:, None]).any(axis=1)
    if own.any():
        raise InputError(
            f"{what} has item {int(np.argmax(own))} among its own neighbours; leave it out"
        )
    there = found != NO_ITEM
    if (there[:, 1:] & ~there[:, :-1]).any():
        raise InputError(f"{what} has -1 before a neighbour; it may only end a row")
    ordered = np.sort(found, axis=1)
    if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_ITEM)).any():
        raise InputError(f"{what} has an item twice in a row")
    return found.astype(np.int32)


def nearest_neighbours(neighbours: Neighbours, k: int, name: str) -> Neighbours:
    """The first k of each row; `InputError` where fewer are stored."""
    stored = neighbours.shape[1]
    if k > stored:
        raise InputError(
            f"the item graph {name!r} has {stored} neighbours of each item, not {k}: use "
            f"neighbours={stored}, or make it again with  crossknn index add INDEX --graph {k}  "
            f"(in a matrix file: the key graph_{name})"
        )
    return neighbours[:, :k]


def no_graph(name: str, names: Sequence[str]) -> InputError:
    """There is no item graph of that name: what to do."""
    return InputError(
        f"there is no item graph {name!r} here (there are: {', '.join(names) or 'none'}"
        f"); make it with  crossknn index add INDEX --graph {NEIGHBOURS} --graph-from {name}  "
        f"(in a matrix file: the key graph_{name})"
    )


def default_graph(index: Index, name: str, method: str) -> str:
    """`name`; for `auto` the graph of the vectors that are not fitted, or else the first there is.

    Raises `InputError` where there is none.
    """
    if name != "auto":
        return name
    usual = unfitted(index)
    if usual in index.graphs:
        return str(usual)
    if not index.graphs:
        raise InputError(
            f"{method} needs the item graph, and there is none here: make it with  crossknn index "
            f"... --graph {NEIGHBOURS}  or  index.add_graph()  (a matrix file needs vectors, or "
            "the key graph_<name>)"
        )
    return next(iter(index.graphs))


def checksum(vectors: FloatArray) -> int:
    """Tells the vectors (n, d) from others that may have their name later: CRC-32 of 64 rows."""
    rows = np.linspace(0, len(vectors) - 1, min(_SAMPLE, len(vectors))).astype(np.int64)
    return zlib.crc32(np.ascontiguousarray(vectors[rows]).tobytes(), vectors.shape[1])


def _in_blocks(
    rank: Callable[[int, int], Candidates],
    n: int,
    k: int,
    at_once: int,
    progress: Progress | None,
) -> Neighbours:
    neighbours = np.full((n, k), NO_ITEM, np.int32)
    for start in range(0, n, at_once):
        stop = min(start + at_once, n)
        found = rank(start, stop).items
        neighbours[start:stop, : found.shape[1]] = found
        if progress:
            progress(stop, n)
    return neighbours


def _lengths(vectors: FloatArray) -> FloatArray:
    """Euclidean lengths (n,), 1 for a vector of zeros."""
    lengths = np.linalg.norm(vectors.astype(np.float32), axis=1)
    return np.where(lengths > 0, lengths, 1)
