"""Latent semantic analysis (Deerwester et al., 1990): vectors from word counts, without a model.

The truncated singular value decomposition of the TF-IDF matrix; queries are folded in.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.retrievers.postings import State, Tokenizer
from crossknn.retrievers.tfidf import item_weights, query_weights
from crossknn.types import FloatArray


class LSA:
    """Turns texts into unit vectors (d,) through the words they share with the fitted items.

    A text without a known word has the zero vector.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocabulary: Sequence[str],
        idf: FloatArray,
        components: FloatArray,
    ) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.idf = idf
        self.components = components
        self._term = {word: t for t, word in enumerate(vocabulary)}

    @staticmethod
    def fit(
        texts: Sequence[str],
        *,
        dimensions: int = 128,
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
        tokenizer = tokenizer or Tokenizer.english()
        vocabulary, idf, weights = item_weights(texts, tokenizer)
        d = min(dimensions, *weights.shape)
        # The work is sparse products; on busy cores BLAS threads that wait for each other took 15
        # times as long as one.
        with threadpool_limits(1):
            left, values, right = randomized_svd(weights, d, n_iter=5, random_state=seed)
        vectors = _unit(np.asarray(left * values, dtype=np.float32))
        components = np.ascontiguousarray(right.T, dtype=np.float32)
        return LSA(tokenizer, vocabulary, idf, components), vectors

    @property
    def dimensions(self) -> int:
        """d."""
        return int(self.components.shape[1])

    @property
    def fingerprint(self) -> str:
        """Names the fitted model by its words and weights."""
        digest = hashlib.sha256("\n".join(self.vocabulary).encode())
        digest.update(np.ascontiguousarray(self.components).tobytes())
        return f"lsa:{digest.hexdigest()[:16]}"

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Vectors (m, d) float32 of unit length."""
        vectors = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        for r, text in enumerate(texts):
            words = Counter(self.tokenizer(text))
            counts = {self._term[w]: count for w, count in words.items() if w in self._term}
            for term, weight in query_weights(counts, self.idf).items():
                vectors[r] += np.float32(weight) * self.components[term]
        return _unit(vectors)

    def encode_items(
        self, texts: Sequence[str], progress: Callable[[int, int], None] | None = None
    ) -> FloatArray:
        """The same as for queries: the space is symmetric."""
        return self.encode_queries(texts)

    def state(self) -> dict[str, Any]:
        """Everything the disk must keep."""
        return {
            "components": self.components,
            "idf": self.idf,
            "vocabulary": list(self.vocabulary),
            "tokenizer": self.tokenizer.state(),
        }

    @staticmethod
    def from_state(state: State) -> LSA:
        """The stored model."""
        return LSA(
            Tokenizer.from_state(state["tokenizer"]),
            state["vocabulary"],
            state["idf"],
            state["components"],
        )


def _unit(vectors: FloatArray) -> FloatArray:
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(norms > 0, norms, 1)
