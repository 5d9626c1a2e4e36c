"""Scores that an index pays for, keeps in its folder, and takes over from another index."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from crossknn.data.marks import item_as_query
from crossknn.errors import IndexFormatError, InputError
from crossknn.index.artifacts import StoredArtifact
from crossknn.index.contents import IndexContents
from crossknn.index.dense import DenseReport
from crossknn.index.disk import alone
from crossknn.index.fitted import FittedVectors
from crossknn.index.item_graph import ItemGraph
from crossknn.index.late import LateStates
from crossknn.index.paid import PaidScores, fit_scales, pay
from crossknn.index.storage import IndexReader, read_index
from crossknn.index.table import Known
from crossknn.index.writing import writing
from crossknn.retrievers.specs import unfitted
from crossknn.scorers import as_scorer
from crossknn.scorers.base import Scorer
from crossknn.types import IntArray, Progress

logger = logging.getLogger(__name__)

N_ITEM_SCORES = 500
Added = TypeVar("Added", PaidScores, FittedVectors, LateStates, ItemGraph, StoredArtifact)


class PayingIndex(IndexContents):
    """Contents with rows of exact scores that can be added; nothing is paid twice."""

    def add_anchors(
        self,
        scorer: Scorer,
        queries: Sequence[str],
        *,
        max_calls: int | None = None,
        deadline: float | None = None,
        workers: int = 1,
        replace: bool = False,
        known: Iterable[Known] = (),
        spend: Callable[[int, float], object] | None = None,
        progress: Progress | None = None,
    ) -> DenseReport:
        """Score `queries` (k_q) against every item: R_anc of ANNCUR and ADACUR, and the scales.

        Costs k_q times n calls, less `known` scores that were paid elsewhere. Anchors that are
        there stay. An index in a folder keeps what is paid there: stopped by `max_calls`, after
        `deadline` seconds, by an error or by a kill, the same call goes on where it was. Only
        queries that have all their scores become anchors. `workers` threads share the scorer;
        `spend` is told how many pairs it has computed, and in how many seconds, whatever happens.
        Raises `InputError` if another process is adding anchors, and for scores of another
        cross-encoder, unless `replace` discards those.
        """
        if (
            isinstance(queries, str)
            or not isinstance(queries, Sequence)
            or not all(isinstance(q, str) and q.strip() for q in queries)
        ):
            raise InputError("anchor queries must be a list of texts that are not empty")
        options = {"max_calls": max_calls, "deadline": deadline, "workers": workers}
        more = {"replace": replace, "known": known, "spend": spend, "progress": progress}
        return self._pay("anchors", scorer, queries, **options, **more)

    def add_item_scores(
        self,
        scorer: Scorer,
        positions: IntArray | None = None,
        *,
        max_calls: int | None = None,
        replace: bool = False,
        progress: Progress | None = None,
    ) -> DenseReport:
        """Score items, put in the query's place, against every item (itemCUR, fixedITEM).

        `positions` are the first 500 of `anchor_items` by default; else as `add_anchors`.
        """
        chosen = self._parts.anchor_items[:N_ITEM_SCORES] if positions is None else positions
        texts = [item_as_query(self.items.texts[int(position)]) for position in chosen]
        options = {"max_calls": max_calls, "replace": replace, "progress": progress}
        return self._pay("item_scores", scorer, texts, **options)

    def paid_rows(self, fingerprint: str | None) -> list[PaidScores]:
        """Rows of anchors that were paid to this cross-encoder, unfinished ones (NaN) last."""
        paid, work = self._before("anchors"), self._work("anchors")
        begun = None if work is None else PaidScores.unfinished(work, self.items.texts)
        found = [rows for rows in (paid, begun) if rows is not None]
        return [rows for rows in found if rows.fingerprint == fingerprint is not None]

    def take_paid(self, other: IndexContents) -> bool:
        """Take over what `other` has paid for; whether nothing paid for is left behind.

        So that an index can be built again, with another encoder say, and no pair is paid twice.
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
        if not same_items:
            return not other._paid and set(other._aligned) <= set(self._aligned)
        self._paid = {
            name: fit_scales(paid, self._parts.vectors, self.query_vectors)
            if name == "anchors"
            else paid
            for name, paid in other._paid.items()
        }
        return True

    def _carry_artifacts(self, other: IndexContents, same_items: bool) -> None:
        """Keep what was fitted to another index, if it is of the same items and vectors."""
        base = unfitted(other)
        if not other._artifacts:
            return
        if (
            same_items
            and base is not None
            and base == unfitted(self)
            and self._parts.same_space(other._parts, base)
            and ("bm25" in self.retriever_names) == ("bm25" in other.retriever_names)
        ):
            self._artifacts.update(other._artifacts)
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

    def _pay(self, name: str, scorer: Scorer, texts: Sequence[str], **options: Any) -> DenseReport:
        judge, work = as_scorer(scorer), self._work(name)
        with alone(work):
            before = self._before(name)
            report, paid, table = pay(
                judge, texts, self.items.texts, before=before, work=work, **options
            )
            if paid is not None:
                if name == "anchors":
                    paid = fit_scales(paid, self._parts.vectors, self.query_vectors)
                self._paid[name] = self._store("paid", name, paid)
            elif before is not None:
                self._paid[name] = before  # another process may have added to them
            if len(table.done()) == len(table.texts):
                table.remove()
        return report

    def _before(self, name: str) -> PaidScores | None:
        """The rows there are."""
        if (stored := self._on_disk()) is None:
            return self._paid.get(name)
        return PaidScores.read(stored, name) if name in stored.meta["paid"] else None

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
