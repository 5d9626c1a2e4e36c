"""Term weights by term: the inverted file behind BM25 and TF-IDF.

A score is sparse: the sum, over the query's terms, of the query's weight times the item's. The
tokenizer's rules are stored with the weights, so a saved index depends on no library's defaults.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from crossknn.linalg import mask, top_k
from crossknn.types import BoolArray, Candidates, FloatArray, IntArray, Queries

State: TypeAlias = Mapping[str, Any]
"""What a model keeps on disk: arrays, and values that JSON can hold."""

TOKEN_PATTERN = r"\w+"


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """Lower-cased runs of letters and digits that are not stop words; no stemming."""

    pattern: str = TOKEN_PATTERN
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

    def state(self) -> dict[str, object]:
        """The rules, for JSON."""
        return {"pattern": self.pattern, "stopwords": sorted(self.stopwords)}

    @staticmethod
    def from_state(state: Mapping[str, Any]) -> Tokenizer:
        """The tokenizer whose rules were stored."""
        return Tokenizer(pattern=state["pattern"], stopwords=frozenset(state["stopwords"]))


@dataclass(frozen=True, eq=False)
class Postings:
    """Weights of n items by term (compressed sparse columns).

    Term t has the items `items[starts[t]:starts[t + 1]]`, each once, with those `weights`.
    """

    weights: FloatArray
    items: IntArray
    starts: IntArray
    n: int

    def scores(self, terms: Mapping[int, float]) -> FloatArray:
        """Sum of term weight times item weight: (n,) float32."""
        scores = np.zeros(self.n, dtype=np.float32)
        for term, weight in terms.items():
            span = slice(int(self.starts[term]), int(self.starts[term + 1]))
            scores[self.items[span]] += np.float32(weight) * self.weights[span]
        return scores

    def state(self) -> dict[str, Any]:
        """Arrays for the disk."""
        return {
            "weights": self.weights,
            "items": self.items,
            "starts": self.starts,
            "n": self.n,
        }

    @staticmethod
    def from_state(state: State) -> Postings:
        """The postings that were stored."""
        return Postings(state["weights"], state["items"], state["starts"], int(state["n"]))


class SparseStage(ABC):
    """A retriever over postings; subclasses say what a query's terms weigh."""

    def __init__(self, tokenizer: Tokenizer, vocabulary: Sequence[str], postings: Postings) -> None:
        self.tokenizer = tokenizer
        self.vocabulary = vocabulary
        self.postings = postings
        self._term = {word: t for t, word in enumerate(vocabulary)}

    @abstractmethod
    def query_terms(self, text: str) -> Mapping[int, float]:
        """Weights of the query's known terms."""

    def counts(self, text: str) -> dict[int, int]:
        """How often each known term occurs in `text`."""
        words = Counter(self.tokenizer(text))
        return {self._term[w]: count for w, count in words.items() if w in self._term}

    def scores(self, queries: Queries) -> FloatArray:
        """Scores of all items, 0 where no term is shared: (m, n) float32."""
        rows = np.zeros((len(queries), self.postings.n), dtype=np.float32)
        for r, text in enumerate(queries.texts):
            rows[r] = self.postings.scores(self.query_terms(text))
        return rows

    def top(self, queries: Queries, count: int, allowed: BoolArray | None = None) -> Candidates:
        """The best allowed items that share a term with the query; rows may be short."""
        rows = []
        for text in queries.texts:
            scores = self.postings.scores(self.query_terms(text))[None]
            scores[scores <= 0] = -np.inf
            found = top_k(mask(scores, None, allowed), count)
            rows.append((found.items[0], found.scores[0]))
        return Candidates.from_rows(rows)

    def state(self) -> dict[str, Any]:
        """Everything the disk must keep."""
        return {
            **self.postings.state(),
            "vocabulary": list(self.vocabulary),
            "tokenizer": self.tokenizer.state(),
        }
