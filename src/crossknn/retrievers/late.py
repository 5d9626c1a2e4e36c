"""Late interaction as a retriever: CMC and its rivals over the candidates of another stage.

A late-interaction model encodes queries and items apart and compares a query with a whole list of
items at once (CMC: Song et al. 2024, section 3). Its scores may depend on the list: they are never
cached per pair, nor merged across lists.

Axes: m queries, n items, c candidates.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, get_args, runtime_checkable

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import mask, top_k
from crossknn.retrievers.base import Retriever
from crossknn.types import (
    NO_ITEM,
    BoolArray,
    Candidates,
    FloatArray,
    IntArray,
    LateKind,
    Progress,
    Queries,
    States,
)

logger = logging.getLogger(__name__)

KINDS: tuple[LateKind, ...] = get_args(LateKind)
DEPTH = 512


@runtime_checkable
class LateInteraction(Protocol):
    """A model that compares the states of a query with those of a list of items.

    `kind` is one of `KINDS`, or a name of your own; `fingerprint` names everything the scores
    depend on, or is None where that cannot be known.
    """

    @property
    def kind(self) -> str: ...

    @property
    def fingerprint(self) -> str | None: ...

    @property
    def dimensions(self) -> int:
        """d of the items' states."""
        ...

    def encode_queries(self, texts: Sequence[str]) -> States:
        """States of m texts, float32."""
        ...

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> States:
        """States of n texts, float16."""
        ...

    def compare(self, queries: States, items: States, lists: IntArray) -> FloatArray:
        """Scores (m, c) float32 of `lists` (m, c): positions in `items`, `NO_ITEM` for none.

        The order of a list does not matter; -inf where there is no item. Raises `InputError` for
        an item twice in a list, and for a list that does not fit into memory.
        """
        ...


class LateFirst:
    """The first `depth` candidates of `stage`, ranked by `model`; then the stage's own order.

    `states` are those of all n items; the queries' are kept in `queries.states[name]`. What stands
    below the compared items is scored lower than all of them, by rank.
    """

    def __init__(
        self,
        stage: Retriever,
        model: LateInteraction,
        states: States,
        depth: int = DEPTH,
        *,
        name: str | None = None,
    ) -> None:
        """Raises `InputError` for a `depth` below 1."""
        if depth < 1:
            raise InputError(f"depth is {depth}; it must be 1 or more")
        self.stage, self.model, self.states, self.depth = stage, model, states, depth
        self.name = name or model.kind

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        found = self._candidates(queries, max(count, self.depth), allowed)
        below = found.items[:, self.depth :]
        return self._ranked(self._compared(queries, found), below, count)

    def scores(self, queries: Queries) -> FloatArray:
        compared = self._compared(queries, self._candidates(queries, self.depth))
        others = mask(self.stage.scores(queries).copy(), compared.items, None)
        n = len(self.states)
        ranked = self._ranked(compared, top_k(others, n).items, n)
        scores = np.full((len(queries), n), -np.inf, np.float32)
        rows, columns = np.nonzero(ranked.items != NO_ITEM)
        scores[rows, ranked.items[rows, columns]] = ranked.scores[rows, columns]
        return scores

    def _candidates(
        self, queries: Queries, count: int, allowed: BoolArray | None = None
    ) -> Candidates:
        """The stage's candidates; the queries are encoded meanwhile (CMC 3.3: in parallel)."""
        if self.name in queries.states:
            return self.stage.top(queries, count, allowed)
        with ThreadPoolExecutor(1, "crossknn-late") as pool:
            encoding = pool.submit(self.model.encode_queries, queries.texts)
            found = self.stage.top(queries, count, allowed)
            queries.states[self.name] = encoding.result()
        return found

    def _compared(self, queries: Queries, found: Candidates) -> Candidates:
        """The first `depth` candidates by the model's scores, ties by position."""
        lists = found.items[:, : self.depth]
        empty = np.flatnonzero((lists == NO_ITEM).all(axis=1))
        if len(empty):
            logger.warning(
                "%s has no candidates for %d of %d queries, the first of them %.80r: its first "
                "stage found none",
                self.name,
                len(empty),
                len(queries),
                queries.texts[empty[0]],
            )
        if len(empty) == len(lists):
            return Candidates(lists, np.full(lists.shape, -np.inf, np.float32))
        scores = self.model.compare(queries.states[self.name], self.states, lists)
        order = np.lexsort((lists, -scores))
        return Candidates(
            np.take_along_axis(lists, order, axis=1), np.take_along_axis(scores, order, axis=1)
        )

    def _ranked(self, compared: Candidates, below: IntArray, count: int) -> Candidates:
        """Compared items and those `below` them (m, e), the first `count` of both."""
        lowest = np.where(np.isfinite(compared.scores), compared.scores, np.inf).min(
            axis=1, initial=np.inf
        )
        floor = np.where(np.isfinite(lowest), lowest, 0)[:, None]
        under = (floor - 1 - np.arange(below.shape[1])).astype(np.float32)
        items = np.concatenate([compared.items, below], axis=1)
        scores = np.concatenate([compared.scores, np.where(below == NO_ITEM, -np.inf, under)], 1)
        rows = [
            (row[row != NO_ITEM], s[row != NO_ITEM]) for row, s in zip(items, scores, strict=True)
        ]
        return Candidates.from_rows([(row[:count], s[:count]) for row, s in rows])
