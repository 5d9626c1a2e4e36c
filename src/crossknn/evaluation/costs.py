"""What a search rests on that was paid before it: recall has a price offline, too (AXN, 3)."""

from __future__ import annotations

from typing import Any

from crossknn.indexes.base import Anchors, ItemScores, Scale
from crossknn.indexes.item_index import ItemIndex
from crossknn.types import FloatArray

ANCHORS, ITEM_SCORES = "anchors", "item_scores"


class Metered:
    """An index that notes which of its paid parts are read: anchors, item scores, aligned vectors.

    It stands for the index in a search; afterwards `calls` is what these parts had cost.
    """

    def __init__(self, index: ItemIndex) -> None:
        self._index = index
        self._read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def vectors(self, name: str) -> FloatArray:
        """Item vectors (n, d)."""
        self._read.add(name)
        return self._index.vectors(name)

    def scale(self, name: str) -> Scale | None:
        """The scale of vectors: fitted with them, or on the anchors."""
        self._read.add(name if name in self._index.aligned else ANCHORS)
        return self._index.scale(name)

    @property
    def anchors(self) -> Anchors | None:
        """Scores of anchor queries."""
        self._read.add(ANCHORS)
        return self._index.anchors

    @property
    def item_scores(self) -> ItemScores | None:
        """Item x item scores."""
        self._read.add(ITEM_SCORES)
        return self._index.item_scores

    @property
    def calls(self) -> int:
        """Cross-encoder calls that went into what was read."""
        aligned = self._index.aligned
        paid = sum(aligned[name].cost.calls for name in self._read if name in aligned)
        if ANCHORS in self._read and self._index.anchors is not None:
            paid += self._index.anchors.scores.size
        if ITEM_SCORES in self._read and self._index.item_scores is not None:
            paid += self._index.item_scores.scores.size
        return paid
