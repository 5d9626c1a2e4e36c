"""From texts to the token arrays a model reads: one place for searching and for training.

A pair is `[CLS] query [SEP] item [SEP]`. What is too long loses its end, but for a marked query,
which keeps what stands around its mention, and a marked item, which keeps its mark.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from crossknn.data.marks import MARKS
from crossknn.errors import InputError
from crossknn.types import IntArray, Pairs

_CACHED_TEXTS = 1 << 16
_MULTIPLE = 8
CHARACTERS_PER_TOKEN = 64
"""A text is read up to so many characters for each token of the window: a longer one would be cut
anyway, and tokenizing megabytes takes seconds."""


class Tokenizer:
    """Token ids of texts, and the special tokens around one text or between two.

    Fast tokenizers are not safe to share between threads: every use is under one lock. The ids
    of the latest texts are kept, since a search meets the same items with many queries.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Takes a `tokenizers.Tokenizer` and turns its truncation and padding off."""
        self._tokenizer = tokenizer
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._lock = threading.Lock()
        self._kept: dict[str, IntArray | None] = {}
        self.single = Template(self._tokenizer.encode("a"))
        self.pair = Template(self._tokenizer.encode("a", "a"))

    @classmethod
    def load(cls, path: Path) -> Self:
        """The tokenizer in a `tokenizer.json`. Raises InputError if the file is not one."""
        import tokenizers

        try:
            return cls(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the Rust side raises bare Exception
            raise InputError(f"{path} is not a tokenizer: {error}") from error

    @property
    def marks(self) -> tuple[int, ...]:
        """Token ids of `[Ms]`, `[Me]` and `[ENT]`; empty for a tokenizer without them."""
        found = [self._tokenizer.token_to_id(mark) for mark in MARKS]
        return () if None in found else tuple(found)

    @property
    def separator(self) -> int:
        """Token id of the first special token after the first of two texts."""
        places = [place for place, (ids, _) in enumerate(self.pair.pieces) if ids is None]
        ids = self.pair.pieces[places[0] + 1][0]
        if ids is None:
            raise InputError("the tokenizer puts no separator between two texts")
        return int(ids[0])

    @property
    def padding(self) -> int:
        """Token id that fills short rows."""
        for token in ("[PAD]", "<pad>"):
            found = self._tokenizer.token_to_id(token)
            if found is not None:
                return int(found)
        return 0

    def ids(self, texts: Sequence[str]) -> list[IntArray | None]:
        """Token ids (t,) of each text, without special tokens and without a length limit.

        None for a text that is not one: not a string, or a string with lone surrogates.
        """
        with self._lock:
            kept = self._kept
            new = list(dict.fromkeys(text for text in texts if text not in kept))
            found = dict(zip(new, self._encode(new), strict=True))
            result = [found[text] if text in found else kept[text] for text in texts]
            if len(kept) + len(found) > _CACHED_TEXTS:
                kept.clear()
            if len(found) <= _CACHED_TEXTS:
                kept.update(found)
        return result

    def _encode(self, texts: list[str]) -> list[IntArray | None]:
        try:
            encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception:
            if len(texts) == 1:
                return [None]
            return [ids for text in texts for ids in self._encode([text])]
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]


class Template:
    """Special tokens of a tokenizer: pieces of (ids, type ids), with None for the n-th text."""

    def __init__(self, encoding: Any) -> None:
        self.pieces: list[tuple[IntArray | None, int]] = []
        special: list[int] = []
        special_type = 0
        seen: int | None = None

        def close() -> None:
            if special:
                self.pieces.append((np.array(special, dtype=np.int64), special_type))
                special.clear()

        rows = zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True)
        for token, kind, sequence in rows:
            if sequence is None:
                if special and kind != special_type:
                    close()
                special.append(token)
                special_type = kind
                continue
            if sequence != seen:  # "a" may be several tokens; its place counts once
                close()
                self.pieces.append((None, kind))
                seen = sequence
        close()
        self.n_special = sum(len(ids) for ids, _ in self.pieces if ids is not None)

    def assemble(self, *texts: IntArray) -> tuple[IntArray, IntArray]:
        """Token ids of one or two texts -> (input ids (t,), token type ids (t,))."""
        following = iter(texts)
        ids = [next(following) if piece is None else piece for piece, _ in self.pieces]
        kinds = [
            np.full(len(part), kind, dtype=np.int64)
            for part, (_, kind) in zip(ids, self.pieces, strict=True)
        ]
        return np.concatenate(ids), np.concatenate(kinds)


class Row(NamedTuple):
    """One input: `ids` (t,), `kinds` (t,) its token types, and whether it had to be cut."""

    ids: IntArray
    kinds: IntArray
    cut: bool


@dataclass(frozen=True, kw_only=True)
class Window:
    """How long an input may be, in tokens, special ones included.

    Without `query_length` and `item_length` a query and an item share `max_length`, and the longer
    one gives way. With them each half has a limit of its own, as in entity linking: the query's
    half counts `[CLS]` and `[SEP]`, the item's the last `[SEP]`.
    """

    max_length: int
    query_length: int | None = None
    item_length: int | None = None

    @staticmethod
    def of_each(query_length: int, item_length: int) -> Window:
        """For models that read queries and items apart."""
        longest = max(query_length, item_length)
        return Window(max_length=longest, query_length=query_length, item_length=item_length)


class Encoding:
    """Rows of pairs and of single texts, with one tokenizer, one window, and prefixes if any.

    `marked` says whether texts have to be marked; by default they have to if the tokenizer knows
    the marks.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        window: Window,
        query_prefix: str = "",
        item_prefix: str = "",
        *,
        marked: bool = True,
    ) -> None:
        self.tokenizer = tokenizer
        self.window = window
        self._prefixes = (query_prefix, item_prefix)
        self._marks = tokenizer.marks if marked else ()

    def pairs(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str]
    ) -> list[Row | InputError]:
        """The input of each pair (p,); an error in the place of one that cannot be made."""
        left = self._ids(pairs.query, queries, self._prefixes[0])
        right = self._ids(pairs.item, items, self._prefixes[1])
        template = self.tokenizer.pair
        rows: list[Row | InputError] = []
        for query, item in zip(pairs.query.tolist(), pairs.item.tolist(), strict=True):
            a, b = left[query], right[item]
            if a is None or b is None:
                rows.append(InputError("a text is not a valid string"))
                continue
            room_a, room_b = self._rooms(len(a), len(b))
            try:
                kept = self._cut_query(a, room_a), self._cut_item(b, room_b)
            except InputError as error:
                rows.append(error)
                continue
            cut = len(kept[0]) + len(kept[1]) < len(a) + len(b)
            rows.append(Row(*template.assemble(*kept), cut))
        return rows

    def texts(self, texts: Sequence[str], *, queries: bool) -> list[Row | InputError]:
        """The input of each text alone (b,), as a query or as an item."""
        template, window = self.tokenizer.single, self.window
        half = window.query_length if queries else window.item_length
        limit = window.max_length if half is None else min(half, window.max_length)
        room = limit - template.n_special
        rows: list[Row | InputError] = []
        prefix = self._prefixes[0 if queries else 1]
        for ids in self.tokenizer.ids([self._readable(prefix, text) for text in texts]):
            if ids is None:
                rows.append(InputError("a text is not a valid string"))
                continue
            try:
                kept = self._cut_query(ids, room) if queries else self._cut_item(ids, room)
            except InputError as error:
                rows.append(error)
                continue
            rows.append(Row(*template.assemble(kept), len(kept) < len(ids)))
        return rows

    def _ids(
        self, positions: IntArray, texts: Sequence[str], prefix: str
    ) -> dict[int, IntArray | None]:
        used = np.unique(positions).tolist()
        chosen = [self._readable(prefix, texts[position]) for position in used]
        return dict(zip(used, self.tokenizer.ids(chosen), strict=True))

    def _readable(self, prefix: str, text: str) -> str:
        """What of a text can matter; of marked ones all, since the mark may stand at the end."""
        if not isinstance(text, str) or self._marks:
            return prefix + text if prefix else text
        return prefix + text[: CHARACTERS_PER_TOKEN * self.window.max_length]

    def _rooms(self, n_query: int, n_item: int) -> tuple[int, int]:
        window, n_special = self.window, self.tokenizer.pair.n_special
        if window.query_length is None or window.item_length is None:
            return longest_first(n_query, n_item, window.max_length - n_special)
        return window.query_length - n_special + 1, window.item_length - 1

    def _cut_query(self, ids: IntArray, room: int) -> IntArray:
        if not self._marks:
            return ids[: self._checked(room, 0)]
        start, end = _place(ids, self._marks[0]), _place(ids, self._marks[1])
        if start is None or end is None or end < start:
            raise InputError("the query has no mention between [Ms] and [Me]")
        return around(ids, start, end + 1, self._checked(room, 2))

    def _cut_item(self, ids: IntArray, room: int) -> IntArray:
        if not self._marks:
            return ids[: self._checked(room, 0)]
        mark = _place(ids, self._marks[2])
        if mark is None:
            raise InputError("the item has no [ENT] after its title")
        if mark < self._checked(room, 1):
            return ids[:room]
        return np.append(ids[: room - 1], ids[mark])

    def _checked(self, room: int, n_marks: int) -> int:
        """The room, if the marks have room in it: a row is never longer than its window."""
        if room < n_marks:
            raise InputError(f"there is no room for a text and its marks in {self.window}")
        return room


def around(ids: IntArray, start: int, end: int, room: int) -> IntArray:
    """The `room` tokens around ids[start:end], as many on the left as on the right if there are.

    A span longer than the room keeps its first tokens and its last one.
    """
    spare = room - (end - start)
    if spare < 0:
        return np.append(ids[start : start + room - 1], ids[end - 1])
    left = min(start, max(spare // 2, spare - (len(ids) - end)))
    return ids[start - left : end + spare - left]


def _place(ids: IntArray, token: int) -> int | None:
    found = np.flatnonzero(ids == token)
    return int(found[0]) if len(found) else None


def longest_first(n_query: int, n_item: int, room: int) -> tuple[int, int]:
    """How many tokens of a query and of an item to keep in `room` tokens.

    The longer text gives way, down to half of the room each: the tokenizers' `longest_first`,
    with which cross-encoders are trained.
    """
    if n_query + n_item <= room:
        return n_query, n_item
    short = min(n_query, n_item)
    keep_short = short if short <= room // 2 else room // 2
    keep_long = room - keep_short
    return (keep_short, keep_long) if n_query <= n_item else (keep_long, keep_short)


def padded(rows: Sequence[Row], pad_token_id: int, max_length: int) -> dict[str, IntArray]:
    """Rows (b,) -> a model's inputs (b, t).

    Padded to a multiple of 8: odd widths send the end of every row through other instructions,
    which shows in the last bit of one score in six. (What is left is the last bit of one score
    in sixty, from the number of rows.)
    """
    width = max(1, *(len(row.ids) for row in rows))  # a text may have no tokens at all
    width = max(width, min(-(-width // _MULTIPLE) * _MULTIPLE, max_length))
    input_ids = np.full((len(rows), width), pad_token_id, dtype=np.int64)
    attention_mask = np.zeros((len(rows), width), dtype=np.int64)
    token_type_ids = np.zeros((len(rows), width), dtype=np.int64)
    for r, row in enumerate(rows):
        input_ids[r, : len(row.ids)] = row.ids
        attention_mask[r, : len(row.ids)] = 1
        token_type_ids[r, : len(row.ids)] = row.kinds
    return {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "token_type_ids": token_type_ids,
    }


def token_batches(lengths: IntArray, tokens_per_run: int) -> Iterator[IntArray]:
    """Positions (b,) sorted by length, cut so that b * width <= tokens_per_run, at least one."""
    widths = -(-lengths // _MULTIPLE) * _MULTIPLE
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - start) * widths[order[end]] > tokens_per_run:
            yield order[start:end]
            start = end
