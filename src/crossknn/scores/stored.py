"""A scorer that looks scores up in a store, and computes only the missing ones."""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.base import Scorer, Wrapper
from crossknn.scorers.opening import as_scorer
from crossknn.scorers.streaming import Call, Deadline, NothingScoredError
from crossknn.scores.collect import fingerprint_of
from crossknn.scores.database import StoreFullError
from crossknn.scores.store import ScoreStore
from crossknn.types import FloatArray, IntArray, Pairs

logger = logging.getLogger(__name__)

EVERY = 0.2
"""Seconds between writes to the store, each of which costs as much as scoring a pair with a small
model. A killed process loses the scores since the last write."""


class StoredStream(Iterator[tuple[IntArray, FloatArray]]):
    """The batches of one call; `computed` counts the pairs that were not in the store."""

    batches: Generator[tuple[IntArray, FloatArray], None, None]
    computed = 0

    def __next__(self) -> tuple[IntArray, FloatArray]:
        return next(self.batches)

    def close(self) -> None:
        """Stop computing."""
        self.batches.close()


class StoredScorer(Wrapper):
    """Looks scores up in `store`; computes the missing ones with `scorer`, and stores them. Many
    threads may share one `StoredScorer`, and many processes its store.

    Args:
        scorer: The cross-encoder, in any form that `Searcher` accepts; `InputError` if the store is
            a file but the scorer has no fingerprint.
        store: A store such as `index.scores`, or its file.
        required: If false, a store that cannot be read is ignored with a warning, and all pairs are
            scored.
    """

    def __init__(
        self, scorer: Scorer, store: ScoreStore | str | Path, *, required: bool = True
    ) -> None:
        self.scorer = as_scorer(scorer)
        self.store = store if isinstance(store, ScoreStore) else ScoreStore(store)
        self.fingerprint = fingerprint_of(self.scorer, self.store)
        self.required = required
        self._warned, self._lasts, self._written = threading.Event(), False, 0.0
        self._unwritten = list[tuple[Call, IntArray, IntArray, FloatArray]]()
        # Of queries that are not in the store: the scores by the items' texts.
        self._new = dict[str, dict[str, float]]()

    def of_search(self) -> StoredScorer:
        """Return the same scorer for one search, whose calls have the same `queries` and `items`.
        It looks a query that is not in the store up once, and writes the scores of several calls
        together; `flush` writes the last ones."""
        own = copy.copy(self)
        own._lasts, own._written, own._unwritten, own._new = True, time.monotonic(), [], {}
        return own

    def score(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], **limits: Any
    ) -> StoredStream:
        """Score pairs; see `Scorer.score`. Pairs that are in the store come first, in one batch."""
        stream, own = StoredStream(), self if self._lasts else self.of_search()
        call = Call(pairs, queries, items, Deadline(**limits))
        stream.batches = own._run(stream, call, whole=not self._lasts)
        return stream

    def _run(
        self, stream: StoredStream, call: Call, *, whole: bool
    ) -> Generator[tuple[IntArray, FloatArray], None, None]:
        # `first` (u,) are the distinct pairs; `of` (p,) maps each pair to its distinct one.
        first, of, scores = self._looked_up(call, whole=whole)
        missing = np.flatnonzero(np.isnan(scores))
        missing = missing[np.argsort(first[missing])]  # in the order of the call
        stored = np.flatnonzero(~np.isnan(scores[of]))
        if len(stored):
            yield stored, scores[of[stored]]
        if not len(missing) or call.deadline.over():
            return
        asked = call.pairs.take(first[missing])
        computing = self.scorer.score(asked, call.queries, call.items, **call.deadline.rest())
        try:
            for where, batch in computing:
                self._unwritten.append((call, asked.query[where], asked.item[where], batch))
                if time.monotonic() >= self._written + EVERY:
                    self.flush()
                stream.computed += len(where)
                scores[missing[where]] = batch
                if self._new:
                    pairs = zip(call.texts(first[missing[where]]), batch.tolist(), strict=True)
                    for (query, item), score in pairs:
                        self._new.get(query, {})[item] = score
                new = np.zeros(len(scores), np.bool_)
                new[missing[where]] = True
                places = np.flatnonzero(new[of])
                yield places, scores[of[places]]
        except NothingScoredError as error:
            if not len(stored):
                raise
            logger.warning("%s", error)
        finally:
            getattr(computing, "close", lambda: None)()
            if whole:
                self.flush()

    def _looked_up(self, call: Call, *, whole: bool) -> tuple[IntArray, IntArray, FloatArray]:
        """Return the distinct pairs, the distinct one of each pair, and their known scores."""
        asked = {q: str(call.queries[q]) for q in np.unique(call.pairs.query).tolist()}
        if not self._new.keys() >= {*asked.values()}:
            self.flush()
            try:
                table = self.store.table()
                query, item = table.pair_ids(call.queries, call.items, call.pairs)
                codes = (query << 32) + item
                _, first, of = np.unique(codes, return_index=True, return_inverse=True)
                scores = table.lookup(self.fingerprint, query[first], item[first])
                if not whole:
                    self._new |= {asked[q]: {} for q in call.pairs.query[query < 0].tolist()}
                return first, of, scores
            except InputError as error:
                if self.required:
                    raise
                self._warn(error)
        distinct, pairs = dict[tuple[str, str], int](), call.texts(np.arange(len(call.pairs)))
        of = np.array([distinct.setdefault(pair, len(distinct)) for pair in pairs], np.int64)
        known = [self._new.get(query, {}).get(item, np.nan) for query, item in distinct]
        return np.unique(of, return_index=True)[1], of, np.array(known, np.float32)

    def flush(self) -> None:
        """Write scores to the store. If that fails, the search goes on with them."""
        self._written = time.monotonic()
        if not self._unwritten:
            return
        calls, *own = zip(*self._unwritten, strict=True)
        query, item, scores = map(np.concatenate, own)
        texts = calls[0].queries, calls[0].items
        try:
            self.store.put(self.fingerprint, *texts, Pairs(query, item), scores)
            self._unwritten.clear()  # not before: after an interrupt they are put once more
        except InputError as error:
            self._unwritten.clear()
            if self.required and not isinstance(error, StoreFullError):
                raise
            self._warn(error)

    def _warn(self, error: InputError) -> None:
        if not self._warned.is_set():
            logger.warning("%s", error)
        self._warned.set()
