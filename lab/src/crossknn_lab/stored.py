"""A stored score matrix: an index to replay searches on, without texts or models.

Keys of the `.npz` file: `scores` (q, n) raw logits; `n_anchors`, the first rows that are anchor
queries; and, optional, `item_vectors` (n, d) and `query_vectors` (q, d) (the retriever `dense`),
`item_vectors_<name>` and `query_vectors_<name>` (or without these) for fitted vectors,
`first_<name>` (q, n) cheap scores of another retriever, `anchor_items` (a,), `item_ids` (n,),
`query_ids` (q,), judgements `qrels` (j, 3) or, one item for each query, `labels` (q,), and for item
x item methods `item_score_items` (a,) and `item_scores` (a, n). `collect_matrix` writes such files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.data.qrels import LARGEST_GRADE
from crossknn.errors import InputError
from crossknn.files import as_path, npz_arrays, open_given
from crossknn.fitting.kriging import prior_of
from crossknn.fitting.stopping import calibrate
from crossknn.linalg import LARGEST, inner, usable
from crossknn.methods.base import Method
from crossknn.methods.kriging import Kriging
from crossknn.methods.prior import NAME as PRIOR
from crossknn.methods.prior import trend_retrievers
from crossknn.retrievers.base import AllScores, ArrayStore, Late, Retriever
from crossknn.spec import Spec
from crossknn.types import NO_ITEM, Anchors, Artifact, Cache, FloatArray, IntArray, Queries, Scale
from crossknn_lab.rivals.item_scores import ITEM_SCORES, item_scores_artifact

DUAL_ENCODER = "dense"

_NUMBERS, _POSITIONS, _TEXTS = ("fiu", "numbers"), ("iu", "whole numbers"), ("USiu", "texts")
_KEYS = {
    "scores": (("f", "floating point numbers"), "qn"),
    "labels": (_POSITIONS, "q"),
    "qrels": (_POSITIONS, "j3"),
    "query_ids": (_TEXTS, "q"),
    "item_ids": (_TEXTS, "n"),
    "anchor_items": (_POSITIONS, "c"),
    "item_score_items": (_POSITIONS, "a"),
    "item_scores": (_NUMBERS, "an"),
    "first_": (_NUMBERS, "qn"),
    "item_vectors": (_NUMBERS, "nd"),
    "query_vectors": (_NUMBERS, "qd"),
}
"""What the arrays of a file hold, and their axes; a key may go on after these words."""
_WHOLE = ("n_anchors", "scorer", "items_digest")
_BEGINNINGS = tuple(_KEYS)
"""What is read of a file: these keys, and those that begin with these words."""


@dataclass(eq=False)
class StoredRetriever(AllScores):
    """Cheap scores of all items that the queries bring with them, as their vectors `name`."""

    name: str

    def of_all(self, queries: Queries) -> FloatArray:
        """The stored scores, as float32: (m, n)."""
        return queries.vectors[self.name].astype(np.float32)


@dataclass(frozen=True, eq=False)
class StoredVectors:
    """One space: vectors of items (n, d), of all queries (q, d) if they have any, and its scale."""

    items: FloatArray
    queries: FloatArray | None
    scale: Scale | None


class _Artifacts(Mapping[str, Artifact]):
    """What is given, and kriging's prior, fitted to a matrix's anchors when it is first asked for."""

    def __init__(self, given: Mapping[str, Artifact], matrix: StoredMatrix) -> None:
        self.given, self._matrix = given, matrix

    def __getitem__(self, name: str) -> Artifact:
        matrix = self._matrix
        if name in self.given or name != PRIOR or not self._teaches:
            return self.given[name]

        def fit() -> Artifact:
            trends = matrix.trends or trend_retrievers(matrix)
            return Artifact(*prior_of(matrix, retriever=trends).kept())

        return matrix.cache.get("prior of anchors", (matrix.scores,), fit)

    def __iter__(self) -> Iterator[str]:
        return iter({*self.given, *([PRIOR] if self._teaches else [])})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @property
    def _teaches(self) -> bool:
        """Whether there are enough anchors: one does not tell how items vary together."""
        return self._matrix.n_anchors > 1 and bool(self._matrix.vectors)


@dataclass(frozen=True, eq=False)
class StoredMatrix:
    """A score matrix, an `Index` for its own q queries; the first `n_anchors` are anchors.

    A row of `qrels` (j, 3) is a query's position, an item's (-1: none of the items) and its grade.
    Beside the `artifacts` that are given it has kriging's prior, fitted to the anchors, whose
    trends use the retrievers `trends` or the default ones.
    """

    scores: FloatArray
    n_anchors: int
    dense_items: FloatArray | None
    dense_queries: FloatArray | None
    firsts: Mapping[str, FloatArray]
    query_ids: tuple[str, ...]
    anchor_items: IntArray | None = None
    labels: IntArray | None = None
    qrels: IntArray | None = None
    item_ids: tuple[str, ...] | None = None
    fitted: Mapping[str, StoredVectors] = field(default_factory=dict)
    artifacts: Mapping[str, Artifact] = field(default_factory=dict)
    trends: Spec | None = None
    late: Mapping[str, Late] = field(default_factory=dict, init=False, repr=False)
    cache: Cache = field(default_factory=Cache, init=False, repr=False)

    def __post_init__(self) -> None:
        given = self.artifacts.given if isinstance(self.artifacts, _Artifacts) else self.artifacts
        object.__setattr__(self, "artifacts", _Artifacts(given, self))

    @classmethod
    def load(cls, path: str | Path) -> StoredMatrix:
        """Read and check a file; `InputError` says which key is wrong."""
        arrays = read_arrays(path)
        _check(arrays, str(path))

        def read(key: str, dtype: type = np.float32) -> Any:
            return arrays[key].astype(dtype) if key in arrays else None

        def named(prefix: str) -> dict[str, Any]:
            return {k.removeprefix(prefix): arrays[k] for k in arrays if k.startswith(prefix)}

        chosen, of_items = read("item_score_items", np.int64), read("item_scores")
        made = cls(
            scores=read("scores"),
            n_anchors=arrays["n_anchors"].item() if "n_anchors" in arrays else 0,
            dense_items=read("item_vectors"),
            dense_queries=read("query_vectors"),
            firsts=named("first_"),
            query_ids=tuple(map(str, arrays.get("query_ids", np.arange(len(arrays["scores"]))))),
            anchor_items=read("anchor_items", np.int64),
            labels=read("labels", np.int64),
            qrels=read("qrels", np.int64),
            item_ids=tuple(map(str, arrays["item_ids"])) if "item_ids" in arrays else None,
            artifacts={}
            if of_items is None
            else {ITEM_SCORES: item_scores_artifact(chosen, of_items)},
        )
        fitted = dict[str, StoredVectors]()
        for name, items in named("item_vectors_").items():
            made._check_name(name)
            given = items.astype(np.float32), read(f"query_vectors_{name}")
            fitted[name] = StoredVectors(*given, made._scale_of(*given))
        return replace(made, fitted=fitted)

    @property
    def n(self) -> int:
        """Number of items."""
        return self.scores.shape[1]

    @property
    def n_tests(self) -> int:
        """Queries that are not anchors."""
        return len(self.scores) - self.n_anchors

    @cached_property
    def anchors(self) -> Anchors | None:
        """The scores of the anchor queries, if there are any."""
        where, dense = slice(0, self.n_anchors), self.spaces.get(DUAL_ENCODER)
        scale = self._scale_of(None, None) if dense is None else dense.scale
        if scale is None:
            return None
        return Anchors(self.scores[where], scale.alpha, self.queries(where))

    @cached_property
    def spaces(self) -> Mapping[str, StoredVectors]:
        """All vectors by name: `dense` if there are some, and the fitted ones."""
        items, queries = self.dense_items, self.dense_queries
        if items is None or queries is None:
            return self.fitted
        encoded = StoredVectors(items, queries, self._scale_of(items, queries))
        return {DUAL_ENCODER: encoded, **self.fitted}

    @property
    def vectors(self) -> Mapping[str, FloatArray]:
        """Item vectors (n, d) by name."""
        return {name: space.items for name, space in self.spaces.items()}

    def store(self, name: str) -> ArrayStore:
        """Searches the item vectors `name` exactly."""
        items = self.spaces[name].items
        return self.cache.get(("store", name), (items,), lambda: ArrayStore(items))

    def lists(self, name: str, rows: Any = None) -> None:
        """There is no approximate index."""

    @property
    def retrievers(self) -> Mapping[str, Retriever]:
        """Retrievers whose scores are stored."""
        return {name: StoredRetriever(f"first_{name}") for name in self.firsts}

    def queries(self, where: slice) -> Queries:
        """The queries in the rows `where`, with their vectors and the retrievers' scores."""
        spaces = self.spaces.items()
        vectors = {n: v.queries[where] for n, v in spaces if v.queries is not None}
        firsts = {f"first_{name}": scores[where] for name, scores in self.firsts.items()}
        return Queries(self.query_ids[where], vectors | firsts)

    def has_query_vectors(self, name: str) -> bool:
        """Whether the queries have vectors beside the item vectors `name`."""
        return name in self.spaces and self.spaces[name].queries is not None

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """Query vectors (m, d); `InputError` where there are none."""
        if name not in queries.vectors:
            raise InputError(f"the matrix has no query vectors beside its item vectors {name!r}")
        return queries.vectors[name]

    def scale(self, name: str) -> Scale | None:
        """Exact scores brought to the mean and deviation of the anchors' inner products."""
        return self.spaces[name].scale

    def with_vectors(
        self,
        name: str,
        items: FloatArray,
        queries: FloatArray | None = None,
        scale: Scale | None = None,
    ) -> StoredMatrix:
        """The matrix with fitted vectors `name`, the latest: of items (n, d), of queries (q, d).

        `scale` is by default fitted on the anchors. Raises `InputError` for the name `dense`.
        """
        self._check_name(name)
        fitted = {known: vectors for known, vectors in self.fitted.items() if known != name}
        fitted[name] = StoredVectors(items, queries, scale or self._scale_of(items, queries))
        return replace(self, fitted=fitted)

    def prepared(self, method: Method, budget: int) -> StoredMatrix:
        """With what a search by kriging reads: a prior for its trends, its target calibrated."""
        if not isinstance(method, Kriging):
            return self
        matrix = self
        if method.mean is not None and method.use_anchors:
            matrix = replace(self, trends=method.mean)
        if method.target_recall is not None:
            calibrate(matrix, method, budget)
        return matrix

    def _check_name(self, name: str) -> None:
        if name == DUAL_ENCODER:
            raise InputError(f"fitted vectors cannot be named {name!r}; use another name")

    def rows(self, start: int, stop: int) -> tuple[StoredMatrix, Queries, FloatArray]:
        """The matrix as an index, test queries start..stop (0-based), and their scores."""
        where = slice(self.n_anchors + start, self.n_anchors + min(stop, self.n_tests))
        return self, self.queries(where), self.scores[where]

    def _scale_of(self, items: FloatArray | None, queries: FloatArray | None) -> Scale | None:
        """From the anchors' exact scores to inner products."""
        if not self.n_anchors:
            return None
        known = self.scores[: self.n_anchors]
        if items is None or queries is None:
            return Scale(alpha=float(known.mean(dtype=np.float64)))
        return Scale.match(known, inner(queries[: self.n_anchors], items))


def read_arrays(path: str | Path) -> dict[str, Any]:
    """The arrays of a score matrix in an `.npz` file, unchecked; `InputError` if it is none."""
    try:
        path = as_path(path, "the score matrix")
        with open_given(path) as file:
            return npz_arrays(file, path, _WHOLE, _BEGINNINGS)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _check(arrays: Mapping[str, Any], path: str) -> None:
    """`InputError` for what is no score matrix: one sentence with the file and the key."""
    if "scores" not in arrays or arrays["scores"].ndim != 2 or not arrays["scores"].size:
        raise InputError(f"{path} has no matrix 'scores' of shape (queries, items)")
    q, n = arrays["scores"].shape
    anchors = arrays.get("n_anchors", np.array(0))
    if anchors.size != 1 or anchors.dtype.kind not in "iu" or not 0 <= anchors.item() < q:
        raise InputError(f"{path}: 'n_anchors' must be one whole number, from 0 to {q - 1}")
    for one, other in (("item_vectors", "query_vectors"), ("item_scores", "item_score_items")):
        if (one in arrays) != (other in arrays):
            raise InputError(f"{path} needs both {one!r} and {other!r}, or neither")
    for key, values in arrays.items():
        sizes = {"q": q, "n": n, "3": 3, "a": arrays.get("item_score_items", np.zeros(0)).size}
        if key.startswith("query_vectors"):
            partner = key.replace("query_", "item_", 1)
            if partner not in arrays:
                raise InputError(f"{path} has '{key}' but no such item vectors")
            sizes["d"] = arrays[partner].size // n
        for (kinds, what), axes in (_KEYS[start] for start in _KEYS if key.startswith(start)):
            wanted = [sizes.get(axis, size) for axis, size in zip(axes, values.shape, strict=False)]
            same = values.ndim == len(axes) and wanted == [*values.shape]
            if not (same and (values.dtype.kind in kinds or not values.size)):
                shape = ", ".join(str(sizes.get(axis, axis)) for axis in axes)
                raise InputError(
                    f"{path}: '{key}' is an array {values.shape} of {values.dtype}; it must be "
                    f"({shape}) of {what}: mend it, or leave it out"
                )
        if values.dtype.kind == "f" and not (finite := usable(values)).all():
            row = tuple(map(int, np.argwhere(~finite)[0]))
            raise InputError(
                f"{path}: '{key}' is {values[row]} at {row}; numbers must be {LARGEST:g} at most"
            )
    for key, least in (("labels", NO_ITEM), ("anchor_items", 0), ("item_score_items", 0)):
        chosen = arrays.get(key, np.zeros(0, np.int64))
        twice = key != "labels" and len(np.unique(chosen)) < len(chosen)
        if twice or ((chosen < least) | (chosen >= n)).any():
            raise InputError(
                f"{path}: '{key}' must hold positions of items, {least} to {n - 1}"
                + (", each once" if twice else "")
            )
    judged = arrays.get("qrels", np.zeros((0, 3), np.int64))
    least, most = np.array([[0, NO_ITEM, -LARGEST_GRADE], [q - 1, n - 1, LARGEST_GRADE]])
    pairs = judged[judged[:, 1] != NO_ITEM, :2]
    outside = ((judged < least) | (judged > most)).any()
    if outside or len(np.unique(pairs, axis=0)) < len(pairs):
        raise InputError(
            f"{path}: a row of 'qrels' must hold the position of a query, 0 to {q - 1}, that of an "
            f"item, {NO_ITEM} to {n - 1}, and a grade, {LARGEST_GRADE} at most; each pair once"
        )
