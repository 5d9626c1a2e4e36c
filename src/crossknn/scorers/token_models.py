"""What every model that reads rows of tokens does: windows, batches, texts that are cut."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.models.tokens import Encoding, Row, token_batches
from crossknn.scorers.streaming import BatchedScorer, Call, excerpt
from crossknn.types import FloatArray, IntArray, Progress

logger = logging.getLogger(__name__)

_PAIRS_AT_ONCE = 1024
_PAIRS_AT_ONCE_IN_TIME = 64
"""Tokenized at once under a deadline: tokenizing, too, takes time."""
_TEXTS_AT_ONCE = 4096


class TokenModel(Protocol):
    """A model of some framework: what is read, and how many tokens at once, padding included."""

    name: str
    encoding: Encoding
    tokens_per_run: int

    @property
    def fingerprint(self) -> str: ...


class TokenScorer(BatchedScorer):
    """Scores rows of pairs; `_logits` is all that differs between frameworks.

    Pairs are sorted by length within windows of a thousand: whoever stops early has the pairs
    asked for first. A batch has at most `tokens_per_run` tokens, padding included.

    A pair longer than the limit loses tokens of its longer text first, as in training: a query
    of up to half the limit stays whole. Such pairs are counted in `truncated`.
    """

    def __init__(self, model: TokenModel) -> None:
        super().__init__(model.name)
        self._runtime, self.max_length = model, model.encoding.window.max_length

    @property
    def fingerprint(self) -> str:
        """Names everything that the scores depend on; worked out when first asked for."""
        return self._runtime.fingerprint

    @abstractmethod
    def _logits(self, rows: Sequence[Row]) -> FloatArray:
        """Rows of pairs (b) -> raw scores (b,)."""

    def _batches(self, call: Call) -> Iterator[IntArray]:
        at_once = _PAIRS_AT_ONCE_IN_TIME if call.deadline.limited else _PAIRS_AT_ONCE
        for window in call.slices(at_once):
            rows = self._runtime.encoding.pairs(call.pairs.take(window), call.queries, call.items)
            call.prepared = dict(zip(window.tolist(), rows, strict=True))
            lengths = np.array([len(r.ids) if isinstance(r, Row) else 1 for r in rows], np.int64)
            call.costs[window] = lengths
            for batch in token_batches(lengths, self._runtime.tokens_per_run):
                yield window[batch]

    def _run(self, call: Call, positions: IntArray) -> FloatArray:
        rows: list[Row] = []
        for position in positions.tolist():
            row = call.prepared[position]
            if isinstance(row, InputError):
                raise row
            rows.append(row)
        logits = self._logits(rows)
        call.n_cut += sum(row.cut for row in rows)
        return logits


class TextReader:
    """Reads single texts as rows of tokens, in batches of at most `tokens_per_run` tokens.

    Texts longer than `max_length` lose their end and are counted in `truncated`; the first queries
    and the first items that do are warned of.
    """

    truncated = 0

    def __init__(self, model: TokenModel) -> None:
        self._runtime, self.name = model, model.name
        self.max_length = model.encoding.window.max_length
        self._warned: set[str] = set()
        self._lock = threading.Lock()

    @property
    def fingerprint(self) -> str:
        """Names everything that the answers depend on; worked out when first asked for."""
        return self._runtime.fingerprint

    def _text_batches(
        self, texts: Sequence[str], what: str, progress: Progress | None
    ) -> Iterator[tuple[IntArray, list[Row]]]:
        """Positions (b,) and rows of single texts, each a "query" or an "item", by length.

        Raises InputError for what is no text.
        """
        n_cut = done = 0
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            rows: list[Row] = []
            window = texts[start : start + _TEXTS_AT_ONCE]
            for row in self._runtime.encoding.texts(window, queries=what == "query"):
                if isinstance(row, InputError):
                    raise InputError(f"{what} {start + len(rows)}: {row}")
                rows.append(row)
            n_cut += sum(row.cut for row in rows)
            lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
            for batch in token_batches(lengths, self._runtime.tokens_per_run):
                yield start + batch, [rows[r] for r in batch]
                done += len(batch)
                if progress:
                    progress(done, len(texts))
        if n_cut:
            with self._lock:
                self.truncated += n_cut
            level = logging.INFO if what in self._warned else logging.WARNING
            self._warned.add(what)
            said = "%s cut %d of %d texts to %d tokens"
            logger.log(level, said, self.name, n_cut, len(texts), self.max_length)


class TokenEncoder(TextReader):
    """Encodes rows of single texts; `_vectors` is all that differs between frameworks."""

    dimensions: int
    """d, the length of a vector."""

    @abstractmethod
    def _vectors(self, rows: Sequence[Row], queries: bool) -> FloatArray:
        """Rows of texts (b) -> vectors (b, d)."""

    def encode_queries(self, texts: Sequence[str]) -> FloatArray:
        """Texts (m) -> vectors (m, d) float32. Raises InputError for what is not a text."""
        return self._encode(texts, "query", None)

    def encode_items(self, texts: Sequence[str], progress: Progress | None = None) -> FloatArray:
        """Texts (n) -> vectors (n, d) float32. Raises InputError for what is not a text."""
        return self._encode(texts, "item", progress)

    def _encode(self, texts: Sequence[str], what: str, progress: Progress | None) -> FloatArray:
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        for positions, rows in self._text_batches(texts, what, progress):
            vectors[positions] = self._vectors(rows, what == "query")
        check_finite(vectors, texts, what, f"the model {self.name}")
        return vectors


def check_finite(vectors: FloatArray, texts: Sequence[str], what: str, who: str) -> None:
    """Raises ScorerError naming the first text whose vector (d,) is not finite."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        first = int(bad[0])
        raise ScorerError(
            f"{who} gave a vector that is not finite for {what} {first} {excerpt(texts[first])}"
        )
