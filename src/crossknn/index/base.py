"""What an index offers to a search."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from crossknn.errors import counted
from crossknn.retrievers.dense import VectorStore
from crossknn.retrievers.specs import Searchable
from crossknn.types import Artifact, FloatArray, Queries, Value

ROWS: Mapping[str, tuple[str, ...]] = {"artifacts/kriging": ("factor", "mean")}
COLUMNS = ("artifacts/anchors",)
"""Artifacts with something for each item: rows of these arrays, or columns of `scores`, exact ones,
which are stale once items are `added`, until they are collected again."""


def plain(key: str) -> str:
    """Kind and name of a part, without the digest of the cross-encoder that it belongs to.

    >>> plain("artifacts/kriging-0123456789ab")
    'artifacts/kriging'
    """
    return _OF_SCORER.sub("", key)


_OF_SCORER = re.compile(r"-[0-9a-f]{12}$")


class Cache:
    """What is computed from an index once and kept with it in memory.

    Each value stays as long as what it was made of is the same.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, tuple[tuple[object, ...], Any]] = {}

    def get(self, key: Hashable, of: tuple[object, ...], make: Callable[[], Value]) -> Value:
        """The value made `of` these objects (not of equal ones), made now if it is not there."""
        parts, value = self._made.get(key, ((), None))
        if len(parts) != len(of) or any(a is not b for a, b in zip(parts, of, strict=True)):
            value = make()
            self._made[key] = of, value
        return cast(Value, value)


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
        spread, aim = float(exact.std()), float(wanted.std())
        beta = aim / spread if spread > 0 and aim > 0 else 1.0
        return cls(alpha=float(exact.mean()) - float(wanted.mean()) / beta, beta=beta)


@dataclass(frozen=True, slots=True)
class Anchors:
    """R_anc: exact scores (k_q, n) of anchor (train) queries against every item (ANNCUR 2.2).

    CUR has no intercept, so it matters where zero lies: methods subtract `center` first.
    """

    scores: FloatArray
    center: float = 0.0
    queries: Queries = field(default_factory=lambda: Queries(()))


def lacking(index: Index, name: str) -> str:
    """Says of how many items, added since, an artifact has no exact scores; "" if of none."""
    known = index.artifacts.get(name)
    added = 0 if known is None else known.meta.get("added", 0)
    return f": those that there are lack {counted(added, 'item')} added since" if added else ""


def n_items(key: str, meta: Mapping[str, Any], arrays: Mapping[str, Any]) -> int | None:
    """Of how many items an artifact is; None for one that has nothing for each item."""
    if plain(key) in COLUMNS and "scores" in arrays:
        return int(np.shape(arrays["scores"])[1]) + int(meta.get("added", 0))
    return next((len(arrays[name]) for name in ROWS.get(plain(key), ()) if name in arrays), None)


@runtime_checkable
class Index(Searchable, Protocol):
    """Items by position, what retrievers are made of, and what methods read beside them."""

    def scale(self, name: str) -> Scale | None:
        """Brings exact scores to the scale of `vectors[name]`; None if nothing is known of it."""

    @property
    def anchors(self) -> Anchors | None:
        """Scores of anchor queries, if the index has them."""

    @property
    def artifacts(self) -> Mapping[str, Artifact]:
        """What fits have left, by name."""

    def lists(self, name: str, rows: Any = None) -> VectorStore | None:
        """Searches the item vectors `name`, or `rows` (n, p) of a method of that name, by the codes
        of their approximate index alone; None if there is none."""

    @property
    def cache(self) -> Cache:
        """What methods computed from the index once, in memory."""
