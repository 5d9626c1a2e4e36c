"""Word models: BM25, sparse vectors, and vectors by latent semantic analysis.

BM25 (Robertson et al., 1994, in Lucene's form, computed by bm25s) is searched exactly in an
inverted index. LSA (Deerwester et al., 1990) is the truncated singular value decomposition of the
items' TF-IDF matrix (scikit-learn's weights); queries are mapped to the same vectors. Sparse
vectors are those of a trained encoder such as SPLADE (Formal et al., 2021).

Axes: m queries, n items, t terms, d dimensions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from crossknn.errors import IndexFormatError, InputError
from crossknn.linalg import one_thread
from crossknn.retrievers.base import AllScores
from crossknn.retrievers.words import UNICODE, Tokenizer, tokenizer_named
from crossknn.types import Artifact, FloatArray, IntArray, Queries, States

K1, B = 1.5, 0.75


class Vocabulary:
    """The t terms of the fitted texts, and the tokenizer that was used."""

    def __init__(self, terms: Sequence[str], tokenizer: Tokenizer) -> None:
        self.terms, self.tokenizer = terms, tokenizer
        self.number = {term: t for t, term in enumerate(terms)}

    @classmethod
    def of(cls, artifact: Artifact) -> Vocabulary:
        """Read the vocabulary of a stored model."""
        return cls(list(artifact.arrays["terms"]), tokenizer_named(artifact.meta["tokenizer"]))

    def counts(self, words: Iterable[str]) -> dict[int, int]:
        """Count how often each term occurs among the words of a text."""
        return {self.number[w]: c for w, c in Counter(words).items() if w in self.number}

    def tfidf(self, text: str, idf: FloatArray) -> tuple[IntArray, FloatArray]:
        """Return the terms of a text and their TF-IDF weights, scaled to unit length."""
        counts = self.counts(self.tokenizer.split(text))
        terms = np.fromiter(counts, np.int64, len(counts))
        weights = (1 + np.log(np.fromiter(counts.values(), np.float64, len(counts)))) * idf[terms]
        return terms, weights / (np.linalg.norm(weights) or 1.0)


@dataclass(frozen=True, eq=False)
class BM25(AllScores):
    """BM25 with k1 = 1.5 and b = 0.75.

    Term t occurs in `items[starts[t]:starts[t + 1]]` with the weights at the same places. For the
    last items, `added` after the fit, `counts` (a,) are numbers of terms, and `terms` (p,) and
    `weights` (p,) list the terms item by item. The weights use the idf and the `mean_length` (words
    of an item) of the fit; a word that is new to the model gets the idf of a word in one item.
    """

    matches_only = True
    vocabulary: Vocabulary
    n: int
    weights: FloatArray
    items: IntArray
    starts: IntArray
    mean_length: float
    added: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(cls, texts: Sequence[str], tokenizer: Tokenizer = UNICODE) -> BM25:
        """Compute the weights of n texts."""
        import bm25s

        number, tokens = _numbered(texts, tokenizer.split_items)
        columns = np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(1, np.int64)
        if number:
            model = bm25s.BM25(k1=K1, b=B, method="lucene", dtype="float32", int_dtype="int32")
            terms = list(range(len(number)))
            built = model.build_index_from_ids(terms, tokens, show_progress=False)
            columns = tuple(built[name] for name in ("data", "indices", "indptr"))
        length = sum(map(len, tokens)) / len(texts) or 1.0
        return cls(Vocabulary(list(number), tokenizer), len(texts), *columns, length)

    def of_all(self, queries: Queries) -> FloatArray:
        """Score all items (m, n), 0 for items that share no term with the query."""
        scores = np.zeros((len(queries), self.n), np.float32)
        fitted, tail = (self.weights, self.items, self.starts), [self._tail] if self.added else []
        try:
            for row, text in zip(scores, queries.texts, strict=True):
                split = self.vocabulary.tokenizer.split(text)
                for term, count in self.vocabulary.counts(split).items():
                    for weights, items, starts in (fitted, *tail):
                        if term + 1 < len(starts):
                            where = slice(int(starts[term]), int(starts[term + 1]))
                            row[items[where]] += np.float32(count) * weights[where]
        except IndexError as error:  # in a folder from a stranger
            raise IndexFormatError(
                "the index is damaged: its BM25 names items that it lacks; build or copy it again"
            ) from error
        return scores

    def rows(self, texts: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        """For added items, return the updated `meta` and the rows to append to the columns."""
        number, split = self.vocabulary.number, self.vocabulary.tokenizer.split_items
        words = [split(text) for text in texts]
        new = [*dict.fromkeys(w for row in words for w in row if w not in number)]
        terms = Vocabulary([*self.vocabulary.terms, *new], self.vocabulary.tokenizer)
        weights = [replace(self, vocabulary=terms)._item_weights(row) for row in words]
        rows = {
            "terms": new,
            "added.counts": np.array([len(row) for row in weights], np.int64),
            "added.terms": np.array([*chain.from_iterable(weights)], np.int64),
            "added.weights": np.array([w for row in weights for w in row.values()], np.float32),
        }
        return self._meta(self.n + len(texts)), rows

    def _item_weights(self, words: Sequence[str]) -> dict[int, float]:
        # idf tf / (tf + k1 (1 - b + b length / mean length)), idf = ln(1 + (n - df + .5)/(df + .5))
        weights, n = dict[int, float](), self.n - len(self.added.get("counts", ()))
        for term, tf in self.vocabulary.counts(words).items():
            df = 1
            if term + 1 < len(self.starts):
                df = int(self.starts[term + 1] - self.starts[term])
            idf = math.log(1 + (n - df + 0.5) / (df + 0.5))
            weights[term] = idf * tf / (tf + K1 * (1 - B + B * len(words) / self.mean_length))
        return weights

    @cached_property
    def _tail(self) -> tuple[FloatArray, IntArray, IntArray]:
        """The weights, items and starts of the added items, ordered by term."""
        terms, counts = self.added["terms"], self.added["counts"]
        order = np.argsort(terms, kind="stable")
        items = np.repeat(np.arange(self.n - len(counts), self.n), counts)[order]
        starts = np.searchsorted(terms[order], np.arange(len(self.vocabulary.terms) + 1))
        return self.added["weights"][order], items, starts

    def _meta(self, n: int) -> dict[str, Any]:
        name = self.vocabulary.tokenizer.name
        return {"n": n, "tokenizer": name, "mean_length": self.mean_length}

    def artifact(self) -> Artifact:
        """Convert the model to an artifact, as stored in the index."""
        arrays = {key: getattr(self, key) for key in ("weights", "items", "starts")}
        arrays |= {f"added.{key}": values for key, values in self.added.items()}
        return Artifact(self._meta(self.n), {**arrays, "terms": self.vocabulary.terms})

    @classmethod
    def of(cls, artifact: Artifact) -> BM25:
        """Read the model from a stored artifact."""
        read, meta = artifact.arrays, artifact.meta
        postings = artifact.rows("weights"), artifact.rows("items"), read["starts"]
        added = {key[6:]: read[key] for key in read if key.startswith("added.")}
        return cls(Vocabulary.of(artifact), meta["n"], *postings, meta["mean_length"], added)


@dataclass(frozen=True, eq=False)
class SparseVectors(AllScores):
    """Retrieves items by inner products of sparse vectors (t,). `states` has a row (term, weight)
    for each number of the n items that is not 0; the model `encoder.get()` makes those of queries.
    """

    matches_only = True
    states: States
    encoder: Any

    def of_all(self, queries: Queries) -> FloatArray:
        """Compute inner products (m, n). Queries keep their vectors."""
        if self not in queries.kept:
            queries.kept[self] = self._matrix(self.encoder.get().encode_queries(queries.texts))
        return np.asarray((queries.kept[self] @ self._by_term).toarray(), np.float32)

    @cached_property
    def _by_term(self) -> Any:
        """The vectors as a matrix (t, n), of which a product reads the query's terms only."""
        vectors = self._matrix(self.states)
        try:
            vectors.check_format(full_check=True)
        except ValueError as error:  # in a folder from a stranger
            raise IndexFormatError(
                f"the index is damaged: its sparse vectors cannot be read ({error}); build it again"
            ) from error
        return vectors.T.tocsr()

    def _matrix(self, states: States) -> Any:
        from scipy.sparse import csr_array

        terms, weights = np.asarray(states.values).T
        shape = len(states), self.encoder.dimensions
        return csr_array((weights.copy(), terms.astype(np.int32), states.starts), shape=shape)

    def artifact(self) -> Artifact:
        """Convert to an artifact, as stored in the index."""
        arrays = {"values": self.states.values, "starts": self.states.starts}
        return Artifact(self.encoder.state(), arrays)


def tfidf_of(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[Vocabulary, FloatArray, Any]:
    """Return terms, idf (t,) and unit-length weights of the items, a (n, t) sparse matrix, with
    idf = ln((1 + n) / (1 + df)) + 1 and tf = 1 + ln(count)."""
    from scipy.sparse import csr_array

    number, tokens = _numbered(texts, tokenizer.split)
    if not number:
        raise InputError(
            "none of the texts contains a word: give an encoder or vectors, and switch LSA off"
        )
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
    """Number the words, and return the numbers of each text's words."""
    number = dict[str, int]()
    return number, [[number.setdefault(w, len(number)) for w in split(text)] for text in texts]


LSA_DIMENSIONS = 128


@dataclass(frozen=True, eq=False)
class LSA:
    """Maps texts to unit vectors (d,) by the words that they share with the fitted items; a text
    without such a word has the zero vector. `idf` (t,), `components` (t, d)."""

    vocabulary: Vocabulary
    idf: FloatArray
    components: FloatArray

    @staticmethod
    def fit(
        texts: Sequence[str], tokenizer: Tokenizer = UNICODE, *, dimensions: int = LSA_DIMENSIONS
    ) -> tuple[LSA, FloatArray]:
        """Fit the model to texts, and return the model and the vectors (n, d) of the texts; d is
        `dimensions`, or less if there are fewer texts or words."""
        vocabulary, idf, weights = tfidf_of(texts, tokenizer)
        d = min(dimensions, *weights.shape)
        # On busy cores, BLAS threads waiting for each other took 15 times as long as one thread.
        with one_thread():
            vectors, components = _truncated_svd(weights, d)
        vectors[np.diff(weights.indptr) == 0] = 0  # else rounding errors would get unit length
        return LSA(vocabulary, idf, components), _unit(vectors)

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Encode texts, of queries or of items, to unit vectors (m, d) float32."""
        vectors = np.zeros((len(texts), self.components.shape[1]), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            terms, weights = self.vocabulary.tfidf(text, self.idf)
            row += weights @ self.components[terms]
        return _unit(vectors)

    def artifact(self) -> Artifact:
        """Convert the model to an artifact, as stored in the index."""
        arrays = {"components": self.components, "idf": self.idf}
        meta = {"tokenizer": self.vocabulary.tokenizer.name}
        return Artifact(meta, {**arrays, "terms": self.vocabulary.terms})

    @staticmethod
    def of(artifact: Artifact) -> LSA:
        """Read the model from a stored artifact."""
        read = artifact.arrays
        return LSA(Vocabulary.of(artifact), read["idf"], read["components"])


def _truncated_svd(weights: Any, d: int) -> tuple[FloatArray, FloatArray]:
    """Return left singular vectors times singular values (n, d), and right singular vectors (t, d),
    of a matrix (n, t), by five power iterations of a random basis of d + 10 columns (Halko et al.
    2011, algorithm 4.4)."""
    from scipy.linalg import lu, qr, svd

    wide = weights.shape[0] < weights.shape[1]
    tall = weights.T if wide else weights
    basis = np.random.RandomState(0).normal(size=(tall.shape[1], d + 10)).astype(np.float32)
    for side in (tall, tall.T) * 5:
        basis, _ = lu(side @ basis, permute_l=True)
    basis, _ = qr(tall @ basis, mode="economic")
    small, values, right = svd(basis.T @ tall, full_matrices=False)
    pair = (basis @ small)[:, :d], right[:d].T
    left, right = pair[::-1] if wide else pair
    sign = np.sign(np.take_along_axis(left, np.abs(left).argmax(axis=0)[None], axis=0))
    return left * values[:d] * sign, np.ascontiguousarray(right * sign)


def _unit(vectors: FloatArray) -> FloatArray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)
