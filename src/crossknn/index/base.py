"""The interface of an index, as a search sees it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from crossknn.errors import counted
from crossknn.retrievers.base import VectorStore
from crossknn.retrievers.specs import Searchable
from crossknn.types import Anchors, Cache, Scale


def lacking(index: Index, name: str) -> str:
    """Describe how many items were added after an artifact was made, which has no exact scores of
    these items; "" if no items were added."""
    known = index.artifacts.get(name)
    added = 0 if known is None else known.meta.get("added", 0)
    return f": the stored {name} lack {counted(added, 'item')} added later" if added else ""


@runtime_checkable
class Index(Searchable, Protocol):
    """An index: items by position, their vectors and retrievers, and the results of fits."""

    def scale(self, name: str) -> Scale | None:
        """Return the function that maps exact scores to the scale of `vectors[name]`, or None if no
        fit has learned it."""

    @property
    def anchors(self) -> Anchors | None:
        """Return the scores of the anchor queries, if the index has them."""

    def lists(self, name: str, rows: Any = None) -> VectorStore | None:
        """Return the approximate index of the item vectors `name`, or of the vectors `rows` (n, p)
        that the method `name` searches; None if it was not built."""

    @property
    def cache(self) -> Cache:
        """Values that methods have computed from the index, kept in memory."""
