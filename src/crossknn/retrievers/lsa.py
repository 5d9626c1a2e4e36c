"""Latent semantic analysis (Deerwester et al., 1990): the truncated singular value decomposition of
the TF-IDF matrix of the items; queries are folded in.

Axes: m queries, n items, t terms, d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crossknn.linalg import one_thread
from crossknn.retrievers.lexical import UNICODE, Tokenizer, Vocabulary, stored_vocabulary, tfidf_of
from crossknn.types import Artifact, FloatArray

LSA_DIMENSIONS = 128


@dataclass(frozen=True, eq=False)
class LSA:
    """Turns texts into unit vectors (d,) through the words they share with the fitted items.

    A text without a known word has the zero vector. `idf` (t,), `components` (t, d).
    """

    vocabulary: Vocabulary
    idf: FloatArray
    components: FloatArray

    @staticmethod
    def fit(
        texts: Sequence[str], tokenizer: Tokenizer = UNICODE, *, dimensions: int = LSA_DIMENSIONS
    ) -> tuple[LSA, FloatArray]:
        """The model and the vectors (n, d) of the texts it was fitted to.

        d is `dimensions`, or less where there are fewer texts or words. Raises `InputError` if no
        text holds a word.
        """
        vocabulary, idf, weights = tfidf_of(texts, tokenizer)
        d = min(dimensions, *weights.shape)
        # On busy cores BLAS threads that wait for each other took 15 times as long as one.
        with one_thread():
            vectors, components = _truncated_svd(weights, d)
        vectors[np.diff(weights.indptr) == 0] = 0  # not rounding errors of unit length
        return LSA(vocabulary, idf, components), _unit(vectors)

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Vectors (m, d) float32 of unit length; items have them alike."""
        vectors = np.zeros((len(texts), self.components.shape[1]), np.float32)
        for row, text in zip(vectors, texts, strict=True):
            for term, weight in self.vocabulary.weights(text, self.idf).items():
                row += np.float32(weight) * self.components[term]
        return _unit(vectors)

    def artifact(self) -> Artifact:
        """What an index keeps."""
        arrays = {"components": self.components, "idf": self.idf}
        known = {"tokenizer": self.vocabulary.tokenizer.name}
        return Artifact(known, {**arrays, "terms": self.vocabulary.terms})

    @staticmethod
    def of(artifact: Artifact) -> LSA:
        """The stored model."""
        read = artifact.arrays
        return LSA(stored_vocabulary(artifact), read["idf"], read["components"])


def _truncated_svd(weights: Any, d: int) -> tuple[FloatArray, FloatArray]:
    """Left singular vectors times values (n, d), and right vectors (t, d), of a (n, t) matrix: five
    power iterations of a random basis of d + 10 columns (Halko et al. 2011, algorithm 4.4)."""
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
