"""Late-interaction models (CMC, Poly-encoder, Sum-of-Max, Deformer, MixEncoder), ready to search.

Axes: m queries, n items, c candidates, t states of a text, d dimensions, b texts or lists at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.models.tokens import Encoding, Row
from crossknn.scorers._encoded import EncodedModel
from crossknn.scorers.late_memory import available_memory, bytes_of_candidate
from crossknn.scorers.robust import excerpt
from crossknn.types import NO_ITEM, BoolArray, FloatArray, IntArray, Progress, States

_AT_ONCE = 256 << 20
"""Bytes that a batch of lists takes, about; a list that needs more is compared alone."""


class EncodedLateInteraction(EncodedModel):
    """Encodes single texts and compares their states; `_states` and `_scores` differ by framework.

    Longer texts lose their end and are counted in `truncated`. Set by subclasses: `kind`;
    `dimensions`, d of what an index keeps of an item; `joint`, whether the score of a candidate
    depends on the others in its list; `fingerprint`.
    """

    kind: str
    dimensions: int
    joint: bool

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Names everything that states and scores depend on."""

    def __init__(self, name: str, encoding: Encoding, tokens_per_run: int) -> None:
        super().__init__(name, encoding, tokens_per_run)
        self.bytes_at_once = _AT_ONCE

    @abstractmethod
    def _states(self, rows: Sequence[Row], queries: bool) -> tuple[FloatArray, BoolArray]:
        """Rows of texts (b) -> states (b, t, d) and which of them there are (b, t)."""

    @abstractmethod
    def _scores(
        self, query: FloatArray, query_mask: BoolArray, items: FloatArray, item_mask: BoolArray
    ) -> FloatArray:
        """(b, t_q, d), (b, t_q), (b, c, t_i, d), (b, c, t_i) -> scores (b, c).

        Raises MemoryError if there is not enough.
        """

    def _room(self) -> int | None:
        """Bytes that a comparison may take; None if that is unknown."""
        return available_memory()

    def encode_queries(self, texts: Sequence[str]) -> States:
        """States of m texts, float32. Raises InputError for what is not a text."""
        return self._encode(texts, "query", np.float32, None)

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> States:
        """States of n texts, float16. Raises InputError for what is not a text."""
        return self._encode(texts, "item", np.float16, progress)

    def _encode(
        self, texts: Sequence[str], what: str, dtype: type, progress: Progress | None
    ) -> States:
        kept: list[FloatArray] = [np.empty((0, self.dimensions), dtype)] * len(texts)
        for positions, rows in self._text_batches(texts, what, progress):
            values, known = self._states(rows, what == "query")
            with np.errstate(over="ignore"):  # infinite in half precision: said below
                values = values.astype(dtype)
            for place, states, mask in zip(positions.tolist(), values, known, strict=True):
                kept[place] = states[mask]
                if not np.isfinite(kept[place]).all():
                    raise ScorerError(
                        f"the model {self.name} gave a state that is not finite for {what} "
                        f"{place} {excerpt(texts[place])}"
                    )
        starts = np.cumsum([0, *map(len, kept)], dtype=np.int64)
        return States(np.concatenate([np.empty((0, self.dimensions), dtype), *kept]), starts)

    def compare(self, queries: States, items: States, lists: IntArray) -> FloatArray:
        """Scores (m, c) float32 of `lists` (m, c): positions in `items`, `NO_ITEM` for none (-inf).

        Takes as many queries at a time as memory allows, and goes through a list by parts unless
        the model looks at all candidates together. Raises InputError for lists that do not fit, an
        item that stands twice in a list, and a list that is more than memory allows.
        """
        _check(queries, items, lists)
        scores = np.full(lists.shape, -np.inf, np.float32)
        longest = len(_columns(lists))
        each = self._bytes_each(queries, items)
        width = longest if self.joint else min(longest, max(1, self.bytes_at_once // each))
        room = self._room()
        if room is not None and width * each > room:
            raise self._too_many(longest, room // each)
        rows = max(1, self.bytes_at_once // max(1, width * each))
        for start in range(0, len(lists), rows):
            batch = np.arange(start, min(start + rows, len(lists)))
            for columns in _parts(lists[batch], width):
                place = np.ix_(batch, columns)
                scores[place] = self._compared(queries, items, batch, lists[place])
        wrong = np.argwhere(~np.isfinite(scores) & (lists != NO_ITEM))
        if len(wrong):
            row, column = wrong[0]
            raise ScorerError(
                f"the model {self.name} gave item {lists[row, column]} the score "
                f"{scores[row, column]} for query {row}"
            )
        return scores

    def _bytes_each(self, queries: States, items: States) -> int:
        t_query, t_item = (int(states.counts.max(initial=1)) for states in (queries, items))
        return bytes_of_candidate(self.kind, self.dimensions, t_query, t_item)

    def _compared(
        self, queries: States, items: States, rows: IntArray, lists: IntArray
    ) -> FloatArray:
        """Scores (b, c) of the queries at `rows` (b,); halved where memory ends all the same."""
        try:
            found: FloatArray = self._scores(*queries.padded(rows), *items.padded(lists))
            return found
        except MemoryError:
            b, c = lists.shape
            if b > 1:
                halves = [slice(0, b // 2), slice(b // 2, b)]
                parts = [self._compared(queries, items, rows[h], lists[h]) for h in halves]
                return np.concatenate(parts)
            if c > 1 and not self.joint:
                halves = [slice(0, c // 2), slice(c // 2, c)]
                parts = [self._compared(queries, items, rows, lists[:, h]) for h in halves]
                return np.concatenate(parts, axis=1)
        raise self._too_many(c, self._limit(queries, items, rows, lists))

    def _limit(self, queries: States, items: States, rows: IntArray, lists: IntArray) -> int:
        """How many candidates of a list that is too long can be compared, found by halving."""
        most = lists.shape[1] // 2
        while most:
            try:
                self._scores(*queries.padded(rows), *items.padded(lists[:, :most]))
                break
            except MemoryError:
                most //= 2
        return most

    def _too_many(self, asked: int, most: int) -> InputError:
        return InputError(
            f"{self.name} ({self.kind}) cannot compare {asked:,} candidates at once: that is more "
            f"than memory allows, which is {most:,} here; ask for a smaller depth"
        )


def _columns(lists: IntArray) -> IntArray:
    """The columns of (b, c) that hold items."""
    return np.flatnonzero((lists != NO_ITEM).any(axis=0))


def _parts(lists: IntArray, width: int) -> Iterator[IntArray]:
    """`_columns`, `width` of them at a time."""
    columns = _columns(lists)
    for start in range(0, len(columns), max(1, width)):
        yield columns[start : start + width]


def _check(queries: States, items: States, lists: IntArray) -> None:
    if lists.ndim != 2 or len(lists) != len(queries):
        raise InputError(
            f"the candidate lists have the shape {lists.shape}; there are {len(queries)} queries"
        )
    wrong = (lists < NO_ITEM) | (lists >= len(items))
    if wrong.any():
        raise InputError(
            f"a candidate list names item {lists[wrong][0]}; there are {len(items)} items"
        )
    ordered = np.sort(lists, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != NO_ITEM)
    if twice.any():
        row, column = np.argwhere(twice)[0]
        raise InputError(
            f"the candidate list of query {row} holds item {ordered[row, column]} twice"
        )
