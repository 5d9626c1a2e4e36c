"""TF-IDF and cosine (scikit-learn's weights): idf = ln((1 + n) / (1 + df)) + 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.retrievers.postings import Postings, SparseStage, State, Tokenizer
from crossknn.types import FloatArray


def item_weights(texts: Sequence[str], tokenizer: Tokenizer) -> tuple[list[str], FloatArray, Any]:
    """Vocabulary, idf (t,) and unit-length weights of the items, a (n, t) sparse matrix.

    Term frequencies are dampened, 1 + ln(tf): without that, long texts are about their most
    repeated word. Raises `InputError` if no text holds a word.
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
    return list(vectorizer.get_feature_names_out()), np.asarray(vectorizer.idf_), weights


def query_weights(counts: Mapping[int, int], idf: FloatArray) -> dict[int, float]:
    """The same weights for a query's terms, at unit length; none if it has no known term."""
    terms = np.fromiter(counts, dtype=np.int64, count=len(counts))
    frequencies = np.fromiter(counts.values(), dtype=np.float64, count=len(counts))
    weights = (1 + np.log(frequencies)) * idf[terms]
    norm = float(np.linalg.norm(weights))
    return dict(zip(terms.tolist(), (weights / norm).tolist(), strict=True)) if norm else {}


class TfIdf(SparseStage):
    """Cosine of TF-IDF vectors, with the words of BM25."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: Sequence[str],
        postings: Postings,
        idf: FloatArray,
    ) -> None:
        super().__init__(tokenizer, vocabulary, postings)
        self.idf = idf

    @staticmethod
    def fit(texts: Sequence[str], *, tokenizer: Tokenizer | None = None) -> TfIdf:
        """Weights of n texts. Raises `InputError` if none of them holds a word."""
        tokenizer = tokenizer or Tokenizer.english()
        vocabulary, idf, weights = item_weights(texts, tokenizer)
        columns = weights.tocsc()
        postings = Postings(columns.data, columns.indices, columns.indptr, len(texts))
        return TfIdf(tokenizer, vocabulary, postings, idf)

    def query_terms(self, text: str) -> Mapping[int, float]:
        """The query's unit-length TF-IDF weights."""
        return query_weights(self.counts(text), self.idf)

    def state(self) -> dict[str, Any]:
        """Everything the disk must keep."""
        return {**super().state(), "idf": self.idf}

    @staticmethod
    def from_state(state: State) -> TfIdf:
        """The stored model."""
        return TfIdf(
            Tokenizer.from_state(state["tokenizer"]),
            state["vocabulary"],
            Postings.from_state(state),
            state["idf"],
        )
