"""What every model that reads token rows does, in ONNX or torch: windows, batches, cut texts."""

from __future__ import annotations

import logging
import threading
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.models.tokens import Encoding, Row, token_batches
from crossknn.scorers.deadline import Deadline, Speed
from crossknn.scorers.robust import excerpt, stream
from crossknn.types import FloatArray, IntArray, Pairs, Progress

logger = logging.getLogger(__name__)

_PAIRS_AT_ONCE = 1024
_PAIRS_AT_ONCE_IN_TIME = 64
"""Tokenized at once under a deadline: tokenizing, too, takes time."""
_TEXTS_AT_ONCE = 4096


class EncodedModel:
    """A name, an encoding, and batches of at most `tokens_per_run` tokens, padding included."""

    def __init__(self, name: str, encoding: Encoding, tokens_per_run: int) -> None:
        self._name = name
        self._encoding = encoding
        self._tokens_per_run = tokens_per_run
        self._truncated = 0
        self._said: set[str] = set()
        self._speed = Speed()
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The model's name."""
        return self._name

    @property
    def max_length(self) -> int:
        """The longest input in tokens, special tokens included."""
        return self._encoding.window.max_length

    @property
    def truncated(self) -> int:
        """How many inputs were longer than `max_length` so far."""
        return self._truncated

    def _count_truncated(self, count: int) -> None:
        with self._lock:
            self._truncated += count

    def _text_batches(
        self, texts: Sequence[str], what: str, progress: Progress | None
    ) -> Iterator[tuple[IntArray, list[Row]]]:
        """Positions (b,) and rows of single texts, each a "query" or an "item", by length.

        Texts that were cut are counted; the first queries and the first items are warned of.
        Raises InputError for what is no text.
        """
        cut = done = 0
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            window = texts[start : start + _TEXTS_AT_ONCE]
            rows: list[Row] = []
            for row in self._encoding.texts(window, queries=what == "query"):
                if isinstance(row, InputError):
                    raise InputError(f"{what} {start + len(rows)}: {row}")
                rows.append(row)
            cut += sum(row.cut for row in rows)
            lengths = np.array([len(row.ids) for row in rows], dtype=np.int64)
            for batch in token_batches(lengths, self._tokens_per_run):
                yield start + batch, [rows[r] for r in batch]
                done += len(batch)
                if progress:
                    progress(done, len(texts))
        if cut:
            self._count_truncated(cut)
            level = logging.INFO if what in self._said else logging.WARNING
            self._said.add(what)
            said = "%s cut %d of %d texts to %d tokens"
            logger.log(level, said, self.name, cut, len(texts), self.max_length)


class EncodedCrossEncoder(EncodedModel):
    """Scores rows of pairs; `_logits` is all that differs between frameworks.

    A pair longer than the limit loses tokens of its longer text first, as in training: a query
    of up to half the limit stays whole. Such pairs are counted in `truncated`.
    """

    @abstractmethod
    def _logits(self, rows: Sequence[Row]) -> FloatArray:
        """Rows of pairs (b) -> raw scores (b,)."""

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yields (positions in `pairs` (b,), raw logits (b,) float32).

        Sorted by length within windows of a thousand pairs: whoever stops early has the pairs
        asked for first. Pairs that had to be cut are counted in `truncated` and logged (info).
        """
        at_once = _PAIRS_AT_ONCE if time_left is None else _PAIRS_AT_ONCE_IN_TIME
        call = _Call(self, pairs, queries, items, at_once)
        cut = 0
        try:
            for positions, scores in stream(
                pairs,
                queries,
                items,
                call.batches(),
                call.run,
                who=f"the model {self.name}",
                deadline=Deadline(time_left, cancel),
                speed=self._speed,
                units=call.tokens,
            ):
                cut += sum(call.row(position).cut for position in positions)
                yield positions, scores
        finally:
            if cut:
                self._count_truncated(cut)
                logger.info(
                    "%s cut %d of %d pairs to %d tokens",
                    self.name,
                    cut,
                    len(pairs),
                    self.max_length,
                )


class EncodedDualEncoder(EncodedModel):
    """Encodes rows of single texts; `_vectors` is all that differs between frameworks.

    Longer texts lose their end and are counted in `truncated`.
    """

    @property
    @abstractmethod
    def dimensions(self) -> int:
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


class _Call:
    """The pairs of one call, tokenized window by window, while they are needed."""

    def __init__(
        self,
        scorer: EncodedCrossEncoder,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        at_once: int,
    ) -> None:
        self._scorer, self._pairs, self._queries, self._items = scorer, pairs, queries, items
        self._at_once = at_once
        self._start = 0
        self._rows: list[Row | InputError] = []

    def batches(self) -> Iterator[IntArray]:
        for start in range(0, len(self._pairs), self._at_once):
            window = self._pairs.take(slice(start, start + self._at_once))
            self._start = start
            self._rows = self._scorer._encoding.pairs(window, self._queries, self._items)
            lengths = np.array(
                [self.tokens(start + row) for row in range(len(self._rows))], dtype=np.int64
            )
            for batch in token_batches(lengths, self._scorer._tokens_per_run):
                yield start + batch

    def row(self, position: int) -> Row:
        row = self._rows[position - self._start]
        if isinstance(row, InputError):
            raise row
        return row

    def tokens(self, position: int) -> float:
        """What a pair costs."""
        row = self._rows[position - self._start]
        return float(len(row.ids)) if isinstance(row, Row) else 1.0

    def run(self, positions: IntArray) -> FloatArray:
        return self._scorer._logits([self.row(position) for position in positions])


def check_finite(vectors: FloatArray, texts: Sequence[str], what: str, who: str) -> None:
    """Raises ScorerError naming the first text whose vector (d,) is not finite."""
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        first = int(bad[0])
        raise ScorerError(
            f"{who} gave a vector that is not finite for {what} {first} {excerpt(texts[first])}"
        )
