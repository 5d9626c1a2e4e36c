"""BM25 (Robertson et al., 1994, in Lucene's form), computed by bm25s and searched exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from crossknn.retrievers.postings import Postings, SparseStage, State, Tokenizer


class BM25(SparseStage):
    """Word matching. Text is lower-cased; English stop words are left out; nothing is stemmed.

    `top` returns only items that share a word with the query, so rows may be short.
    """

    @staticmethod
    def fit(
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
        n = len(tokens)
        if not term:
            nothing = Postings(
                np.zeros(0, np.float32), np.zeros(0, np.int64), np.zeros(1, np.int64), n
            )
            return BM25(tokenizer, [], nothing)
        model = bm25s.BM25(k1=k1, b=b, method="lucene", dtype="float32", int_dtype="int32")
        columns = model.build_index_from_ids(list(range(len(term))), tokens, show_progress=False)
        postings = Postings(columns["data"], columns["indices"], columns["indptr"], n)
        return BM25(tokenizer, list(term), postings)

    def query_terms(self, text: str) -> Mapping[int, float]:
        """A term counts as often as the query repeats it."""
        return self.counts(text)

    @staticmethod
    def from_state(state: State) -> BM25:
        """The stored model."""
        return BM25(
            Tokenizer.from_state(state["tokenizer"]),
            state["vocabulary"],
            Postings.from_state(state),
        )
