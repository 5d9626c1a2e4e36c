"""What an index offers to a search."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from crossknn.index.memo import Memo
from crossknn.retrievers.base import Retriever
from crossknn.retrievers.late import Late as Late
from crossknn.types import Artifact, FloatArray, IntArray, Queries

Neighbours: TypeAlias = NDArray[np.int32]
"""The nearest other items of items, nearest first, as positions (n, k); `NO_ITEM` ends a row."""


Value = TypeVar("Value")


class Named(Mapping[str, Value]):
    """Values by name, each looked up when it is asked for."""

    def __init__(self, names: Collection[str], get: Callable[[str], Value]) -> None:
        self._names, self._get = names, get

    def __getitem__(self, name: str) -> Value:
        return self._get(name)

    def __call__(self, name: str) -> Value:  # until all callers use []
        return self._get(name)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@dataclass(frozen=True, slots=True)
class Scale:
    """Linear normalization of exact scores: `beta * (score - alpha)` (AXN A.2)."""

    alpha: float = 0.0
    beta: float = 1.0

    @classmethod
    def match(cls, scores: FloatArray, target: FloatArray) -> Scale:
        """The scale on which `scores` get the mean and standard deviation of `target`.

        >>> Scale.match(np.array([10.0, 14.0]), np.array([0.0, 1.0]))
        Scale(alpha=10.0, beta=0.25)
        """
        exact, wanted = np.asarray(scores, np.float64), np.asarray(target, np.float64)
        deviation, aim = float(exact.std()), float(wanted.std())
        beta = aim / deviation if deviation > 0 and aim > 0 else 1.0
        return cls(alpha=float(exact.mean()) - float(wanted.mean()) / beta, beta=beta)


@dataclass(frozen=True, slots=True)
class Anchors:
    """R_anc: exact scores (k_q, n) of anchor (train) queries against every item (ANNCUR 2.2).

    CUR has no intercept, so it matters where zero lies: methods subtract `center` first.
    """

    scores: FloatArray
    center: float = 0.0
    queries: Queries = field(default_factory=lambda: Queries(()))


@dataclass(frozen=True, slots=True)
class ItemScores:
    """Exact scores (a, n) of `items` (a,), each put in the query's place, against every item."""

    items: IntArray
    scores: FloatArray


@runtime_checkable
class Index(Protocol):
    """Items by position: how many, their vectors, and how a query gets its first vector."""

    @property
    def n(self) -> int:
        """Number of items."""
        ...

    @property
    def vector_names(self) -> Collection[str]:
        """Names of the item vectors at hand, e.g. `dense`, `lsa`."""
        ...

    @property
    def fitted_names(self) -> Sequence[str]:
        """Those of `vector_names` that were fitted with a cross-encoder, the latest last."""
        ...

    @property
    def query_vector_names(self) -> Collection[str]:
        """Those of `vector_names` whose space the queries have vectors in, too."""
        ...

    @property
    def retriever_names(self) -> Collection[str]:
        """Names of the retrievers that are not made of vectors, e.g. `bm25`, `tfidf`."""
        ...

    @property
    def vectors(self) -> Named[FloatArray]:
        """Item vectors (n, d) by name, float32 or float16, possibly memory-mapped."""
        ...

    @property
    def artifacts(self) -> Mapping[str, Artifact]:
        """What fits have left, by name."""
        ...

    @property
    def cache(self) -> Memo:
        """What methods computed from the index once, in memory."""
        ...

    def has_query_vectors(self, name: str) -> bool:
        """Whether queries have vectors in the space of `vectors[name]`."""
        ...

    def query_vectors(self, queries: Queries, name: str) -> FloatArray:
        """Query vectors (m, d) in the space of `vectors(name)`; kept in `queries.vectors`."""
        ...

    @property
    def retrievers(self) -> Named[Retriever]:
        """Retrievers that are not made of vectors, by name."""
        ...

    def retriever(self, name: str) -> Retriever:
        """The retriever of that name (one of `retriever_names`)."""
        ...

    @property
    def late_names(self) -> Collection[str]:
        """Names of the late-interaction models that the items have states of, e.g. `cmc`."""
        ...

    @property
    def late(self) -> Named[Late]:
        """Late-interaction models by name, and the items' states."""
        ...

    @property
    def graph_names(self) -> Collection[str]:
        """Names of the item graphs: of the vectors, or the retriever, that they are made of."""
        ...

    def graph(self, name: str, k: int) -> Neighbours:
        """The k nearest other items of every item (n, k), possibly mapped.

        Raises `InputError` if there is no such graph, or a less deep one.
        """
        ...

    def scale(self, name: str) -> Scale | None:
        """Brings exact scores to the scale of `vectors(name)`; None if nothing is known of it."""
        ...

    @property
    def anchors(self) -> Anchors | None:
        """Scores of anchor queries, if the index has them."""
        ...

    def anchored(self, start: int = 0, stop: int | None = None) -> tuple[Index, Queries]:
        """The anchor queries start..stop, in the order of `anchors`, and the index as a search of
        theirs sees it."""
        ...

    @property
    def memo(self) -> Memo:
        """What methods computed from the index once, in memory."""
        ...

    @property
    def anchor_items(self) -> IntArray | None:
        """A fixed random order of items to draw ANNCUR's anchor items from, if one is stored."""
        ...

    @property
    def item_scores(self) -> ItemScores | None:
        """Item x item scores, if the index has them."""
        ...
