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

from crossknn.errors import InputError, ScorerError
from crossknn.linalg import usable
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
        self._new = set[str]()  # queries without a score in the store when they were looked up

    def of_search(self) -> StoredScorer:
        """Return the same scorer for one search, which asks for no pair of texts twice. A query
        without scores in the store is looked up once, and the scores of several calls are written
        together; `flush` writes the last ones."""
        own = copy.copy(self)
        own._lasts, own._written, own._unwritten, own._new = True, time.monotonic(), [], set()
        return own

    def score(
        self, pairs: Pairs, queries: Sequence[str], items: Sequence[str], **limits: Any
    ) -> StoredStream:
        """Score pairs; see `Scorer.score`. Pairs that are in the store come first, in one batch."""
        stream, own = StoredStream(), self if self._lasts else self.of_search()
        call = Call(pairs, queries, items, Deadline(**limits))
        for before, *_ in own._unwritten[:1]:
            if before.queries is not queries or before.items is not items:
                own.flush()
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
                if not usable(values := np.asarray(batch, np.float32)).all():
                    raise ScorerError("a score is not a finite number")
                scores[missing[where]] = values
                own = asked.query[where], asked.item[where], values.copy()
                self._unwritten.append((call, *own))
                if time.monotonic() >= self._written + EVERY:
                    self.flush()
                stream.computed += len(where)
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
        """Return the distinct pairs, the distinct one of each pair, and their stored scores."""
        queries, at = np.unique(call.pairs.query, return_index=True)
        texts = [str(call.queries[q]) for q in queries.tolist()]
        if not self._new.issuperset(texts):
            self.flush()
            try:
                table = self.store.table()
                query, item = table.pair_ids(call.queries, call.items, call.pairs)
                codes = (query << 32) + item
                _, first, of = np.unique(codes, return_index=True, return_inverse=True)
                scores = table.lookup(self.fingerprint, query[first], item[first])
                for text, number in zip(texts, query[at].tolist(), strict=True):
                    if not whole and next(table.blocks(self.fingerprint, number), None) is None:
                        self._new.add(text)
                return first, of, scores
            except InputError as error:
                if self.required:
                    raise
                self._warn(error)
        each = np.arange(len(call.pairs))
        return each, each, np.full(len(each), np.nan, np.float32)

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
