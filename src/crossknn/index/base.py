"""What an index offers to a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from crossknn.errors import counted
from crossknn.retrievers.base import VectorStore
from crossknn.retrievers.specs import Searchable
from crossknn.types import Anchors, Artifact, Cache, Scale


def lacking(index: Index, name: str) -> str:
    """Says of how many items, added since, an artifact has no exact scores; "" if of none."""
    known = index.artifacts.get(name)
    added = 0 if known is None else known.meta.get("added", 0)
    return f": those that there are lack {counted(added, 'item')} added since" if added else ""


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
