"""Word matching, without a model: BM25, TF-IDF, and latent semantic analysis.

BM25 (Robertson et al., 1994, in Lucene's form, computed by bm25s) and TF-IDF with cosine
(scikit-learn's weights) are searched exactly in an inverted file. LSA (Deerwester et al., 1990) is
the truncated singular value decomposition of the TF-IDF matrix; queries are folded in. The
tokenizer's rules are stored with the weights, so a saved index depends on no library's defaults.

Axes: m queries, n items, t terms, d dimensions.
"""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from crossknn.errors import InputError
from crossknn.files import rows_of
from crossknn.linalg import mask, top_k
from crossknn.retrievers.base import AllScores
from crossknn.types import Artifact, BoolArray, Candidates, FloatArray, IntArray, Queries

LSA_DIMENSIONS = 128


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Lower-cased runs of letters and digits that are not stop words; no stemming."""

    pattern: str = r"\w+"
    stopwords: frozenset[str] = frozenset()

    @staticmethod
    def english() -> Tokenizer:
        """The 33 English stop words of bm25s (those of Lucene)."""
        from bm25s.stopwords import STOPWORDS_EN

        return Tokenizer(stopwords=frozenset(STOPWORDS_EN))

    @cached_property
    def _find(self) -> re.Pattern[str]:
        return re.compile(self.pattern)

    def __call__(self, text: str) -> list[str]:
        return [word for word in self._find.findall(text.lower()) if word not in self.stopwords]


class Vocabulary:
    """The t terms of the fitted texts, and how texts are cut into them."""

    def __init__(self, tokenizer: Tokenizer, words: Sequence[str]) -> None:
        self.tokenizer, self.words = tokenizer, words
        self._term = {word: t for t, word in enumerate(words)}

    def counts(self, text: str) -> dict[int, int]:
        """How often each known term occurs in `text`."""
        words = Counter(self.tokenizer(text))
        return {self._term[w]: count for w, count in words.items() if w in self._term}

    def meta(self) -> dict[str, Any]:
        """The tokenizer's rules, for JSON."""
        rules = self.tokenizer
        return {"pattern": rules.pattern, "stopwords": sorted(rules.stopwords)}

    @staticmethod
    def of(artifact: Artifact) -> Vocabulary:
        """The stored vocabulary."""
        meta = artifact.meta
        rules = Tokenizer(pattern=meta["pattern"], stopwords=frozenset(meta["stopwords"]))
        return Vocabulary(rules, list(artifact.arrays["words"]))


class WordMatcher(AllScores):
    """A retriever over an inverted file: a score is the sum, over the query's terms, of products.

    Term t has the items `items[starts[t]:starts[t + 1]]`, each once, with those `weights`; `idf`
    (t,) are the terms' weights where the kind of matching has any.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        n: int,
        weights: FloatArray,
        items: IntArray,
        starts: IntArray,
        idf: FloatArray,
    ) -> None:
        self.vocabulary, self.n, self.idf = vocabulary, n, idf
        self.weights, self.items, self.starts = weights, items, starts

    @abstractmethod
    def query_weights(self, text: str) -> Mapping[int, float]:
        """Weights of the query's known terms."""

    def of_all(self, queries: Queries) -> FloatArray:
        """Scores of all items, 0 where no term is shared: (m, n)."""
        scores = np.zeros((len(queries), self.n), np.float32)
        for row, text in zip(scores, queries.texts, strict=True):
            for term, weight in self.query_weights(text).items():
                where = slice(int(self.starts[term]), int(self.starts[term + 1]))
                row[self.items[where]] += np.float32(weight) * self.weights[where]
        return scores

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The best allowed items that share a term with the query; rows may be short."""
        scores = self.of_all(queries)
        scores[scores <= 0] = -np.inf
        return top_k(mask(scores, None, allowed), count)

    def artifact(self) -> Artifact:
        """What an index keeps."""
        arrays = {"weights": self.weights, "items": self.items, "starts": self.starts}
        words = {"words": self.vocabulary.words, "idf": self.idf}
        return Artifact({"n": self.n, **self.vocabulary.meta()}, {**arrays, **words})

    @classmethod
    def of(cls, artifact: Artifact) -> Self:
        """The stored matcher."""
        read = artifact.arrays
        weights, items = (rows_of(read, name) for name in ("weights", "items"))
        vocabulary, n = Vocabulary.of(artifact), int(artifact.meta["n"])
        return cls(vocabulary, n, weights, items, read["starts"], read["idf"])


class BM25(WordMatcher):
    """BM25. Text is lower-cased; English stop words are left out; nothing is stemmed."""

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        *,
        k1: float = 1.5,
        b: float = 0.75,
        tokenizer: Tokenizer | None = None,
    ) -> BM25:
        """Weights of n texts; `k1` saturates repeated words, `b` normalizes by length."""
        import bm25s

        tokenizer = tokenizer or Tokenizer.english()
        term: dict[str, int] = {}
        tokens = [[term.setdefault(w, len(term)) for w in tokenizer(text)] for text in texts]
        found = np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(1, np.int64)
        if term:
            model = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float32", int_dtype="int32")
            terms = list(range(len(term)))
            columns = model.build_index_from_ids(terms, tokens, show_progress=False)
            found = tuple(columns[name] for name in ("data", "indices", "indptr"))
        idf = np.ones(len(term), np.float32)  # it is part of the items' weights
        return cls(Vocabulary(tokenizer, list(term)), len(texts), *found, idf)

    def query_weights(self, text: str) -> Mapping[int, float]:
        """A term counts as often as the query repeats it."""
        return self.vocabulary.counts(text)


class TFIDF(WordMatcher):
    """Cosine of TF-IDF vectors, with the words of BM25: idf = ln((1 + n) / (1 + df)) + 1."""

    @classmethod
    def fit(cls, texts: Sequence[str], *, tokenizer: Tokenizer | None = None) -> TFIDF:
        """Weights of n texts. Raises `InputError` if none of them holds a word."""
        vocabulary, idf, weights = _item_weights(texts, tokenizer or Tokenizer.english())
        columns = weights.tocsc()
        found = columns.data, columns.indices, columns.indptr
        return cls(vocabulary, len(texts), *found, idf)

    def query_weights(self, text: str) -> Mapping[int, float]:
        """The query's unit-length TF-IDF weights."""
        return _query_weights(self.vocabulary.counts(text), self.idf)


class LSA:
    """Turns texts into unit vectors (d,) through the words they share with the fitted items.

    A text without a known word has the zero vector. `components` are (t, d).
    """

    def __init__(self, vocabulary: Vocabulary, idf: FloatArray, components: FloatArray) -> None:
        self.vocabulary, self.idf, self.components = vocabulary, idf, components

    @staticmethod
    def fit(
        texts: Sequence[str],
        *,
        dimensions: int = LSA_DIMENSIONS,
        seed: int = 0,
        tokenizer: Tokenizer | None = None,
    ) -> tuple[LSA, FloatArray]:
        """The model and the vectors (n, d) of the texts it was fitted to.

        d is `dimensions`, or less where there are fewer texts or words. Raises `InputError` if no
        text holds a word.
        """
        from sklearn.utils.extmath import randomized_svd
        from threadpoolctl import threadpool_limits

        if dimensions < 1:
            raise InputError(f"LSA was asked for {dimensions} dimensions; it needs at least 1")
        vocabulary, idf, weights = _item_weights(texts, tokenizer or Tokenizer.english())
        d = min(dimensions, *weights.shape)
        # The work is sparse products; on busy cores BLAS threads that wait for each other took 15
        # times as long as one.
        with threadpool_limits(1):
            left, values, right = randomized_svd(weights, d, n_iter=5, random_state=seed)
        components = np.ascontiguousarray(right.T, dtype=np.float32)
        return LSA(vocabulary, idf, components), _unit(np.asarray(left * values, np.float32))

    @property
    def dimensions(self) -> int:
        """d."""
        return int(self.components.shape[1])

    @property
    def fingerprint(self) -> str:
        """Names the fitted model by its words and weights."""
        digest = hashlib.sha256("\n".join(self.vocabulary.words).encode())
        digest.update(np.ascontiguousarray(self.components).tobytes())
        return f"lsa:{digest.hexdigest()[:16]}"

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Vectors (m, d) float32 of unit length."""
        vectors = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for term, weight in _query_weights(self.vocabulary.counts(text), self.idf).items():
                row += np.float32(weight) * self.components[term]
        return _unit(vectors)

    def encode_items(
        self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> FloatArray:
        """The same as for queries: the space is symmetric."""
        return self.encode_queries(texts)

    def artifact(self) -> Artifact:
        """What an index keeps."""
        arrays = {"components": self.components, "idf": self.idf, "words": self.vocabulary.words}
        return Artifact(self.vocabulary.meta(), arrays)

    @staticmethod
    def of(artifact: Artifact) -> LSA:
        """The stored model."""
        read = artifact.arrays
        return LSA(Vocabulary.of(artifact), read["idf"], read["components"])


def _item_weights(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[Vocabulary, FloatArray, Any]:
    """Terms, idf (t,) and unit-length weights of the items, a (n, t) sparse matrix.

    Term frequencies are dampened, 1 + ln(tf): without that, long texts are about their most
    repeated word.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer=tokenizer, sublinear_tf=True, norm="l2", dtype=np.float32)
    try:
        weights = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise InputError(
            "no text holds a word, so TF-IDF and LSA have nothing to go "
            "by; give an encoder or vectors"
        ) from error
    words = list(vectorizer.get_feature_names_out())
    return Vocabulary(tokenizer, words), np.asarray(vectorizer.idf_), weights


def _query_weights(counts: Mapping[int, int], idf: FloatArray) -> dict[int, float]:
    """The same weights for a query's terms, at unit length; none if it has no known term."""
    terms = np.fromiter(counts, dtype=np.int64, count=len(counts))
    frequencies = np.fromiter(counts.values(), dtype=np.float64, count=len(counts))
    weights = (1 + np.log(frequencies)) * idf[terms]
    norm = float(np.linalg.norm(weights))
    return dict(zip(terms.tolist(), (weights / norm).tolist(), strict=True)) if norm else {}


def _unit(vectors: FloatArray) -> FloatArray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)
