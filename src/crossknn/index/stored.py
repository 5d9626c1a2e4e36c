"""A stored score matrix: an index to replay searches on, without texts or models.

Keys of the `.npz` file: `scores` (q, n) raw logits; `n_anchors`, the first rows that are anchor
queries; and, optional, `item_vectors` (n, d) and `query_vectors` (q, d) (the retriever `dense`),
`item_vectors_<name>` and `query_vectors_<name>` (or without these) for fitted vectors,
`first_<name>` (q, n) cheap scores of another retriever, `graph_<name>` (n, k) item graphs,
`anchor_items` (a,), `labels` (q,),
`item_ids` (n,), `query_ids` (q,), and for item x item methods `item_score_items` (a,) and
`item_scores` (a, n). Files made by `crossknn.fitting.matrix` also say what they are of: `scorer`,
`items_digest`, `query_digests` (q,), `dtype`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.index.base import Anchors, Index, ItemScores, Late, Named, Neighbours, Scale
from crossknn.index.graphs import (
    check_neighbours,
    nearest_by_vectors,
    nearest_neighbours,
    no_graph,
)
from crossknn.index.memo import Memo
from crossknn.index.stored_checks import check_arrays
from crossknn.linalg import inner
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.lists import StoredRetriever
from crossknn.types import Artifact, FloatArray, IntArray, Queries

DUAL_ENCODER = "dense"


@dataclass(frozen=True, eq=False)
class StoredVectors:
    """One space: vectors of items (n, d), of all queries (q, d) if they have any, and its scale."""

    items: FloatArray
    queries: FloatArray | None
    scale: Scale | None


@dataclass(frozen=True, eq=False)
class StoredMatrix:
    """Arrays of a score matrix; the first `n_anchors` of its q queries are anchors."""

    scores: FloatArray
    n_anchors: int
    item_vectors: FloatArray | None
    query_vectors: FloatArray | None
    firsts: Mapping[str, FloatArray]
    query_ids: tuple[str, ...]
    anchor_items: IntArray | None = None
    labels: IntArray | None = None
    item_scores: ItemScores | None = None
    item_ids: tuple[str, ...] | None = None
    fitted: Mapping[str, StoredVectors] = field(default_factory=dict)
    graphs: Mapping[str, Neighbours] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    memo: Memo = field(default_factory=Memo, init=False, repr=False)
    _computed: dict[str, Neighbours] = field(default_factory=dict, init=False, repr=False)

    @property
    def n_tests(self) -> int:
        """Queries that are not anchors."""
        return len(self.scores) - self.n_anchors

    @cached_property
    def scale(self) -> Scale | None:
        """From the anchors' exact scores to their inner products; centred only without vectors."""
        return self._fitted(self.item_vectors, self.query_vectors)

    @cached_property
    def anchors(self) -> Anchors | None:
        """The scores of the anchor queries, if there are any."""
        if self.scale is None:
            return None
        queries = self.queries(slice(0, self.n_anchors))
        return Anchors(self.scores[: self.n_anchors], self.scale.alpha, queries)

    @cached_property
    def spaces(self) -> Mapping[str, StoredVectors]:
        """All vectors by name: `dense` if there are some, and the fitted ones."""
        if self.item_vectors is None or self.query_vectors is None:
            return self.fitted
        encoded = StoredVectors(self.item_vectors, self.query_vectors, self.scale)
        return {DUAL_ENCODER: encoded, **self.fitted}

    def queries(self, where: slice) -> Queries:
        """The queries in the rows `where`, with their vectors."""
        spaces = self.spaces.items()
        vectors = {n: v.queries[where] for n, v in spaces if v.queries is not None}
        return Queries(self.query_ids[where], vectors)

    def graph(self, name: str, k: int) -> Neighbours:
        """The k nearest other items of every item (n, k): stored, or of the vectors `name`, once.

        Raises `InputError` for a name that is neither, or where fewer are stored.
        """
        if name in self.graphs:
            return nearest_neighbours(self.graphs[name], k, name)
        known = self._computed.get(name)
        if known is None or known.shape[1] < k:
            known = self._computed[name] = nearest_by_vectors(self.spaces[name].items, k)
        return known[:, :k]

    def _fitted(self, items: FloatArray | None, queries: FloatArray | None) -> Scale | None:
        if not self.n_anchors:
            return None
        known = self.scores[: self.n_anchors]
        if items is None or queries is None:
            return Scale(alpha=float(known.mean(dtype=np.float64)))
        return Scale.match(known, inner(queries[: self.n_anchors], items))

    def with_vectors(
        self,
        name: str,
        items: FloatArray,
        queries: FloatArray | None = None,
        scale: Scale | None = None,
    ) -> StoredMatrix:
        """The matrix with fitted vectors `name`, the latest: of items (n, d), of queries (q, d).

        `scale` is fitted on the anchors if it is not given. Raises `InputError` for vectors that do
        not fit, or the name of the dual encoder's.
        """
        q, n = self.scores.shape
        d = items.shape[-1]
        for values, rows in ((items, n), (queries, q)):
            if values is not None and values.shape != (rows, d):
                raise InputError(
                    f"the vectors {name!r} have the shape {values.shape}; it must be ({rows}, {d})"
                )
        if name == DUAL_ENCODER:
            raise InputError(f"fitted vectors cannot be named {name!r}; use another name")
        added = StoredVectors(items, queries, scale or self._fitted(items, queries))
        others = {known: vectors for known, vectors in self.fitted.items() if known != name}
        return replace(self, fitted={**others, name: added})

    @classmethod
    def load(cls, path: str | Path) -> StoredMatrix:
        """Read and check a file; `InputError` says which key is wrong."""
        arrays = read_arrays(path)
        check_arrays(arrays, str(path))
        return cls._made(arrays, str(path))

    @classmethod
    def _made(cls, arrays: dict[str, Any], path: str) -> StoredMatrix:
        q, n = arrays["scores"].shape
        ids = arrays.get("query_ids", np.arange(q))
        made = cls(
            scores=arrays["scores"].astype(np.float32),
            n_anchors=arrays["n_anchors"].item() if "n_anchors" in arrays else 0,
            item_vectors=_float32(arrays.get("item_vectors")),
            query_vectors=_float32(arrays.get("query_vectors")),
            firsts={key[6:]: a for key, a in arrays.items() if key.startswith("first_")},
            query_ids=tuple(map(str, ids)),
            anchor_items=_int64(arrays.get("anchor_items")),
            labels=_int64(arrays.get("labels")),
            item_scores=_item_scores(arrays),
            item_ids=tuple(map(str, arrays["item_ids"])) if "item_ids" in arrays else None,
        )
        graphs = {key[6:]: a for key, a in arrays.items() if key.startswith("graph_")}
        made = replace(
            made,
            graphs={k: check_neighbours(a, n, f"{path}: 'graph_{k}'") for k, a in graphs.items()},
        )
        for name in [key[13:] for key in arrays if key.startswith("item_vectors_")]:
            items = arrays[f"item_vectors_{name}"].astype(np.float32)
            made = made.with_vectors(name, items, _float32(arrays.get(f"query_vectors_{name}")))
        return made

    def rows(self, start: int, stop: int) -> tuple[StoredIndex, Queries, FloatArray]:
        """Test queries start..stop (0-based): the index as they see it, they, and their scores."""
        where = slice(self.n_anchors + start, self.n_anchors + min(stop, self.n_tests))
        index = StoredIndex(self, where)
        return index, index.queries, self.scores[where]


class StoredIndex:
    """An `Index` over a stored matrix, for the queries in the rows `where`."""

    def __init__(self, matrix: StoredMatrix, where: slice) -> None:
        self.matrix, self.where = matrix, where
        self.n = matrix.scores.shape[1]
        self.anchor_items = matrix.anchor_items
        self.item_scores = matrix.item_scores
        self.vector_names: Collection[str] = tuple(matrix.spaces)
        self.fitted_names: Sequence[str] = tuple(matrix.fitted)
        self.query_vector_names: Collection[str] = tuple(
            name for name, space in matrix.spaces.items() if space.queries is not None
        )
        self.retriever_names: Collection[str] = tuple(matrix.firsts)
        self.late_names: Collection[str] = ()
        self.graph_names: Collection[str] = tuple({**matrix.graphs, **matrix.spaces})
        self.anchors = matrix.anchors
        self.artifacts = matrix.artifacts
        self.cache = matrix.memo
        self.fitted = matrix.fitted
        self.vectors = Named(self.vector_names, lambda name: matrix.spaces[name].items)
        self.retrievers = Named(self.retriever_names, self.retriever)
        self.late = Named(self.late_names, self._late_of)
        self.memo = matrix.memo

    @property
    def queries(self) -> Queries:
        """Those queries, with their vectors."""
        return self.matrix.queries(self.where)

    def anchored(self, start: int = 0, stop: int | None = None) -> tuple[Index, Queries]:
        """The anchor queries start..stop, and the index as they see it."""
        rows = range(self.matrix.n_anchors)[start:stop]
        seen = StoredIndex(self.matrix, slice(rows.start, rows.stop))
        return seen, seen.queries

    def has_query_vectors(self, name: str) -> bool:
        """Whether the queries have vectors beside the item vectors `name`."""
        return name in self.query_vector_names

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """Query vectors (m, d); `InputError` where there are none."""
        if name not in queries.vectors:
            raise InputError(f"the matrix has no query vectors beside its item vectors {name!r}")
        return queries.vectors[name]

    def retriever(self, name: str) -> Retriever:
        """The stored retriever `first_<name>`."""
        return StoredRetriever(self.matrix.firsts[name][self.where])

    def _late_of(self, name: str) -> Late:
        """A matrix has no states; `InputError`."""
        raise InputError(f"the matrix has no states of items for {name!r}")

    def graph(self, name: str, k: int) -> Neighbours:
        """The item graph `graph_<name>`, or that of the vectors `name`."""
        if name not in self.graph_names:
            raise no_graph(name, self)
        return self.matrix.graph(name, k)

    def scale(self, name: str) -> Scale | None:
        """Exact scores brought to the mean and deviation of the anchors' inner products."""
        return self.matrix.spaces[name].scale


def read_arrays(path: str | Path) -> dict[str, Any]:
    """All arrays of an `.npz` file, unchecked; `InputError` if it is none."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: np.asarray(file[key]) for key in file.files}
    except FileNotFoundError:
        raise InputError(f"there is no file {path}") from None
    except (PermissionError, IsADirectoryError) as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    except MemoryError as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    except Exception:  # of damaged bytes, what reads them raises whatever it meets
        raise InputError(f"{path} is not a readable .npz file; see the docs, formats") from None


def write_arrays(path: Path, arrays: Mapping[str, Any], *, by: Path) -> None:
    """Replace the file in one step, `by` way of another one in an existing folder."""
    try:
        with by.open("wb") as file:
            np.savez_compressed(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(by, path)
    except OSError as error:
        by.unlink(missing_ok=True)
        raise InputError(
            f"{path} cannot be written: {error.strerror}; what was scored is kept in {by.parent}"
        ) from error


def narrowed(values: FloatArray) -> FloatArray:
    """As float16 if that holds them: vectors and cheap scores need no more."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float16)
    return half if np.isfinite(half).all() else values.astype(np.float32)


def _float32(values: Any) -> FloatArray | None:
    return None if values is None else values.astype(np.float32)


def _int64(values: Any) -> IntArray | None:
    return None if values is None else values.astype(np.int64)


def _item_scores(arrays: Mapping[str, Any]) -> ItemScores | None:
    if "item_scores" not in arrays or "item_score_items" not in arrays:
        return None
    scores = arrays["item_scores"].astype(np.float32)
    return ItemScores(arrays["item_score_items"].astype(np.int64), scores)
