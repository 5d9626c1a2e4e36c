"""Late-interaction models (CMC, Poly-encoder, Sum-of-Max, Deformer, MixEncoder), ready to search.

Axes: m queries, n items, c candidates, t states of a text, d dimensions, b texts or lists at once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.models.tokens import Row
from crossknn.scorers.streaming import excerpt
from crossknn.scorers.token_models import TextReader
from crossknn.types import NO_ITEM, BoolArray, FloatArray, IntArray, Progress, States


class LateInteractionScorer(TextReader):
    """Encodes single texts and compares their states; `_states` and `_scores` differ by framework.

    Set by subclasses: `kind`; `dimensions`, d of what an index keeps of an item; `joint`, whether
    the score of a candidate depends on the others in its list.
    """

    kind: str
    dimensions: int
    joint: bool
    bytes_at_once = 256 << 20
    """Bytes that a batch of lists takes, about; a list that needs more is compared alone."""

    @abstractmethod
    def _states(self, rows: Sequence[Row], queries: bool) -> tuple[FloatArray, BoolArray]:
        """Rows of texts (b) -> states (b, t, d) and which of them there are (b, t)."""

    @abstractmethod
    def _scores(self, *states: FloatArray | BoolArray) -> FloatArray:
        """(b, t_q, d), (b, t_q), (b, c, t_i, d), (b, c, t_i) -> scores (b, c), or MemoryError."""

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
            for position, states, mask in zip(positions.tolist(), values, known, strict=True):
                kept[position] = states[mask]
                if not np.isfinite(kept[position]).all():
                    raise ScorerError(
                        f"the model {self.name} gave a state that is not finite for {what} "
                        f"{position} {excerpt(texts[position])}"
                    )
        starts = np.cumsum([0, *map(len, kept)], dtype=np.int64)
        return States(np.concatenate([np.empty((0, self.dimensions), dtype), *kept]), starts)

    def compare(self, queries: States, items: States, lists: IntArray) -> FloatArray:
        """Scores (m, c) float32 of `lists` (m, c): positions in `items`, `NO_ITEM` for none (-inf).

        Takes as many queries at a time as memory allows, and goes through a list by parts unless
        the model looks at all candidates together.

        Raises:
            InputError: lists that do not fit, an item that stands twice in a list, or a list that
                is more than memory allows.
            ScorerError: a score is not finite.
        """
        _check(queries, items, lists)
        scores = np.full(lists.shape, -np.inf, np.float32)
        longest = len(_filled(lists))
        t_query, t_item = (int(states.counts.max(initial=1)) for states in (queries, items))
        each = bytes_of_candidate(self.kind, self.dimensions, t_query, t_item)
        width = longest if self.joint else min(longest, max(1, self.bytes_at_once // each))
        room = self._room()
        if room is not None and width * each > room:
            raise self._too_many(longest, room // each)
        rows = max(1, self.bytes_at_once // max(1, width * each))
        for start in range(0, len(lists), rows):
            batch = np.arange(start, min(start + rows, len(lists)))
            filled = _filled(lists[batch])
            for first in range(0, len(filled), max(1, width)):
                place = np.ix_(batch, filled[first : first + width])
                scores[place] = self._compared(queries, items, batch, lists[place])
        wrong = np.argwhere(~np.isfinite(scores) & (lists != NO_ITEM))
        if len(wrong):
            row, column = wrong[0]
            raise ScorerError(
                f"the model {self.name} gave item {lists[row, column]} the score "
                f"{scores[row, column]} for query {row}"
            )
        return scores

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
                halves = (slice(b // 2), slice(b // 2, None))
                return np.concatenate(
                    [self._compared(queries, items, rows[h], lists[h]) for h in halves]
                )
            if c > 1 and not self.joint:
                parts = (lists[:, : c // 2], lists[:, c // 2 :])
                return np.hstack([self._compared(queries, items, rows, part) for part in parts])
        most = c // 2
        while most:  # found by halving, for the message
            try:
                self._scores(*queries.padded(rows), *items.padded(lists[:, :most]))
                break
            except MemoryError:
                most //= 2
        raise self._too_many(c, most)

    def _too_many(self, asked: int, most: int) -> InputError:
        return InputError(
            f"{self.name} ({self.kind}) cannot compare {asked:,} candidates at once: that is more "
            f"than memory allows, which is {most:,} here; ask for a smaller depth"
        )


def _filled(lists: IntArray) -> IntArray:
    """The columns of (b, c) that hold items."""
    return np.flatnonzero((lists != NO_ITEM).any(axis=0))


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


def bytes_of_candidate(kind: str, d: int, t_query: int, t_item: int) -> int:
    """About what one candidate takes while it is compared, with states of d dimensions.

    CMC reads its list in parts of 256 rows, so that nothing here grows with the list.
    """
    t = t_query + t_item
    floats = {
        "cmc": 12 * d + 2 * 2048,
        "poly": 4 * d + 2 * t_query,
        "som": t_item * (2 * d + 2 * t_query),
        "deformer": t * (14 * d + 24 * t),
        "mixencoder": 20 * d + 36 * t_query,
    }
    return 4 * floats[kind]


def available_memory() -> int | None:
    """Bytes that this process can still get, of the machine and of its group; None if unknown."""
    found = [room for room in (_of_machine(), _of_group()) if room is not None]
    return min(found, default=None)


def _of_machine() -> int | None:
    try:
        about = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        return int(about["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):  # not Linux
        return None


def _of_group() -> int | None:
    """What a container's limit (control groups, version 2 or 1) leaves."""
    root = Path("/sys/fs/cgroup")
    for limit, used, details in (
        ("memory.max", "memory.current", "memory.stat"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "memory/memory.stat"),
    ):
        try:
            left = int((root / limit).read_text()) - int((root / used).read_text())
            kept = dict(line.split() for line in (root / details).read_text().splitlines())
            # Cached files are given back when memory is asked for.
            return left + int(kept.get("inactive_file", 0))
        except (OSError, ValueError):  # no such group, or no limit: "max"
            continue
    return None
