"""What a search rests on that was paid before it: recall has a price offline, too (AXN, 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from crossknn.index.base import Anchors, Index, ItemScores, Named, Neighbours, Scale
from crossknn.index.item_index import ItemIndex
from crossknn.types import Artifact, FloatArray

ANCHORS, ITEM_SCORES = "anchors", "item_scores"


class Metered:
    """An index that notes which exact scores are read: anchors, item scores, those learned from.

    Aligned vectors count, too. It stands for the index in a search; afterwards `calls` is what
    these parts had cost. A stored matrix does not say what its fitted vectors had cost: they count
    as nothing.
    """

    def __init__(self, index: Index) -> None:
        self._index = index
        self._read: set[str] = set()
        fitted = index.fitted if isinstance(index, ItemIndex) else {}
        self._paid = {name: vectors.cost.calls for name, vectors in fitted.items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    @property
    def vectors(self) -> Named[FloatArray]:
        """Item vectors (n, d) by name."""

        def read(name: str) -> FloatArray:
            self._read.add(name)
            return self._index.vectors[name]

        return Named(self._index.vectors, read)

    def graph(self, name: str, k: int) -> Neighbours:
        """The nearest other items of every item, by vectors or words: (n, k)."""
        self._read.add(name)
        return self._index.graph(name, k)

    def scale(self, name: str) -> Scale | None:
        """The scale of vectors: fitted with them, or on the anchors."""
        self._read.add(name if name in self._paid else ANCHORS)
        return self._index.scale(name)

    @property
    def anchors(self) -> Anchors | None:
        """Scores of anchor queries."""
        self._read.add(ANCHORS)
        return self._index.anchors

    @property
    def artifacts(self) -> Mapping[str, Artifact]:
        """What fits have left, made of anchors and logs."""
        self._read.update(self._index.artifacts)
        return self._index.artifacts

    @property
    def item_scores(self) -> ItemScores | None:
        """Item x item scores."""
        self._read.add(ITEM_SCORES)
        return self._index.item_scores

    @property
    def calls(self) -> int:
        """Cross-encoder calls that went into what was read."""
        paid = sum(self._paid[name] for name in self._read if name in self._paid)
        anchors, fitted = self._index.anchors, self._index.artifacts.items()
        dense = 0 if anchors is None or ANCHORS not in self._read else anchors.scores.size
        pairs = [artifact.meta.get("pairs", 0) for name, artifact in fitted if name in self._read]
        paid += max(dense, *pairs, 0)  # what was fitted to includes the anchors
        if ITEM_SCORES in self._read and self._index.item_scores is not None:
            paid += self._index.item_scores.scores.size
        return paid
