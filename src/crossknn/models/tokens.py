"""Tokenize texts for models, in search and training; and the interface `TokenModel`.

A pair is `[CLS] query [SEP] item [SEP]`. Texts that are too long are cut at the end. In entity
linking, marked queries instead keep the text around the mention, and marked items keep the mark.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from crossknn.data.queries import MARKS
from crossknn.errors import InputError
from crossknn.files import read_given
from crossknn.linalg import running
from crossknn.models.folder import refusing
from crossknn.types import FloatArray, IntArray, Pairs

_MULTIPLE = 8
CHARACTERS_PER_TOKEN = 64
"""Maximum characters tokenized per token of the window: longer texts would be cut anyway, and
tokenizing megabytes takes seconds."""


class Tokenizer:
    """Converts texts to token ids, and knows the special tokens around one or two texts; fast
    tokenizers are not thread-safe, so every use holds one lock."""

    def __init__(self, fast: Any) -> None:
        self.fast = fast
        fast.no_truncation()
        fast.no_padding()
        self._lock = threading.Lock()
        self.single = Template(fast.encode("a"))
        self.pair = Template(fast.encode("a", "a"))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load a `tokenizer.json`; InputError if the file is not one."""
        import tokenizers

        content = read_given(path)
        with refusing(f"{path} is not a tokenizer"):
            return cls(tokenizers.Tokenizer.from_buffer(content))

    @property
    def marks(self) -> tuple[int, ...]:
        """Token ids of the marks `[Ms]`, `[Me]` and `[ENT]`, if the tokenizer has them."""
        ids = [self.fast.token_to_id(mark) for mark in MARKS]
        return () if None in ids else tuple(ids)

    @property
    def padding(self) -> int:
        """The token id that pads short rows."""
        ids = [self.fast.token_to_id(token) for token in ("[PAD]", "<pad>")]
        return next((token_id for token_id in ids if token_id is not None), 0)

    def ids(self, texts: Sequence[str]) -> list[IntArray | None]:
        """Return the token ids (t,) of each text, without special tokens; None for invalid text."""
        with running():
            return self._ids(texts)

    def _ids(self, texts: Sequence[str]) -> list[IntArray | None]:
        try:
            with self._lock:
                encodings = self.fast.encode_batch_fast(list(texts), add_special_tokens=False)
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            return [None] if len(texts) == 1 else [self._ids([text])[0] for text in texts]
        return [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]


class Template:
    """A tokenizer's special tokens around texts: pieces (ids, type id), with None in place of the
    n-th text."""

    def __init__(self, encoding: Any) -> None:
        # `encoding` encodes "a", or "a" and "a"; "a" may be several tokens.
        rows = zip(encoding.sequence_ids, encoding.type_ids, encoding.ids, strict=True)
        self.pieces: list[tuple[IntArray | None, int]] = [
            (np.array([token for *_, token in group]) if text is None else None, type_id)
            for (text, type_id), group in groupby(rows, key=lambda row: row[:2])
        ]
        self.n_special = sum(len(ids) for ids, _ in self.pieces if ids is not None)

    def assemble(self, *texts: IntArray) -> tuple[IntArray, IntArray]:
        """Insert the token ids of one or two texts; return input ids (t,), token type ids (t,)."""
        following = iter(texts)
        ids = [next(following) if piece is None else piece for piece, _ in self.pieces]
        types = [type_id for _, type_id in self.pieces]
        return np.concatenate(ids), np.repeat(types, list(map(len, ids)))


class Row(NamedTuple):
    """One input: token `ids` (t,), their token types `kinds` (t,), and whether the text was cut."""

    ids: IntArray
    kinds: IntArray
    cut: bool


@dataclass(frozen=True, kw_only=True)
class Window:
    """The maximum length of an input in tokens, including special tokens.

    A query and an item share `max_length`, or each has its own limit, as in entity linking: the
    query's limit includes `[CLS]` and the first `[SEP]`, the item's limit the last `[SEP]`.
    """

    max_length: int
    query_length: int | None = None
    item_length: int | None = None


class Encoding:
    """Encodes pairs and single texts as rows of token ids, by a tokenizer, a window and prefixes.

    If the tokenizer has the marks of entity linking, texts must be marked unless `marked` is false.
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
        self.prefixes = (query_prefix, item_prefix)
        self._marks = tokenizer.marks if marked else ()

    def pairs(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str]
    ) -> list[Row | InputError]:
        """Encode each pair (p,); an input that cannot be encoded is replaced by its error."""
        query, query_of = np.unique(pairs.query, return_inverse=True)
        item, item_of = np.unique(pairs.item, return_inverse=True)
        left = self._ids((queries[position] for position in query), self.prefixes[0])
        right = self._ids((items[position] for position in item), self.prefixes[1])
        each = zip(query_of, item_of, strict=True)
        return [_or_error(self._pair, left[q], right[i]) for q, i in each]

    def texts(self, texts: Sequence[str], *, queries: bool) -> list[Row | InputError]:
        """Encode each text alone (b,), as a query or as an item."""
        all_ids = self._ids(texts, self.prefixes[0 if queries else 1])
        return [_or_error(self._text, ids, queries) for ids in all_ids]

    def _ids(self, texts: Iterable[str], prefix: str) -> list[IntArray | None]:
        # Read all of a marked text: the mark may stand at the end.
        limit = None if self._marks else CHARACTERS_PER_TOKEN * self.window.max_length
        read = [prefix + text[:limit] if isinstance(text, str) else text for text in texts]
        return self.tokenizer.ids(read)

    def _pair(self, query: IntArray, item: IntArray) -> Row:
        window, template = self.window, self.tokenizer.pair
        if window.query_length is None or window.item_length is None:
            room = window.max_length - template.n_special
            rooms = longest_first(len(query), len(item), room)
        else:
            rooms = window.query_length - template.n_special + 1, window.item_length - 1
        kept = self._cut(query, rooms[0], is_query=True), self._cut(item, rooms[1], is_query=False)
        is_cut = len(kept[0]) + len(kept[1]) < len(query) + len(item)
        return Row(*template.assemble(*kept), is_cut)

    def _text(self, ids: IntArray, is_query: bool) -> Row:
        window, template = self.window, self.tokenizer.single
        half = window.query_length if is_query else window.item_length
        limit = window.max_length if half is None else min(half, window.max_length)
        kept = self._cut(ids, limit - template.n_special, is_query=is_query)
        return Row(*template.assemble(kept), len(kept) < len(ids))

    def _cut(self, ids: IntArray, room: int, *, is_query: bool) -> IntArray:
        marks = (self._marks[:2] if is_query else self._marks[2:]) if self._marks else ()
        places = [int(at[0]) for mark in marks if len(at := np.flatnonzero(ids == mark))]
        if len(places) < len(marks) or places != sorted(places):
            if is_query:
                raise InputError("the query has no mention between [Ms] and [Me]")
            raise InputError("the item has no [ENT] after its title")
        if room < len(marks):
            raise InputError(f"there is no room for a text and its marks in {self.window}")
        if is_query and marks:
            return around(ids, places[0], places[1] + 1, room)
        if not marks or places[0] < room:
            return ids[:room]
        return np.append(ids[: room - 1], marks)


def _or_error(make: Callable[..., Row], *given: IntArray | bool | None) -> Row | InputError:
    if any(ids is None for ids in given):
        return InputError("a text is not a valid string")
    try:
        return make(*given)
    except InputError as error:
        return error


def checked_rows(rows: Sequence[Row | InputError], where: str = "", start: int = 0) -> list[Row]:
    """Return the rows, or raise the first error among them, preceded by `where`."""
    kept: list[Row] = []
    for row in rows:
        if isinstance(row, InputError):
            raise InputError(f"{where.format(start + len(kept))}{row}")
        kept.append(row)
    return kept


def around(ids: IntArray, start: int, end: int, room: int) -> IntArray:
    """Return `room` tokens: ids[start:end] and its surroundings, evenly on both sides if possible;
    of a span longer than `room`, its first tokens and its last one."""
    spare = room - (end - start)
    if spare < 0:
        return np.append(ids[start : start + room - 1], ids[end - 1])
    left = min(start, max(spare // 2, spare - (len(ids) - end)))
    return ids[start - left : end + spare - left]


def longest_first(n_query: int, n_item: int, room: int) -> tuple[int, int]:
    """Return how many tokens of a query and of an item to keep within `room` tokens: the longer
    text is cut first, as by the tokenizers' `longest_first`, with which cross-encoders are trained.
    """
    if n_query + n_item <= room:
        return n_query, n_item
    shorter = min(n_query, n_item, room // 2)
    return (shorter, room - shorter) if n_query <= n_item else (room - shorter, shorter)


def padded(rows: Sequence[Row], pad_token_id: int, max_length: int) -> dict[str, IntArray]:
    """Pad rows (b,) to a model's inputs (b, t). The width is a multiple of 8, because with odd
    widths CPUs use other instructions, which change the last bit of one score in six."""
    width = max(1, *(len(row.ids) for row in rows))  # a text may have no tokens at all
    width = max(width, min(-(-width // _MULTIPLE) * _MULTIPLE, max_length))
    ids = np.full((len(rows), width), pad_token_id, dtype=np.int64)
    mask, kinds = np.zeros_like(ids), np.zeros_like(ids)
    for r, row in enumerate(rows):
        n = len(row.ids)
        ids[r, :n], mask[r, :n], kinds[r, :n] = row.ids, 1, row.kinds
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": kinds}


def token_batches(
    lengths: IntArray, tokens_per_run: int, one_width: bool = False
) -> Iterator[IntArray]:
    """Split rows with these numbers of tokens (b,) into batches of similar length, and yield the
    positions (rows,) of each batch. A batch has at most `tokens_per_run` tokens with padding, or a
    single longer row. With `one_width` all rows of a batch have the same padded length."""
    widths = -(-lengths // _MULTIPLE) * _MULTIPLE
    order = np.argsort(lengths, kind="stable")
    start = 0
    for end in range(1, len(order) + 1):
        if end < len(order):
            width = widths[order[end]]
            wider = one_width and width > widths[order[start]]
            if not wider and (end + 1 - start) * width <= tokens_per_run:
                continue
        yield order[start:end]
        start = end


class TokenModel(Protocol):
    """A model that reads rows of token ids: an `OnnxModel`, or a torch model of crossknn-train.

    `workers` batches may run at once (0: one batch, on the caller's thread); `one_width` allows a
    batch one padded length only; `late_kind`, `joint`, `compare` are for late-interaction models.
    """

    name: str
    encoding: Encoding
    dimensions: int
    workers: int
    one_width: bool
    late_kind: str
    joint: bool

    @property
    def tokens_per_run(self) -> int:
        """Maximum number of tokens in a batch, including padding."""

    @property
    def bytes_at_once(self) -> int:
        """Memory that one `compare` may take, in bytes."""

    @property
    def fingerprint(self) -> str:
        """A text that changes whenever scores or vectors may change."""

    def read(self, rows: Sequence[Row], queries: bool = True) -> list[FloatArray]:
        """Run the model on b rows, and return [scores (b,)], [vectors (b, d)], or [states (b, t,
        d), mask (b, t)]."""

    def compare(self, *states: Any) -> FloatArray:
        """Score states and masks, (b, t, d), (b, t) and (b, c, t, d), (b, c, t) -> (b, c)."""
