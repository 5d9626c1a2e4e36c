"""The item graphs that an index keeps (see `graphs`)."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossknn.errors import InputError, nearest
from crossknn.index.base import Index, Neighbours
from crossknn.index.graphs import nearest_by_vectors, nearest_by_words
from crossknn.index.storage import IndexReader
from crossknn.index.writing import IndexWriter
from crossknn.types import FloatArray, Progress

_SAMPLE = 64


@dataclass(frozen=True, kw_only=True, eq=False)
class ItemGraph:
    """What an index keeps: `neighbours` (n, k), mapped if it was loaded, and what they are of.

    `vectors` is a checksum of the vectors they were computed from, None if they are by words.
    """

    neighbours: Neighbours
    vectors: int | None = None

    @staticmethod
    def of(
        index: Index,
        texts: Sequence[str],
        name: str,
        k: int,
        words: Collection[str],
        progress: Progress | None = None,
    ) -> ItemGraph:
        """The graph by the vectors `name` of the index, or by that stage, one of `words`.

        The items' `texts` (n) are its queries. Raises `InputError` for a name that is neither.
        """
        if name in index.vector_names:
            vectors = index.vectors(name)
            found = nearest_by_vectors(vectors, k, progress)
            return ItemGraph(neighbours=found, vectors=checksum(vectors))
        if name in words:
            return ItemGraph(neighbours=nearest_by_words(index.retriever(name), texts, k, progress))
        raise InputError(
            f"an item graph cannot be made of {name!r} "
            f"({nearest(name, [*index.vector_names, *words])}): it needs item vectors, bm25 or "
            "tfidf"
        )

    def meta(self) -> dict[str, Any]:
        """What the manifest says of it."""
        return {"neighbours": int(self.neighbours.shape[1]), "vectors": self.vectors}

    def write(self, writer: IndexWriter, name: str) -> None:
        """Put it on the disk as `name`."""
        writer.replace(f"graph-{name}.")
        writer.array(f"graph-{name}", self.neighbours)

    @staticmethod
    def read(reader: IndexReader, name: str) -> ItemGraph:
        """The stored graph `name`, mapped."""
        made_of = reader.meta["graphs"][name]["vectors"]
        return ItemGraph(neighbours=reader.array(f"graph-{name}"), vectors=made_of)


def checksum(vectors: FloatArray) -> int:
    """Tells the vectors (n, d) from others that may have their name later: CRC-32 of 64 rows."""
    rows = np.linspace(0, len(vectors) - 1, min(_SAMPLE, len(vectors))).astype(np.int64)
    return zlib.crc32(np.ascontiguousarray(vectors[rows]).tobytes(), vectors.shape[1])
