"""Make pseudo-queries from the items, for users without training queries; no model is needed.

An item gives at most three: its title, the first sentence of its text, and its most characteristic
span, a few words of one clause that are rare in other items.
"""

from __future__ import annotations

import logging
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from itertools import accumulate, product

import numpy as np

from crossknn.data.items import Items
from crossknn.data.queries import ENTITY, unmarked
from crossknn.errors import InputError

logger = logging.getLogger(__name__)

FEWEST, MOST = 3, 12
"""Minimum and maximum number of words in a span."""

LONGEST, LONGEST_TEXT = 32, 240
"""Maximum words and characters of a title or a sentence; characters matter in scripts without
spaces."""

_READ = 1000  # characters of an item: cross-encoders see no more
_COUNTED = 20_000  # items among which words are counted

_SENTENCE_END = re.compile(
    r"""(?<=[.!?…؟۔।॥])["'”’»)\]]*\s+|(?<=[。！？｡])["'”’」』）]*|\s*\n\s*\n\s*"""
)
_ABBREVIATION = re.compile(r"(?:^|[\W_])(?:[^\W\d_]|[A-Z][a-z]|et al|vs|cf)\.$")
_CLAUSE_END = re.compile(r"""[.,;:!?…]+\s+|\s[-–—]+\s|[()\[\]{}"“”«»]|[、，；：。！？]""")
_EDGES = string.punctuation + string.whitespace + "“”‘’«»…–—、，；：。！？「」『』（）।॥؟۔،؛"


def pseudo_queries(items: Items, count: int, *, seed: int = 0) -> list[str]:
    """Make up to `count` different pseudo-queries, in a random order determined by the seed.

    Every item gives one before any gives a second, and the kinds are mixed. A larger count begins
    with the queries of a smaller one. That the items give fewer than `count` is logged.

    Raises InputError if count is below 1.
    """
    if count < 1:
        raise InputError(f"count is {count}; it must be 1 or more")
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(items)).tolist()
    first = generator.integers(6, size=len(items)).tolist()
    rarity = _rarity(_halves(items, place)[1] for place in order[:_COUNTED])
    forms, found = cache(lambda place: _forms(*_halves(items, place), rarity)), dict[str, str]()
    for turn, place in product(range(3), order):
        given = forms(place)
        if turn < len(given):
            query = given[(first[place] + turn) % len(given)]
            found.setdefault(query.casefold(), query)
        if len(found) == count:
            return list(found.values())
    said = "%d pseudo-queries were asked for; the %d items give %d"
    logger.warning(said, count, len(items), len(found))
    return list(found.values())


def _rarity(texts: Iterable[str]) -> Callable[[str], float]:
    """Compute each word's rarity: its inverse document frequency ln((1 + n) / (1 + df)) minus the
    mean over all running words.

    Words without a letter say nothing, and count as being everywhere.
    """
    words = [[_core(word) for word in text.split()] for text in texts]
    frequency = Counter(word for text in words for word in set(text))
    running = Counter(word for text in words for word in text)

    def idf(word: str) -> float:
        rare = math.log((1 + len(words)) / (1 + frequency[word]))
        return rare if any(map(str.isalpha, word)) else 0.0

    mean = sum(times * idf(word) for word, times in running.items()) / max(1, running.total())
    return lambda word: idf(_core(word)) - mean


def _forms(title: str, text: str, rarity: Callable[[str], float]) -> list[str]:
    """Return title, first sentence, and the span with the highest total rarity."""
    sentences = _sentences(text)
    longer = (sentence for sentence in sentences if len(sentence.split()) >= FEWEST)
    first = next(longer, sentences[0] if sentences else "")  # more than a heading
    made = (_fitting(title), _fitting(first), _span(sentences, rarity))
    return [query for query in dict.fromkeys(made) if any(map(str.isalnum, query))]


def _span(sentences: Sequence[str], rarity: Callable[[str], float]) -> str:
    """Return the best span of `FEWEST` to `MOST` words within a clause; empty if no word is
    rare."""
    best, span = 0.0, ""
    for clause in (part for sentence in sentences for part in _CLAUSE_END.split(sentence)):
        words = clause.split()
        sums = [0.0, *accumulate(map(rarity, words))]
        for end in range(FEWEST, len(words) + 1):
            begin = max(0, end - MOST)
            before = sums[begin : end - FEWEST + 1]
            if sums[end] - min(before) > best:
                best = sums[end] - min(before)
                span = " ".join(words[begin + before.index(min(before)) : end])
    return _fitting(span.strip(_EDGES))


def _halves(items: Items, place: int) -> tuple[str, str]:
    """Return an item's title, and the beginning of its text without the title."""
    title, text = items.titles[place], items.texts[place]
    if ENTITY in text:
        title, _, text = text.partition(ENTITY)
    elif text.startswith(title) and not text[len(title) : len(title) + 1].strip():
        text = text[len(title) :]
    if len(text) > _READ:
        text = (text[:_READ].rsplit(None, 1) or [""])[0]
    return unmarked(title), text.strip()


def _sentences(text: str) -> list[str]:
    """Split a text into sentences without line breaks and marks.

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


def _fitting(text: str) -> str:
    """Cut a text to `LONGEST` words and `LONGEST_TEXT` characters."""
    short = " ".join(text.split()[:LONGEST])
    if len(short) > LONGEST_TEXT:
        short = short[:LONGEST_TEXT].rsplit(None, 1)[0]
    return short


def _core(word: str) -> str:
    """Return a word in lower case without punctuation at its ends."""
    return word.strip(_EDGES).casefold()
