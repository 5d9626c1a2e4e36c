"""Scores that an index pays for, keeps in its folder, and takes over from another index."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TypeVar

from crossknn.errors import IndexFormatError
from crossknn.index.artifacts import StoredArtifact
from crossknn.index.contents import ANCHORS, ITEM_SCORES, IndexContents
from crossknn.index.fitted import FittedVectors
from crossknn.index.item_graph import ItemGraph
from crossknn.index.late import LateStates
from crossknn.index.storage import IndexReader, read_index
from crossknn.index.writing import writing
from crossknn.retrievers.specs import unfitted

logger = logging.getLogger(__name__)

Added = TypeVar("Added", FittedVectors, LateStates, ItemGraph, StoredArtifact)


class PayingIndex(IndexContents):
    """Contents with rows of exact scores that can be added; nothing is paid twice."""

    def take_over(self, other: IndexContents) -> None:
        """Take over what was fitted for `other`: so that an index can be built again.

        Of other items, or the same in another order, only vectors that are a function of the
        encoder's are taken (MF_IND). What was fitted from those of another encoder is dropped,
        with a warning; so are the states and item graphs of other items.
        """
        same_items = self._parts.same_items(other._parts)
        for name, late in other._late.items():
            taken = name in {*self.vector_names, *self.retriever_names}
            if same_items and not taken:
                self._late[name] = late
            else:
                logger.warning(
                    "dropped the states %s: %s; make them again with  crossknn encode INDEX %s "
                    "--name %s",
                    name,
                    "their name is taken" if taken else "the items have changed",
                    late.model.source or "MODEL",
                    "ANOTHER" if taken else name,
                )
        for name, fitted in other._aligned.items():
            kept = self._carried(other, name, fitted, same_items)
            if kept is not None:
                self._aligned[name] = kept
            elif same_items:
                logger.warning("dropped the fitted vectors %s: their start has changed", name)
        for name, graph in other._graphs.items():
            if same_items and self._fits(name, graph):
                self._graphs[name] = graph
            else:
                logger.warning(
                    "dropped the item graph %s: the items or their vectors have changed; make it "
                    "again with  crossknn index ... --graph %d --graph-from %s",
                    name,
                    graph.neighbours.shape[1],
                    name,
                )
        self._carry_artifacts(other, same_items)

    def _carry_artifacts(self, other: IndexContents, same_items: bool) -> None:
        """Keep what was fitted to another index, if it is of the same items and vectors."""
        base, fits = unfitted(other), dict(other._artifacts)
        rows = {name: fits.pop(name) for name in (ANCHORS, ITEM_SCORES) if name in fits}
        if same_items:
            self._artifacts.update(rows)
        if not fits:
            return
        if (
            same_items
            and base is not None
            and base == unfitted(self)
            and self._parts.same_space(other._parts, base)
            and ("bm25" in self.retriever_names) == ("bm25" in other.retriever_names)
        ):
            self._artifacts.update(fits)
            return
        logger.warning(
            "dropped what the index has learned: its items or vectors have changed; the scores it "
            "was made of are kept, so make it again with  crossknn learn INDEX"
        )

    def _carried(
        self, other: IndexContents, name: str, fitted: FittedVectors, same_items: bool
    ) -> FittedVectors | None:
        """Aligned vectors of another index, for the items of this one; None if that cannot be."""
        base = fitted.base
        if name in self._parts.vectors:
            return None
        if base is not None and not self._parts.same_space(other._parts, base):
            return None
        if same_items:
            return fitted
        return None if base is None else fitted.of_items(self._parts.vectors[base])

    def _work(self, name: str) -> Path | None:
        """The folder of what is being paid for."""
        return None if self.folder is None else self.folder / f"work-{name}"

    def _on_disk(self) -> IndexReader | None:
        """The index in its folder as it is now: another process may have added to it."""
        if self.folder is None:
            return None
        reader = IndexReader(self.folder)
        if reader.meta["build"] != self._parts.build:
            raise IndexFormatError(f"the index {self.folder} was replaced; load it again")
        return reader

    def _store(self, kind: str, name: str, part: Added) -> Added:
        """`part` added to the index in its folder, and mapped from there, if it has one."""
        self.memo.clear()
        if self.folder is None:
            return part
        meta = {"build": self._parts.build, kind: {name: part.meta()}}
        with writing(self.folder, meta, keep=True) as writer:
            part.write(writer, name)
        return read_index(self.folder, lambda reader: type(part).read(reader, name))
