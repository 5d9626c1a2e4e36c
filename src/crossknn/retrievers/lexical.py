"""Word matching, without a model: BM25 and TF-IDF, and the words that they read.

BM25 (Robertson et al., 1994, in Lucene's form, computed by bm25s) and TF-IDF with cosine
(scikit-learn's weights) are searched exactly in an inverted file. Texts of any
script are parted into words by a tokenizer (`words`, or one that is given), without the 33 English
stop words of Lucene; nothing is stemmed. Items that are added to a fitted model are weighted by its
idf and average length; a word that is new to it counts as one that a single item has.

`words` is `re` and `unicodedata` alone: the library `regex` would add 2 MB to every installation
for character classes that stand below in 20 lines.

Axes: m queries, n items, t terms, d dimensions.
"""

from __future__ import annotations

import math
import os
import re
import secrets
import sys
import unicodedata
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from importlib import import_module
from itertools import chain, groupby
from operator import add, attrgetter
from typing import Any, Self

import numpy as np

from crossknn.columns import rows_of
from crossknn.errors import IndexFormatError, InputError
from crossknn.linalg import mask, top_k
from crossknn.retrievers.base import AllScores
from crossknn.types import Artifact, BoolArray, Candidates, FloatArray, IntArray, Queries

TOKENIZER_VARIABLE = "CROSSKNN_TOKENIZER"
"""Names the function that may be imported for an index built with it: `package.module:function`."""
_WORD = re.compile(r"\w+")
STOPWORDS = {
    *_WORD.findall(
        "a an and are as at be but by for if in into is it no not of on or such that the their "
        "then there these they this to was will with"
    )
}

# Scripts that do not part words by spaces (Han, Kana, Bopomofo, Thai, Lao, Khmer, Myanmar, Tai),
# and Hangul, whose words carry their particles: they are read by pairs of characters.
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
# What a text may have or lack and still be read alike: invisible characters, marks of Latin, Greek
# and Cyrillic letters, points of Hebrew, Arabic and Syriac ones, the stroke that widens Arabic
# words, frames around symbols, the skin colours of emoji. Marks of other scripts spell words.
_DROPPED = (
    r"\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c-\u200f\u202a-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\U000e0000-\U000e0fff\u0300-\u036f"
    r"\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\ufe20-\ufe2f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4"
    r"\u05c5\u05c7\u0610-\u061a\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8"
    r"\u06ea-\u06ed\u08d3-\u08ff\u0711\u0730-\u074a\u0640\u20d0-\u20ff\U0001f3fb-\U0001f3ff"
)
# Letters that have no accent to drop but are written without it (dotless i, o and l with a stroke,
# ...); Persian yeh and kaf and Arabic endings, as Lucene's foldings have them; apostrophes that
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
    """What matches what is dropped or has another letter, a digit of another script, what `_WORD`
    does not read, a word of any script, a character, and more marks than a letter has."""
    marks = "".join(f"{chr(a)}-{chr(b)}" for a, b in _marks())
    letters = rf"[^\W{_DENSE}]+"
    word = rf"([{_DENSE}][{_DENSE}{marks}]*)|{letters}(?:[{marks}]+(?:{letters})?)*"
    word += rf"|[{_FLAGS}]{{2}}|[{_EMOJI}]"
    dropped, special = (
        f"[{_DROPPED}{''.join(_SAME)}]",
        rf"[{_DENSE}{marks}{_EMOJI}\U00010000-\U0003ffff]",
    )
    many = f"[{marks}]{{{MARKS + 1},}}"
    return tuple(map(re.compile, (dropped, r"[^\D0-9]", special, word, f".[{marks}]*", many)))


def _marks() -> Iterator[tuple[int, int]]:
    """The first and the last of each run of combining marks."""
    kinds = groupby(range(0x20000), lambda code: unicodedata.category(chr(code))[0] == "M")
    for is_mark, codes in kinds:
        if is_mark:
            run = [*codes]
            yield run[0], run[-1]


def folded(text: str) -> str:
    """A text as words are compared: NFKC and case folding, without what a text may lack.

    >>> folded("İSTANBUL Ａ１ cafe\\u0301 कि")
    'istanbul a1 cafe कि'
    """
    if text.isascii():
        return text.lower()
    dropped, digit, *_ = _patterns()
    text = text.replace("\u2122", " ").replace("\u2120", " ")  # marks of trade, not letters
    apart = unicodedata.normalize("NFKD", _of_few_marks(text))
    apart = dropped.sub(lambda found: _SAME.get(found[0], ""), apart)
    plain = unicodedata.normalize("NFKC", _of_few_marks(apart.casefold()))
    return digit.sub(lambda found: str(unicodedata.decimal(found[0])), plain)


def _of_few_marks(text: str) -> str:
    """A text whose letters have 30 marks at most, as Unicode's Stream-Safe Text Format has it:
    `normalize` sorts them in quadratic time, and 200,000 of one letter took it 35 s."""
    return _patterns()[5].sub(lambda found: found[0][:MARKS], text) if len(text) > MARKS else text


MARKS = 30
"""Marks of a letter that are read."""


def words(text: str, *, characters: bool = False) -> list[str]:
    """The words of a text, without the English stop words.

    A word is a run of letters with their marks, digits and `_`, or an emoji; apostrophes and points
    part words. Of a run of a script without spaces it is each pair of neighbouring characters, or a
    character that stands alone; with `characters`, every character, too.

    >>> words("The naïve cafés, 東京都 ok!"), words("猫です", characters=True)
    (['naive', 'cafes', '東京', '京都', 'ok'], ['猫', 'で', 'す', '猫で', 'です'])
    """
    plain = folded(text)
    if plain.isascii() or (patterns := _patterns())[2].search(plain) is None:
        return [word for word in _WORD.findall(plain) if word not in STOPWORDS]
    word, character = patterns[3:5]
    found: list[str] = []
    for match in word.finditer(plain):
        if match[1] is not None:
            run = character.findall(match[1])
            found += run if characters or len(run) == 1 else ()
            found += map(add, run, run[1:])
        elif match[0] not in STOPWORDS:
            found.append(match[0])
    return found


@dataclass(frozen=True)
class Tokenizer:
    """What parts texts into words: by `split`, and items of BM25 by `split_items`. An index keeps
    the `name`, and is searched with the same alone. `function` is what somebody gave for it."""

    name: str
    split: Callable[[str], list[str]]
    split_items: Callable[[str], list[str]]
    function: Callable[[str], Sequence[str]] | None = None


# BM25 finds a query of one character, 猫, in items that have it in pairs.
UNICODE = Tokenizer("unicode", words, partial(words, characters=True))
TOKENIZERS = {"unicode": UNICODE, "whitespace": Tokenizer("whitespace", str.split, str.split)}
"""By name; `as_tokenizer` adds those that it is given."""


def as_tokenizer(given: str | Callable[[str], Sequence[str]]) -> Tokenizer:
    """The tokenizer of a name, `unicode`, `whitespace` or `package.module:function`, or of a
    function from a text to its words. `InputError` if there is none.

    A function that its name does not lead to, such as a lambda, or the second of a name, is told
    from others by random digits after a `#`.
    """
    if isinstance(given, str):
        if given in TOKENIZERS:
            return TOKENIZERS[given]
        try:
            function, name = _imported(given), given
        except Exception as error:  # whatever a module of somebody's does
            raise InputError(
                f"there is no tokenizer {given!r:.80} ({error}): give unicode, whitespace, or a "
                "function of yours as package.module:function"
            ) from error
    else:
        function, owner = given, getattr(given, "__qualname__", type(given).__qualname__)
        name = f"{getattr(given, '__module__', None)}:{owner}"
    if not callable(function):
        raise InputError(f"{given!r:.80} is no tokenizer: give a function from a text to its words")
    for known in TOKENIZERS.values():
        if known.function == function:
            return known
    split = partial(_split, function, name)
    if name in TOKENIZERS or not (isinstance(given, str) or _leads_to(name, function)):
        name = f"{name}#{secrets.token_hex(4)}"
    TOKENIZERS[name] = Tokenizer(name, split, split, function)
    return TOKENIZERS[name]


def _imported(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return attrgetter(attribute)(import_module(module))


def _leads_to(name: str, function: object) -> bool:
    """Whether the name of a function, `module:function`, is that of this function alone."""
    module, _, attribute = name.partition(":")
    try:
        return attrgetter(attribute)(sys.modules[module]) is function
    except (AttributeError, KeyError):
        return False


def same_function(one: str | None, two: str | None) -> bool:
    """Whether two names of tokenizers may be of one function: digits after a `#` are of a process.

    >>> same_function("a:<lambda>#0123abcd", "a:<lambda>"), same_function("a:f", "a:g")
    (True, False)
    """
    return one is not None and two is not None and one.split("#")[0] == two.split("#")[0]


def tokenizer_named(name: str | None) -> Tokenizer:
    """The tokenizer that a stored model was made with. Raises `IndexFormatError` if it is not known
    here: what a folder of somebody's names is never imported."""
    if name in TOKENIZERS:
        return TOKENIZERS[name]
    if name is None:
        raise IndexFormatError(
            "the words of the index were parted by an older version, which read European text "
            "alone: build the index again with  crossknn index build ITEMS INDEX"
        )
    if same_function(name, named := os.environ.get(TOKENIZER_VARIABLE)):
        return as_tokenizer(str(named))
    raise IndexFormatError(
        f"the words of the index were parted by the tokenizer {name}: give the same one, "
        f"tokenizer= of ItemIndex.load, or {TOKENIZER_VARIABLE}={name} in the environment"
    )


def _split(function: Callable[[str], Sequence[str]], name: str, text: str) -> list[str]:
    """The words that a function of somebody makes of a text."""
    try:
        found = [*function(text)]
    except Exception as error:
        raise InputError(
            f"the tokenizer {name} failed at the text {text!r:.80}: {error}"
        ) from error
    if not all(isinstance(word, str) for word in found):
        raise InputError(f"the tokenizer {name} returned {found!r:.80}: return a list of words")
    return found


class Vocabulary:
    """The t terms of the fitted texts, and the tokenizer that parted them."""

    def __init__(self, terms: Sequence[str], tokenizer: Tokenizer) -> None:
        self.terms, self.tokenizer = terms, tokenizer
        self.number = {term: t for t, term in enumerate(terms)}

    def counts(self, words: Iterable[str]) -> dict[int, int]:
        """How often each term occurs among the words of a text."""
        return {self.number[w]: c for w, c in Counter(words).items() if w in self.number}

    def weights(self, text: str, idf: FloatArray) -> dict[int, float]:
        """Unit-length TF-IDF weights of the terms in a text; none if it has no term."""
        counts = self.counts(self.tokenizer.split(text))
        terms = np.fromiter(counts, dtype=np.int64, count=len(counts))
        frequencies = np.fromiter(counts.values(), dtype=np.float64, count=len(counts))
        weights = (1 + np.log(frequencies)) * idf[terms]
        norm = float(np.linalg.norm(weights))
        return dict(zip(terms.tolist(), (weights / norm).tolist(), strict=True)) if norm else {}


@dataclass(frozen=True, eq=False)
class WordMatcher(AllScores):
    """A retriever over an inverted file: a score is the sum, over the query's terms, of products.

    Term t has the items `items[starts[t]:starts[t + 1]]` with those `weights`, and the `idf` (t,).
    The last of the n items are `added` since the fit, item by item: `counts` (a,) of their terms,
    the `terms` (p,) and `weights` (p,). `mean_length` is the average number of words of an item.
    """

    vocabulary: Vocabulary
    n: int
    weights: FloatArray
    items: IntArray
    starts: IntArray
    idf: FloatArray
    added: Mapping[str, Any] = field(default_factory=dict)
    mean_length: float | None = None

    @abstractmethod
    def query_weights(self, text: str) -> Mapping[int, float]:
        """Weights of the query's known terms."""

    def item_weights(self, text: str) -> Mapping[int, float]:
        """Weights of the terms of an item that is added."""
        return self.query_weights(text)

    def item_words(self, text: str) -> list[str]:
        """The words of an item."""
        return self.vocabulary.tokenizer.split(text)

    def rows(self, texts: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """What a stored matcher gets with k more items: its new `meta`, and rows of its columns."""
        known, split = self.vocabulary.number, self.item_words
        new = [*dict.fromkeys(w for text in texts for w in split(text) if w not in known)]
        idf = np.full(len(new), self.new_idf, np.float32)
        terms = Vocabulary([*self.vocabulary.terms, *new], self.vocabulary.tokenizer)
        longer = replace(self, vocabulary=terms, idf=np.append(self.idf, idf))
        weights = [longer.item_weights(text) for text in texts]
        rows = {
            "terms": new,
            "idf": idf,
            "added.counts": np.array([len(row) for row in weights], np.int64),
            "added.terms": np.array([*chain.from_iterable(weights)], np.int64),
            "added.weights": np.array([w for row in weights for w in row.values()], np.float32),
        }
        return self._meta(self.n + len(texts)), rows

    @property
    def n_fitted(self) -> int:
        """Number of items when the model was fitted."""
        return self.n - len(self.added.get("counts", ()))

    @property
    def new_idf(self) -> float:
        """The `idf` of a word that no item had when the model was fitted."""
        return 1.0

    @cached_property
    def _tail(self) -> tuple[FloatArray, IntArray, IntArray]:
        """Weights, items and starts of the items that were added, term by term."""
        terms, counts = self.added["terms"], self.added["counts"]
        order = np.argsort(terms, kind="stable")
        items = np.repeat(np.arange(self.n_fitted, self.n), counts)[order]
        starts = np.searchsorted(terms[order], np.arange(len(self.vocabulary.terms) + 1))
        return self.added["weights"][order], items, starts

    def _meta(self, n: int) -> dict[str, Any]:
        known = {"n": n, "tokenizer": self.vocabulary.tokenizer.name}
        return known | ({} if self.mean_length is None else {"mean_length": self.mean_length})

    def of_all(self, queries: Queries) -> FloatArray:
        """Scores of all items, 0 where no term is shared: (m, n)."""
        scores = np.zeros((len(queries), self.n), np.float32)
        parts = [(self.weights, self.items, self.starts), *([self._tail] if self.added else [])]
        try:
            for row, text in zip(scores, queries.texts, strict=True):
                for term, weight in self.query_weights(text).items():
                    for weights, items, starts in parts:
                        if term + 1 < len(starts):
                            where = slice(int(starts[term]), int(starts[term + 1]))
                            row[items[where]] += np.float32(weight) * weights[where]
        except IndexError as error:  # of somebody's folder
            raise IndexFormatError(
                "the index is damaged: its words name items that it lacks; build or copy it again"
            ) from error
        return scores

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The best allowed items that share a term with the query; rows may be short."""
        scores = self.of_all(queries)
        scores[scores <= 0] = -np.inf
        return top_k(mask(scores, None, allowed), count)

    def artifact(self) -> Artifact:
        """What an index keeps."""
        arrays = {key: getattr(self, key) for key in ("weights", "items", "starts", "idf")}
        arrays |= {f"added.{key}": values for key, values in self.added.items()}
        return Artifact(self._meta(self.n), {**arrays, "terms": self.vocabulary.terms})

    @classmethod
    def of(cls, artifact: Artifact) -> Self:
        """The stored matcher."""
        read, vocabulary = artifact.arrays, stored_vocabulary(artifact)
        postings = rows_of(read, "weights"), rows_of(read, "items")
        added = {key[6:]: read[key] for key in read if key.startswith("added.")}
        base = vocabulary, artifact.meta["n"], *postings, read["starts"], read["idf"]
        return cls(*base, added, artifact.meta.get("mean_length"))


K1, B = 1.5, 0.75


class BM25(WordMatcher):
    """BM25 with k1 = 1.5, which saturates repeated words, and b = 0.75, which counts length."""

    @classmethod
    def fit(cls, texts: Sequence[str], tokenizer: Tokenizer = UNICODE) -> BM25:
        """Weights of n texts."""
        import bm25s

        number, tokens = _numbered(texts, tokenizer.split_items)
        found = np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(1, np.int64)
        if number:
            model = bm25s.BM25(k1=K1, b=B, method="lucene", dtype="float32", int_dtype="int32")
            terms = list(range(len(number)))
            columns = model.build_index_from_ids(terms, tokens, show_progress=False)
            found = tuple(columns[name] for name in ("data", "indices", "indptr"))
        idf = np.ones(len(number), np.float32)  # it is part of the items' weights
        length = sum(map(len, tokens)) / len(texts) or 1.0
        vocabulary = Vocabulary(list(number), tokenizer)
        return cls(vocabulary, len(texts), *found, idf, mean_length=length)

    def query_weights(self, text: str) -> Mapping[int, float]:
        """A term counts as often as the query repeats it."""
        return self.vocabulary.counts(self.vocabulary.tokenizer.split(text))

    def item_words(self, text: str) -> list[str]:
        """The words of an item, single characters included."""
        return self.vocabulary.tokenizer.split_items(text)

    def item_weights(self, text: str) -> Mapping[int, float]:
        """idf tf / (tf + k1 (1 - b + b length / mean length)), as in the fit, with the fit's
        idf = ln(1 + (n - df + 0.5) / (df + 0.5))."""
        if self.mean_length is None:
            raise InputError("the words were fitted by an older version: build the index again")
        split, found = self.item_words(text), dict[int, float]()
        for term, count in self.vocabulary.counts(split).items():
            df = 1
            if term + 1 < len(self.starts):
                df = int(self.starts[term + 1] - self.starts[term])
            idf = math.log(1 + (self.n_fitted - df + 0.5) / (df + 0.5))
            found[term] = idf * count / (count + K1 * (1 - B + B * len(split) / self.mean_length))
        return found


class TFIDF(WordMatcher):
    """Cosine of TF-IDF vectors: idf = ln((1 + n) / (1 + df)) + 1, tf = 1 + ln(count)."""

    @classmethod
    def fit(cls, texts: Sequence[str], tokenizer: Tokenizer = UNICODE) -> TFIDF:
        """Weights of n texts. Raises `InputError` if none of them holds a word."""
        vocabulary, idf, weights = tfidf_of(texts, tokenizer)
        columns = weights.tocsc()
        return cls(vocabulary, len(texts), columns.data, columns.indices, columns.indptr, idf)

    def query_weights(self, text: str) -> Mapping[int, float]:
        """The query's unit-length TF-IDF weights."""
        return self.vocabulary.weights(text, self.idf)

    @property
    def new_idf(self) -> float:
        """ln((1 + n) / 2) + 1."""
        return math.log((1 + self.n_fitted) / 2) + 1


def stored_vocabulary(artifact: Artifact) -> Vocabulary:
    """The terms of a stored model, and the tokenizer that parted its texts."""
    tokenizer = tokenizer_named(artifact.meta.get("tokenizer"))
    return Vocabulary(list(artifact.arrays["terms"]), tokenizer)


def tfidf_of(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[Vocabulary, FloatArray, Any]:
    """Terms, idf (t,) and unit-length weights of the items, a (n, t) sparse matrix."""
    from scipy.sparse import csr_array

    number, tokens = _numbered(texts, tokenizer.split)
    if not number:
        raise InputError("no text holds a word; give an encoder or vectors, and no LSA")
    terms = sorted(number)
    place = np.empty(len(terms), np.int32)
    place[[number[term] for term in terms]] = np.arange(len(terms))
    starts = np.cumsum([0, *map(len, tokens)], dtype=np.int32)
    columns = place[np.fromiter(chain.from_iterable(tokens), np.int32, starts[-1])]
    shape = len(texts), len(terms)
    weights = csr_array((np.ones(starts[-1], np.float32), columns, starts), shape=shape)
    weights.sum_duplicates()
    frequencies = np.bincount(weights.indices, minlength=len(terms))
    idf = np.log((1 + len(texts)) / (1 + frequencies)).astype(np.float32) + 1
    weights.data = (1 + np.log(weights.data)) * idf[weights.indices]
    lengths = np.sqrt(weights.multiply(weights).sum(axis=1))
    weights.data /= np.repeat(lengths, np.diff(weights.indptr))
    return Vocabulary(terms, tokenizer), idf, weights


def _numbered(
    texts: Sequence[str], split: Callable[[str], list[str]]
) -> tuple[dict[str, int], list[list[int]]]:
    """The number of each word, and the numbers of each text's words."""
    number = dict[str, int]()
    return number, [[number.setdefault(w, len(number)) for w in split(text)] for text in texts]
