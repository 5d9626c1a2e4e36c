"""Pseudo-queries: train queries made of the items themselves, for users who have none. No model.

An item gives at most three: its title, the first sentence of its text, and its most telling span, a
few words of one clause that are rare elsewhere. In a marked corpus (entity linking) it gives two:
its name before the first sentence, and a sentence in which its own name, or else the rarest name of
another item, is marked.
"""

from __future__ import annotations

import logging
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias

import numpy as np

from crossknn.data.items import Items
from crossknn.data.queries import ENTITY, marked_query, unmarked
from crossknn.errors import InputError

logger = logging.getLogger(__name__)

FEWEST, MOST = 3, 12
"""Words of a span."""

LONGEST, LONGEST_TEXT = 32, 240
"""Words and characters of a title or a sentence; the latter for scripts without spaces."""

_READ = 1000  # characters of an item: cross-encoders see no more
_COUNTED = 20_000  # items among which words are counted
_NAME = 4  # words of a name that is looked for in a text

_SENTENCE_END = re.compile(
    r"""(?<=[.!?…؟۔।॥])["'”’»)\]]*\s+|(?<=[。！？｡])["'”’」』）]*|\s*\n\s*\n\s*"""
)
_ABBREVIATION = re.compile(r"(?:^|[\W_])(?:[^\W\d_]|[A-Z][a-z]|et al|vs|cf)\.$")
_CLAUSE_END = re.compile(r"""[.,;:!?…]+\s+|\s[-–—]+\s|[()\[\]{}"“”«»]|[、，；：。！？]""")
_EDGES = string.punctuation + string.whitespace + "“”‘’«»…–—、，；：。！？「」『』（）।॥؟۔،؛"

Forms: TypeAlias = Callable[[str, str], list[str]]
"""Title and text of an item -> the pseudo-queries it gives."""


def pseudo_queries(items: Items, count: int, *, marked: bool = False, seed: int = 0) -> list[str]:
    """Up to `count` different pseudo-queries, in a random order that the seed fixes.

    Every item gives one before any gives a second, and the kinds are mixed. A larger count begins
    with the queries of a smaller one. That the items give fewer than `count` is logged. `marked`:
    items are `title [ENT] text`, and queries hold a mention between `[Ms]` and `[Me]`.

    Raises InputError if count is below 1.
    """
    if count < 1:
        raise InputError(f"count is {count}; it must be 1 or more")
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(items)).tolist()
    first = generator.integers(6, size=len(items)).tolist()
    rarity = _Rarity(_halves(items, place)[1] for place in order[:_COUNTED])
    names = (_name(_halves(items, place)[0]) for place in order if marked)
    forms: Forms = _Marked(rarity, names) if marked else _Plain(rarity)
    given = (_turned(forms(*_halves(items, place)), first[place]) for place in order)
    found: dict[str, str] = {}
    for query in _in_turns(given):
        found.setdefault(query.casefold(), query)
        if len(found) == count:
            return list(found.values())
    logger.warning(
        "%d pseudo-queries were asked for; the %d items give %d", count, len(items), len(found)
    )
    return list(found.values())


def _turned(given: list[str], by: int) -> list[str]:
    """A list that begins at another place."""
    by %= max(1, len(given))
    return given[by:] + given[:by]


def _in_turns(rows: Iterable[list[str]]) -> Iterator[str]:
    """The first entry of every row, then the second of every row that has one, and so on."""
    while rows:
        later = []
        for row in rows:
            yield from row[:1]
            if row[1:]:
                later.append(row[1:])
        rows = later


class _Rarity:
    """How much rarer a word is among the items than an ordinary word of a text: its inverse
    document frequency ln((1 + n) / (1 + df)) less the mean of all running words.

    Words without a letter say nothing, and count as being everywhere.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        n, frequency, running = 0, Counter[str](), Counter[str]()
        for text in texts:
            words = [_core(word) for word in text.split()]
            frequency.update(set(words))
            running.update(words)
            n += 1
        self._known = {
            word: math.log((1 + n) / (1 + df)) if _has_letter(word) else 0.0
            for word, df in frequency.items()
        }
        self._unknown = math.log(1 + n)
        total = sum(times * self._known[word] for word, times in running.items())
        self._mean = total / max(1, running.total())

    def __call__(self, word: str) -> float:
        """Of a word as `_core` gives it."""
        return self._known.get(word, self._unknown if _has_letter(word) else 0.0) - self._mean


class _Plain:
    """Title, first sentence, and the span with the highest total rarity."""

    def __init__(self, rarity: _Rarity) -> None:
        self._rarity = rarity

    def __call__(self, title: str, text: str) -> list[str]:
        sentences = _sentences(text)
        made = (_fitting(title), _fitting(_first(sentences)), self._span(sentences))
        return [query for query in dict.fromkeys(made) if any(map(str.isalnum, query))]

    def _span(self, sentences: Sequence[str]) -> str:
        """The best `FEWEST` to `MOST` words within a clause; none if none is rare."""
        best, span = 0.0, ""
        for clause in (part for sentence in sentences for part in _CLAUSE_END.split(sentence)):
            words = clause.split()
            sums = [0.0, *accumulate(self._rarity(_core(word)) for word in words)]
            for end in range(FEWEST, len(words) + 1):
                begin = max(0, end - MOST)
                before = sums[begin : end - FEWEST + 1]
                if sums[end] - min(before) > best:
                    best = sums[end] - min(before)
                    span = " ".join(words[begin + before.index(min(before)) : end])
        return _fitting(span.strip(_EDGES))


class _Marked:
    """`[Ms] name [Me] first sentence`, and a sentence with the name of an item marked."""

    def __init__(self, rarity: _Rarity, names: Iterable[str]) -> None:
        self._rarity = rarity
        self._names = {_key(name.split()) for name in names} - {""}

    def __call__(self, title: str, text: str) -> list[str]:
        sentences, name = _sentences(text), _name(title)
        made = [marked_query("", name, _fitting(_first(sentences)))] if _key([name]) else []
        mention = self._mention(sentences, _key(name.split()))
        return made if mention is None else [*made, mention]

    def _mention(self, sentences: Sequence[str], own: str) -> str | None:
        """The first sentence with the item's own name marked, or that with the rarest other."""
        best, query = 0.0, None
        for sentence in sentences:
            words = sentence.split()
            for start in range(len(words)):
                for end in range(start + 1, min(start + _NAME, len(words)) + 1):
                    key = _key(words[start:end])
                    if key not in self._names or not _core(words[start]):
                        continue
                    value = sum(self._rarity(word) for word in key.split())
                    value = math.inf if key == own else value
                    if value > best:
                        best, query = value, _with_mention(words, start, end)
        return query


def _with_mention(words: Sequence[str], start: int, end: int) -> str:
    """The words around words[start:end], which is marked without the punctuation at its ends."""
    spare = max(0, LONGEST - (end - start))
    left = min(start, max(spare // 2, spare - (len(words) - end)))
    span = " ".join(words[start:end])
    mention = span.strip(_EDGES)
    before, _, after = span.partition(mention)
    return marked_query(
        _fitting(" ".join([*words[start - left : start], before])),
        mention[:LONGEST_TEXT],
        _fitting(" ".join([after, *words[end : end + spare - left]])),
    )


def _halves(items: Items, place: int) -> tuple[str, str]:
    """The title of an item, and the beginning of its text without the title."""
    title, text = items.titles[place], items.texts[place]
    if ENTITY in text:
        title, _, text = text.partition(ENTITY)
    elif text.startswith(title) and not text[len(title) : len(title) + 1].strip():
        text = text[len(title) :]
    if len(text) > _READ:
        text = (text[:_READ].rsplit(None, 1) or [""])[0]
    return unmarked(title), text.strip()


def _sentences(text: str) -> list[str]:
    """Sentences without line breaks and marks.

    A full stop ends none after an initial or a title ("J.", "Dr."), nor before a small letter.
    """
    found, start = [], 0
    for gap in _SENTENCE_END.finditer(text):
        stop = text[max(start, gap.start() - 8) : gap.start()]
        small = text[gap.end() : gap.end() + 1].islower()
        if not (stop.endswith(".") and (small or _ABBREVIATION.search(stop))):
            found.append(text[start : gap.end()])
            start = gap.end()
    made = (unmarked(sentence) for sentence in [*found, text[start:]])
    return [sentence for sentence in made if any(map(str.isalnum, sentence))]


def _first(sentences: Sequence[str]) -> str:
    """The first sentence that is more than a heading; the first if there is none, or nothing."""
    longer = (sentence for sentence in sentences if len(sentence.split()) >= FEWEST)
    return next(longer, sentences[0] if sentences else "")


def _fitting(text: str) -> str:
    """The beginning of a text: at most `LONGEST` words and `LONGEST_TEXT` characters."""
    short = " ".join(text.split()[:LONGEST])
    if len(short) > LONGEST_TEXT:
        short = short[:LONGEST_TEXT].rsplit(None, 1)[0]
    return short


def _name(title: str) -> str:
    """What an item is called in a text: its title without what follows a comma or a bracket.

    >>> _name("Mercury (planet)"), _name("kindness, benignity")
    ('Mercury', 'kindness')
    """
    name = re.split(r"[,(]", title, maxsplit=1)[0].strip()
    return _fitting(name if any(map(str.isalnum, name)) else title)


def _core(word: str) -> str:
    """A word without case and the punctuation at its ends."""
    return word.strip(_EDGES).casefold()


def _key(words: Sequence[str]) -> str:
    """Words as names are compared."""
    return _core(" ".join(words))


def _has_letter(word: str) -> bool:
    return any(map(str.isalpha, word))
