"""Late interaction: CMC and its rivals over the candidates of another retriever.

A late-interaction model encodes queries and items apart and compares a query with a whole list of
items at once (CMC: Song et al. 2024, section 3). Its scores may depend on the list: they are never
cached per pair, nor merged across lists.

Axes: m queries, n items, c candidates.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np

from crossknn.errors import InputError
from crossknn.linalg import mask, top_k
from crossknn.retrievers.base import Retriever, scores_of
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
_RANKED = 10_000
"""Items below the compared ones whose rank is known when given items are scored."""


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

    def encode_queries(self, texts: Sequence[str]) -> States:
        """States of m texts, float32."""

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> States:
        """States of n texts, float16."""

    def compare(self, queries: States, items: States, lists: IntArray) -> FloatArray:
        """Compare each query with its list, whose order does not matter.

        Args:
            lists: Positions in `items` (m, c), `NO_ITEM` for none.

        Returns:
            Scores (m, c) float32, -inf where there is no item.

        Raises:
            InputError: For an item twice in a list, or a list that does not fit into memory.
        """


class Late(NamedTuple):
    """A late-interaction model, and the states of the n items that it compares queries with."""

    model: LateInteraction
    states: States


class LateRetriever:
    """The first `depth` candidates of `stage`, ranked by `model`; then the stage's own order.

    What stands below the compared items is scored lower than all of them, by rank.

    Args:
        states: Those of all n items; the queries' are kept in `queries.states[name]`.
        name: The model's kind, by default.

    Raises:
        InputError: For a `depth` below 1.
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
        if depth < 1:
            raise InputError(f"depth is {depth}; it must be 1 or more")
        self.stage, self.model, self.states, self.depth = stage, model, states, depth
        self.name = name or model.kind

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The best by the model, then by the stage; see `Retriever.top`."""
        found = self._candidates(queries, max(count, self.depth), allowed)
        below = found.items[:, self.depth :]
        ranked = self._ranked(self._compared(queries, found), below)
        return Candidates.from_rows([(row[:count], s[:count]) for row, s in ranked])

    def scores(self, queries: Queries, items: IntArray | None = None) -> FloatArray:
        """Scores (m, c) of given items, or of all: (m, n)."""
        if items is not None:
            found = self.top(queries, self.depth + _RANKED)
            lowest = np.where(np.isfinite(found.scores), found.scores, np.inf).min(1, initial=0)
            return scores_of(found, items, lowest - 1)
        compared = self._compared(queries, self._candidates(queries, self.depth))
        others = mask(self.stage.scores(queries).copy(), compared.items, None)
        scores = np.full((len(queries), len(self.states)), -np.inf, np.float32)
        below = top_k(others, len(self.states)).items
        for row, (ranked, values) in zip(scores, self._ranked(compared, below), strict=True):
            row[ranked] = values
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
                "%s has no candidates for %d of %d queries, the first of them %.80r: its "
                "retriever found none",
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

    def _ranked(self, compared: Candidates, below: IntArray) -> list[tuple[IntArray, FloatArray]]:
        """Of each query the compared items and those `below` them (m, e), and their scores."""
        finite = np.where(np.isfinite(compared.scores), compared.scores, np.inf)
        lowest = finite.min(axis=1, initial=np.inf)
        floor = np.where(np.isfinite(lowest), lowest, 0)[:, None]
        under = (floor - 1 - np.arange(below.shape[1])).astype(np.float32)
        items = np.concatenate([compared.items, below], axis=1)
        scores = np.concatenate([compared.scores, np.where(below == NO_ITEM, -np.inf, under)], 1)
        there = items != NO_ITEM
        return [(row[t], s[t]) for row, s, t in zip(items, scores, there, strict=True)]
