"""Documents cut into passages, which a cross-encoder reads whole.

A passage is an item: its id is `DOCUMENT#NUMBER`, numbered from 1, and its further fields are those
of the document and `document` (its id), `start` and `end`: the passage is `text[start:end]` of the
document's text. The passages of a document follow each other without gaps, and may overlap.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from itertools import count, pairwise, takewhile
from typing import Any, Self, TypeAlias

import numpy as np

from crossknn.data.items import Item, Items
from crossknn.errors import InputError
from crossknn.types import Artifact, as_count

BUNDLED = "bundled"
LENGTH, SHARE = 200, 5
"""The default length in tokens, and the default overlap as a part of the length: one fifth."""
DOCUMENT, START, END = FIELDS = ("document", "start", "end")
"""Fields of a passage that its document does not have."""

_HEADING = re.compile(r"\n(?= {0,3}#{1,6}\s)")
_PARAGRAPH, _LINE, _SPACE = map(re.compile, (r"\n\s*\n\s*", r"\n", r"\s+"))
_SENTENCE = re.compile(r"[.!?…؟۔।॥።။។]+[\"'”’»)\]]*\s+|[。！？｡]+[\"”’」』）]*\s*|\n")
_PLACES = _HEADING, _PARAGRAPH, _LINE, _SENTENCE, _SPACE
"""Where passages are cut, the best place first: before headings, after blank lines, and so on."""
_WIDTHS = 6, 64
"""Characters per token that are tokenized to find the end of a passage: enough for most texts, or
else the most that a scorer reads (`CHARACTERS_PER_TOKEN`)."""
_SAMPLE = 128
"""Number of texts from which `count_longer` estimates."""
_Tokens: TypeAlias = Callable[[str], list[tuple[int, int]]]


@dataclass(frozen=True)
class Passages:
    """How documents are cut: into passages of at most `length` tokens, at sentences and headings.

    Args:
        length: Maximum number of tokens of a passage.
        overlap: Maximum number of tokens that neighbours share, in whole sentences if they fit.
        tokenizer: "bundled", the tokenizer of the bundled cross-encoder, or the content of a
            `tokenizer.json`.
    """

    length: int = LENGTH
    overlap: int = LENGTH // SHARE
    tokenizer: str = field(default=BUNDLED, repr=False)

    def __post_init__(self) -> None:
        length = as_count(self.length, "the length of passages")
        if as_count(self.overlap, "the overlap of passages", 0) >= length:
            raise InputError(
                f"the overlap of {self.overlap} tokens is not below the {length} tokens of a "
                f"passage: give less, such as {length // SHARE}"
            )

    @classmethod
    def of(cls, part: Artifact, _: str = "") -> Self:
        """Read the settings from the part of an index."""
        named = part.arrays["tokenizer"][0] if "tokenizer" in part.arrays else BUNDLED
        return cls(part.meta["length"], part.meta["overlap"], named)

    def artifact(self) -> Artifact:
        """Return the settings as the part of an index."""
        arrays = {} if self.tokenizer == BUNDLED else {"tokenizer": [self.tokenizer]}
        return Artifact({"length": int(self.length), "overlap": int(self.overlap)}, arrays)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the start and the end of each passage of a text, at least one, in linear time."""
        tokens = _tokens_of(self.tokenizer)
        start, before = 0, 0  # before: the end of the passage before
        while True:
            end = self._end(text, start, before - start, tokens)
            if end <= before:  # the overlap leaves no room for anything new
                start, end = before, self._end(text, before, 0, tokens)
            yield start, end
            if end == len(text):
                return
            start, before = self._next(text, start, end, tokens), end

    def _end(self, text: str, start: int, shared: int, tokens: _Tokens) -> int:
        """Return the end of the passage at `start`, of which the first characters are `shared` with
        the passage before."""
        window, spans = "", list[tuple[int, int]]()
        for width in _WIDTHS:
            window = text[start : start + width * self.length]
            spans = tokens(window)
            if len(spans) > self.length or start + len(window) == len(text):
                break
        size = len(window)
        while len(spans) > self.length:
            # A text that is cut inside a word may have more tokens than before: hence the loop.
            most = max(1, min(spans[self.length][0], size - 1))
            size = _cut(window, max(shared, most // 2), most)
            spans = tokens(window[:size]) if size > 1 else []
        return start + size

    def _next(self, text: str, start: int, end: int, tokens: _Tokens) -> int:
        """Return where the passage after text[start:end] starts: at a sentence that both share, or
        else at a word, or else at `end`."""
        passage = text[start:end]
        spans = tokens(passage) if self.overlap else []
        if len(spans) <= self.overlap or not (first := spans[-self.overlap][0]):
            return end
        for places in (_SENTENCE, _SPACE):
            for match in places.finditer(passage, first - 1, len(passage) - 1):
                return start + match.end()
        return start + first


def _cut(text: str, least: int, most: int) -> int:
    """Return the last of the best places to cut a text after `least` characters, or `most`."""
    for places in _PLACES:
        if found := [match.end() for match in places.finditer(text, least, most)]:
            return found[-1]
    return most


def _tokens_of(tokenizer: str) -> _Tokens:
    """Return the function from a text to the start and the end of each of its tokens."""
    opened = tokenizer_of(tokenizer)
    return lambda text: opened.encode(text, add_special_tokens=False).offsets


@lru_cache(maxsize=2)
def tokenizer_of(content: str) -> Any:
    """Open a tokenizer by the content of its `tokenizer.json`, or the bundled cross-encoder's; it
    is shared by threads and must not be changed."""
    import tokenizers

    if content == BUNDLED:
        folder = files("crossknn") / "bundled" / "cross-encoder"
        content = (folder / "tokenizer.json").read_text("utf-8")
    try:
        opened = tokenizers.Tokenizer.from_str(content)
    except Exception as error:  # the library raises no narrower class
        raise InputError(f"the tokenizer that counts tokens cannot be read: {error}") from error
    opened.no_truncation()
    opened.no_padding()
    return opened


def cut(documents: Items, passages: Passages) -> Items:
    """Return the passages of all documents, in order; a text without words is one passage."""
    if documents.alive is not None:
        documents = documents.take(np.flatnonzero(documents.alive).tolist())
    columns: tuple[list[Any], ...] = [], [], [], []
    for document in map(documents.__getitem__, range(len(documents))):
        for name in filter(document.extra.__contains__, FIELDS):
            raise InputError(
                f"the document {document.id!r} has a field {name!r}, as its passages would have: "
                "rename that field"
            )
        try:
            spans = [*passages.spans(document.text)]
        except TypeError:  # of the tokenizer
            raise InputError(
                f"the document {document.id!r} has half a surrogate pair, which is not valid text"
            ) from None
        for number, (start, end) in enumerate(spans, start=1):
            place: Mapping[str, object] = {DOCUMENT: document.id, START: start, END: end}
            row = f"{document.id}#{number}", document.text[start:end], document.title
            for column, value in zip(columns, (*row, {**document.extra, **place}), strict=True):
                column.append(value)
    ids, texts, titles, extra = columns
    return Items(ids=ids, texts=texts, titles=titles, extra=extra, template=documents.template)


def whole(texts: Sequence[str], starts: Sequence[int]) -> str:
    """Put a document's text together from the texts and the starts of its passages, in order.

    >>> whole(["one two ", "two three"], [0, 4])
    'one two three'
    """
    new = [after - start for start, after in pairwise(starts)]
    return "".join(text[:end] for text, end in zip(texts, [*new, None], strict=True))


def positions_of(items: Items, document: str) -> list[int]:
    """Return the positions of a document's passages in order, none if there is no such document."""
    ids = takewhile(items.__contains__, (f"{document}#{number}" for number in count(1)))
    return [items.position(passage) for passage in ids]


def count_longer(texts: Sequence[str], length: int, tokenizer: str = BUNDLED) -> tuple[int, bool]:
    """Estimate how many texts have more than `length` tokens, from some of those with more
    characters; also return whether all of those were read, which makes the number exact."""
    sizes = np.fromiter(map(len, texts), np.int64, len(texts))
    order = np.argsort(sizes, kind="stable")
    longer = order[np.searchsorted(sizes[order], length, side="right") :]
    # Evenly spaced by size, which nearly decides: a random sample was wrong by a quarter.
    step, tokens = max(1, len(longer) / _SAMPLE), _tokens_of(tokenizer)
    read = longer[np.arange(step / 2, len(longer), step).astype(np.int64)]
    counts = [_longer(texts[p], length, tokens) for p in read.tolist()]
    return round(sum(counts) * step), step == 1


def _longer(text: str, length: int, tokens: _Tokens) -> bool:
    widths = _WIDTHS if len(text) > _WIDTHS[0] * length else _WIDTHS[:1]
    return any(len(tokens(text[: length * width])) > length for width in widths)


def n_documents(items: Items) -> int:
    """Count the documents whose passages are the items that are not deleted."""
    alive = items.alive
    firsts = (p for p, passage in enumerate(items.ids) if passage.endswith("#1"))
    return sum(alive is None or bool(alive[p]) for p in firsts)


def document_of(items: Items, name: str) -> Item | None:
    """Return a document put together from its passages, with the document's fields; None if the
    items have no passages of a document of this id."""
    parts = positions_of(items, name)
    if not parts:
        return None
    starts: list[Any] = [items.extra[part][START] for part in parts]
    text = whole([items.texts[part] for part in parts], starts)
    extra = {field: v for field, v in items.extra[parts[0]].items() if field not in FIELDS}
    return Item(name, text, items.titles[parts[0]], extra)
