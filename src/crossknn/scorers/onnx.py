"""A cross-encoder as an ONNX graph on CPUs: the default scorer."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers._folder import read_manifest
from crossknn.scorers._session import (
    Tokenizer,
    checked_max_length,
    open_session,
    padded,
    token_batches,
)
from crossknn.scorers.robust import stream
from crossknn.types import FloatArray, IntArray, Pairs

logger = logging.getLogger(__name__)

_WINDOW = 1024


class OnnxCrossEncoder:
    """Scores with the model folder `folder` (`model.onnx`, `tokenizer.json`, `crossknn.json`).

    `threads` is the number of cores of one run (all by default); `max_length` a smaller limit
    than the model's own; `tokens_per_run` the size of a batch in tokens, padding included.

    A pair longer than the limit loses tokens of its longer text first, as in training: a query
    of up to half the limit stays whole. Such pairs are counted in `truncated`.
    May be used from many threads.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        threads: int | None = None,
        max_length: int | None = None,
        tokens_per_run: int = 512,
    ) -> None:
        """Raises InputError if the folder is not a cross-encoder in the ONNX folder format."""
        if tokens_per_run < 1:
            raise InputError(f"tokens_per_run must be at least 1, got {tokens_per_run}")
        if threads is not None and threads < 1:
            raise InputError(f"threads must be at least 1, got {threads}")
        self._manifest = read_manifest(folder, "cross-encoder")
        self._tokenizer = Tokenizer.load(self._manifest)
        self._n_special = self._tokenizer.pair.n_special
        self._max_length = checked_max_length(self._manifest, max_length, self._n_special + 2)
        self._session = open_session(self._manifest, threads, "scores")
        self._tokens_per_run = tokens_per_run
        self._truncated = 0
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """The model's name."""
        return self._manifest.name

    @property
    def max_length(self) -> int:
        """The longest pair in tokens, special tokens included."""
        return self._max_length

    @property
    def fingerprint(self) -> str:
        """Name, revision, hash of the files, precision, length limit and prefixes."""
        return self._manifest.fingerprint(self._max_length)

    @property
    def truncated(self) -> int:
        """How many scored pairs were longer than `max_length` so far."""
        return self._truncated

    def score(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str]
    ) -> Iterator[tuple[IntArray, FloatArray]]:
        """Yields (positions in `pairs` (b,), raw logits (b,) float32).

        Sorted by length within windows of a thousand pairs: whoever stops early has the pairs
        asked for first. Pairs that had to be cut are counted in `truncated` and logged (info).
        """
        call = _Call(self, pairs, queries, items)
        cut = 0
        try:
            for positions, scores in stream(
                pairs, queries, items, call.batches(), call.run, who=f"the model {self.name}"
            ):
                cut += sum(call.row(position).cut for position in positions)
                yield positions, scores
        finally:
            if cut:
                with self._lock:
                    self._truncated += cut
                logger.info(
                    "%s cut %d of %d pairs to %d tokens",
                    self.name,
                    cut,
                    len(pairs),
                    self._max_length,
                )

    def _encode(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str]
    ) -> list[_Row | None]:
        """Token ids and type ids of each pair (p,); None where a text is not one."""
        left = self._ids_of(pairs.query, queries, self._manifest.query_prefix)
        right = self._ids_of(pairs.item, items, self._manifest.item_prefix)
        template, room = self._tokenizer.pair, self._max_length - self._n_special
        rows: list[_Row | None] = []
        for query, item in zip(pairs.query.tolist(), pairs.item.tolist(), strict=True):
            a, b = left[query], right[item]
            if a is None or b is None:
                rows.append(None)
                continue
            keep_a, keep_b = longest_first(len(a), len(b), room)
            ids, kinds = template.assemble(a[:keep_a], b[:keep_b])
            rows.append(_Row(ids, kinds, keep_a + keep_b < len(a) + len(b)))
        return rows

    def _ids_of(
        self, positions: IntArray, texts: Sequence[str], prefix: str
    ) -> dict[int, IntArray | None]:
        used = np.unique(positions).tolist()
        chosen = [prefix + texts[position] if prefix else texts[position] for position in used]
        return dict(zip(used, self._tokenizer.ids(chosen), strict=True))

    def _logits(self, rows: Sequence[_Row]) -> FloatArray:
        feeds = padded(
            [(row.ids, row.kinds) for row in rows], self._manifest.pad_token_id, self._max_length
        )
        scores: FloatArray = self._session.run(["scores"], feeds)[0]
        return scores


class _Row(NamedTuple):
    """One pair as the graph takes it: `ids` (t,), `kinds` (t,), and whether it had to be cut."""

    ids: IntArray
    kinds: IntArray
    cut: bool


class _Call:
    """The pairs of one call, tokenized window by window, while they are needed."""

    def __init__(
        self,
        scorer: OnnxCrossEncoder,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
    ) -> None:
        self._scorer, self._pairs, self._queries, self._items = scorer, pairs, queries, items
        self._start = 0
        self._rows: list[_Row | None] = []

    def batches(self) -> Iterator[IntArray]:
        for start in range(0, len(self._pairs), _WINDOW):
            window = self._pairs.take(slice(start, start + _WINDOW))
            self._start = start
            self._rows = self._scorer._encode(window, self._queries, self._items)
            lengths = np.array([len(row.ids) if row else 1 for row in self._rows], dtype=np.int64)
            for batch in token_batches(lengths, self._scorer._tokens_per_run):
                yield start + batch

    def row(self, position: int) -> _Row:
        row = self._rows[position - self._start]
        if row is None:
            raise InputError("a text is not a valid string")
        return row

    def run(self, positions: IntArray) -> FloatArray:
        return self._scorer._logits([self.row(position) for position in positions])


def longest_first(n_query: int, n_item: int, room: int) -> tuple[int, int]:
    """How many tokens of a query and of an item to keep in `room` tokens.

    The longer text gives way, down to half of the room each: the tokenizers' `longest_first`,
    with which cross-encoders are trained.
    """
    if n_query + n_item <= room:
        return n_query, n_item
    short = min(n_query, n_item)
    keep_short = short if short <= room // 2 else room // 2
    keep_long = room - keep_short
    return (keep_short, keep_long) if n_query <= n_item else (keep_long, keep_short)
