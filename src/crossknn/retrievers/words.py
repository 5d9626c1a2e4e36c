"""Split texts of any script into words, by `re` and `unicodedata` alone."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from itertools import groupby
from operator import add, attrgetter

from crossknn.errors import IndexFormatError, InputError

TOKENIZER_VARIABLE = "CROSSKNN_TOKENIZER"
"""Environment variable that names a tokenizer function, `package.module:function`, which may be
imported to open an index that was built with it."""
_WORD = re.compile(r"\w+")
STOPWORDS = {
    *_WORD.findall(
        "a an and are as at be but by for if in into is it no not of on or such that the their "
        "then there these they this to was will with"
    )
}

# Scripts that do not separate words by spaces (Han, Kana, Bopomofo, Thai, Lao, Khmer, Myanmar,
# Tai), and Hangul, whose words include their particles, are split into pairs of characters.
_DENSE = (
    r"\u2e80-\u2fdf\u3005-\u3007\u3021-\u3029\u3031-\u3035\u303b\u3400-\u4dbf\u4e00-\u9fff"
    r"\uf900-\ufaff\U00020000-\U0003ffff\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff"
    r"\u31f0-\u31ff\U0001aff0-\U0001b16f\u3105-\u312f\u31a0-\u31bf\u0e01-\u0e30\u0e32\u0e33"
    r"\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd-\u0ec6\u0edc-\u0edf\u1000-\u102a\u103f"
    r"\u1050-\u1055\u105a-\u105d\u1061\u1065\u1066\u106e-\u1070\u1075-\u1081\u108e"
    r"\ua9e0-\ua9e4\ua9e6-\ua9ef\ua9fa-\ua9fe\uaa60-\uaa76\uaa7a\uaa7e\uaa7f\u1780-\u17b3\u17d7"
    r"\u17dc\u1950-\u1974\u1980-\u19ab\u1a20-\u1a54\uaa80-\uaaaf\uac00-\ud7a3\u1100-\u11ff"
    r"\ua960-\ua97c\ud7b0-\ud7fb"
)
_FLAGS = r"\U0001f1e6-\U0001f1ff"
_EMOJI = (
    r"\u231a\u231b\u23e9-\u23fa\u2600-\u27bf\u2b50-\u2b55\U0001f000-\U0001f1e5"
    r"\U0001f200-\U0001faff"
)
# Characters that are dropped, because texts with and without them should match: invisible
# characters, marks of Latin, Greek and Cyrillic letters, points of Hebrew, Arabic and Syriac ones,
# the stroke that widens Arabic words, frames around symbols, skin colours of emoji. Marks of other
# scripts are part of the spelling.
_DROPPED = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff\u0300-\u036f"
    r"\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\ufe20-\ufe2f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4"
    r"\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8"
    r"\u06ea-\u06ed\u08d3-\u08ff\u0711\u0730-\u074a\u0640\u20d0-\u20ff\U0001f3fb-\U0001f3ff"
)
# Replaced characters: letters that look accented but do not decompose (dotless i, o and l with a
# stroke, ...); Persian yeh and kaf and Arabic endings, as in Lucene's foldings; apostrophes that
# count as letters; the space without width.
_SAME = dict(
    zip(
        "\u0131\u00f8\u00d8\u0142\u0141\u0111\u0110\u06cc\u0649\u06a9\u0629\u06c1\u02bc\u02bb\u200b",
        "iooLLdd\u064a\u064a\u0643\u0647\u0647'' ",
        strict=True,
    )
)


@cache
def _patterns() -> tuple[re.Pattern[str], ...]:
    """Compile patterns of dropped or replaced characters, digits of other scripts, characters that
    `_WORD` does not match, words, single characters, and runs of more than `MARKS` marks."""
    marks = "".join(f"{chr(a)}-{chr(b)}" for a, b in _marks())
    letters = rf"[^\W{_DENSE}]+"
    word = rf"([{_DENSE}][{_DENSE}{marks}]*)|{letters}(?:[{marks}]+(?:{letters})?)*"
    word += rf"|[{_FLAGS}]{{2}}|[{_EMOJI}]"
    dropped = f"[{_DROPPED}{''.join(_SAME)}]"
    special = rf"[{_DENSE}{marks}{_EMOJI}\U00010000-\U0003ffff]"
    many = f"[{marks}]{{{MARKS + 1},}}"
    return tuple(map(re.compile, (dropped, r"[^\D0-9]", special, word, f".[{marks}]*", many)))


def _marks() -> Iterator[tuple[int, int]]:
    """Return the first and last character of each run of combining marks."""
    kinds = groupby(range(0x20000), lambda code: unicodedata.category(chr(code))[0] == "M")
    for is_mark, codes in kinds:
        if is_mark:
            run = [*codes]
            yield run[0], run[-1]


def folded(text: str) -> str:
    """Normalize a text for comparing words: NFKC and case folding, without `_DROPPED` characters.

    >>> folded("İSTANBUL Ａ１ cafe\u0301 कि")
    'istanbul a1 cafe कि'
    """
    if text.isascii():
        return text.lower()
    dropped, digit, *_ = _patterns()
    text = text.replace("\u2122", " ").replace("\u2120", " ")  # trade marks, not letters
    apart = unicodedata.normalize("NFKD", _of_few_marks(text))
    apart = dropped.sub(lambda match: _SAME.get(match[0], ""), apart)
    plain = unicodedata.normalize("NFKC", _of_few_marks(apart.casefold()))
    return digit.sub(lambda match: str(unicodedata.decimal(match[0])), plain)


def _of_few_marks(text: str) -> str:
    """Cut each letter's marks to 30, as in Unicode's Stream-Safe Text Format, because `normalize`
    sorts marks in quadratic time: 200,000 marks on one letter took 35 s."""
    return _patterns()[5].sub(lambda match: match[0][:MARKS], text) if len(text) > MARKS else text


MARKS = 30
"""Maximum number of marks per letter."""


def words(text: str, *, characters: bool = False) -> list[str]:
    """Split a text into words, without the English stop words.

    A word is a run of letters (with their marks), digits and `_`, or an emoji; apostrophes and
    points separate words. In scripts without spaces every pair of neighbouring characters is a
    word, and so is a character that stands alone; with `characters`, also every character.

    >>> words("The naïve cafés, 東京都 ok!"), words("猫です", characters=True)
    (['naive', 'cafes', '東京', '京都', 'ok'], ['猫', 'で', 'す', '猫で', 'です'])
    """
    plain = folded(text)
    if plain.isascii() or (patterns := _patterns())[2].search(plain) is None:
        return [word for word in _WORD.findall(plain) if word not in STOPWORDS]
    word, character = patterns[3:5]
    split: list[str] = []
    for match in word.finditer(plain):
        if match[1] is not None:
            run = character.findall(match[1])
            split += run if characters or len(run) == 1 else ()
            split += map(add, run, run[1:])
        elif match[0] not in STOPWORDS:
            split.append(match[0])
    return split


@dataclass(frozen=True)
class Tokenizer:
    """Splits texts into words by `split`, and items for BM25 by `split_items`."""

    name: str
    split: Callable[[str], list[str]]
    split_items: Callable[[str], list[str]]


# A query of one character, such as 猫, must match items in which it is part of a pair.
UNICODE = Tokenizer("unicode", words, partial(words, characters=True))
_OWN = {"unicode": UNICODE, "whitespace": Tokenizer("whitespace", str.split, str.split)}
TOKENIZERS = dict(_OWN)
"""Tokenizers by name; `as_tokenizer` adds the user's."""


def as_tokenizer(given: str | Callable[[str], Sequence[str]]) -> Tokenizer:
    """Return the tokenizer of a name (`unicode`, `whitespace` or `package.module:function`), or of
    a function from a text to its words that can be imported by its name; `InputError` otherwise."""
    name = given if isinstance(given, str) else _name_of(given)
    if name in _OWN:
        return TOKENIZERS[name]
    try:
        module, _, attribute = name.partition(":")
        function = attrgetter(attribute)(import_module(module))
    except Exception as error:  # a user's module may raise anything
        raise InputError(
            f"there is no tokenizer {name!r:.80} ({error}): give unicode, whitespace, or a "
            "function that can be imported as package.module:function"
        ) from error
    if not callable(function) or not (isinstance(given, str) or function == given):
        raise InputError(
            f"{given!r:.80} is not a tokenizer: give a function from a text to its words that can "
            "be imported by its name"
        )
    split = partial(_split, function, name)
    TOKENIZERS[name] = Tokenizer(name, split, split)
    return TOKENIZERS[name]


def _name_of(function: object) -> str:
    owner = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None)}:{owner}"


def tokenizer_named(name: str) -> Tokenizer:
    """Return the tokenizer of a stored model; `IndexFormatError` if it is not registered in this
    process. A function is never imported just because a folder names it."""
    if name in TOKENIZERS:
        return TOKENIZERS[name]
    if name == os.environ.get(TOKENIZER_VARIABLE):
        return as_tokenizer(name)
    raise IndexFormatError(
        f"the index's word models were built with the tokenizer {name}: give the same one, "
        f"tokenizer= of ItemIndex.load, or {TOKENIZER_VARIABLE}={name} in the environment"
    )


def _split(function: Callable[[str], Sequence[str]], name: str, text: str) -> list[str]:
    try:
        split = [*function(text)]
    except Exception as error:
        raise InputError(
            f"the tokenizer {name} failed on the text {text!r:.80}: {error}"
        ) from error
    if not all(isinstance(word, str) for word in split):
        raise InputError(f"the tokenizer {name} returned {split!r:.80}: return a list of words")
    return split
