"""A cross-encoder as an ONNX graph on CPUs: the default scorer."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers._model import OnnxModel
from crossknn.scorers._session import padded, token_batches
from crossknn.scorers.robust import stream
from crossknn.types import FloatArray, IntArray, Pairs

logger = logging.getLogger(__name__)

_WINDOW = 1024


class OnnxCrossEncoder(OnnxModel):
    """Scores with the model folder `folder` (`model.onnx`, `tokenizer.json`, `crossknn.json`).

    `threads` is the number of cores of one run (all by default); `max_length` a smaller limit
    than the model's own; `tokens_per_run` the size of a batch in tokens, padding included.

    A pair longer than the limit loses tokens of its longer text first, as in training: a query
    of up to half the limit stays whole. Such pairs are counted in `truncated`.
    May be used from many threads.
    """

    _kind = "cross-encoder"
    _output = "scores"
    _n_texts = 2

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
                self._count_truncated(cut)
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
