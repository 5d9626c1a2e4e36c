"""A scorer that looks scores up in a store, and computes only the missing ones."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

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
    """Looks scores up in `store`; computes the missing ones with `scorer`, and stores every batch.
    Many threads may share one `StoredScorer`, and many processes its store.

    Args:
        scorer: The cross-encoder, in any form that `Searcher` accepts; `InputError` if the store is
            a file but the scorer has no fingerprint.
        store: A store such as `index.scores`, or its file.
        required: If false, a store that cannot be read is ignored with a warning, and all pairs are
            scored.
        every: Seconds between writes to the store, each of which costs as much as scoring a pair
            with a small model. A killed process loses the scores since the last write.
    """

    def __init__(
        self,
        scorer: Scorer,
        store: ScoreStore | str | Path,
        *,
        required: bool = True,
        every: float = 0.0,
    ) -> None:
        self.scorer = as_scorer(scorer)
        self.store = store if isinstance(store, ScoreStore) else ScoreStore(store)
        self.fingerprint = fingerprint_of(self.scorer, self.store)
        self.required, self.every = required, every
        self._warned = False

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> StoredStream:
        """Score pairs; see `Scorer.score`. Pairs that are in the store come first, in one batch."""
        stream = StoredStream()
        stream.batches = self._run(stream, Call(pairs, queries, items, Deadline(time_left, cancel)))
        return stream

    def _run(
        self, stream: StoredStream, call: Call
    ) -> Generator[tuple[IntArray, FloatArray], None, None]:
        try:
            table = self.store.table()
            query, item = table.pair_ids(call.queries, call.items, call.pairs)
            # `first` (u,) are the distinct pairs; `of` (p,) maps each pair to its distinct one.
            _, first, of = np.unique((query << 32) + item, return_index=True, return_inverse=True)
            scores = table.lookup(self.fingerprint, query[first], item[first])
        except InputError as error:
            if self.required:
                raise
            self._warn(error)
            first = of = np.arange(len(call.pairs))
            scores = np.full(len(first), np.nan, np.float32)
        missing = np.flatnonzero(np.isnan(scores))
        missing = missing[np.argsort(first[missing])]  # in the order of the call
        stored = np.flatnonzero(~np.isnan(scores[of]))
        if len(stored):
            yield stored, scores[of[stored]]
        if not len(missing) or call.deadline.over():
            return
        asked = call.pairs.take(first[missing])
        computing = self.scorer.score(asked, call.queries, call.items, **call.deadline.rest())
        pending, written = list[tuple[IntArray, FloatArray]](), time.monotonic()
        try:
            for where, batch in computing:
                pending.append((where, batch))
                if (now := time.monotonic()) >= written + self.every:
                    self._write(call, asked, pending)
                    written = now
                stream.computed += len(where)
                scores[missing[where]] = batch
                places = np.flatnonzero(np.isin(of, missing[where]))
                yield places, scores[of[places]]
        except NothingScoredError as error:
            if not len(stored):
                raise
            logger.warning("%s", error)
        finally:
            getattr(computing, "close", lambda: None)()
            self._write(call, asked, pending)

    def _write(self, call: Call, pairs: Pairs, pending: list[tuple[IntArray, FloatArray]]) -> None:
        """Move scores from `pending` to the store. If writing fails, the search continues, because
        the scores are still usable."""
        if not pending:
            return
        where, scores = map(np.concatenate, zip(*pending, strict=True))
        try:
            self.store.put(self.fingerprint, call.queries, call.items, pairs.take(where), scores)
            pending.clear()  # not before: after an interrupt they are put once more
        except InputError as error:
            pending.clear()
            if self.required and not isinstance(error, StoreFullError):
                raise
            self._warn(error)

    def _warn(self, error: InputError) -> None:
        if not self._warned:
            logger.warning("%s", error)
        self._warned = True
