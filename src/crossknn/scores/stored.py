"""A scorer that never computes what the store has: the view of the store that a search uses."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import Deadline, NothingScoredError
from crossknn.scores.store import ScoreStore, StoreFullError
from crossknn.types import FloatArray, IntArray, Pairs

logger = logging.getLogger(__name__)

_PATIENCE = 30.0
"""Seconds to wait for a pair that another thread is scoring, before scoring it here."""


class StoredScorer:
    """Asks `scorer` only for pairs that `store` has no score of, and keeps every batch there.

    Many threads may share one object, which scores no pair twice; many processes the store.
    """

    def __init__(
        self, scorer: Scorer, store: ScoreStore | str | Path, *, fingerprint: str | None = None
    ) -> None:
        """`store` may be a file; `fingerprint` replaces the scorer's own.

        Raises InputError without any fingerprint, or if the file is no store.
        """
        from crossknn.scorers.opening import as_scorer

        scorer = as_scorer(scorer)
        name = fingerprint or scorer.fingerprint
        if name is None:
            raise InputError(
                f"{type(scorer).__name__} has no fingerprint, so that its scores could be mistaken "
                f"for another model's: give fingerprint='a name you change with the model'"
            )
        self.scorer, self.fingerprint = scorer, name
        self.store = store if isinstance(store, ScoreStore) else ScoreStore.open(store)
        self._claims: dict[int, tuple[object, int]] = {}
        self._changed = threading.Condition()
        self._warned = False

    @property
    def truncated(self) -> int:
        """Pairs the scorer had to cut so far (0 if it does not say)."""
        return int(getattr(self.scorer, "truncated", 0))

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> StoredStream:
        """Yields (positions (b,), scores (b,) float32): all known pairs first, at once.

        The stream's `computed` is the number of its pairs that the scorer computed so far.
        """
        return StoredStream(self, pairs, queries, items, Deadline(time_left, cancel))

    def _ids(
        self, queries: Sequence[str], items: Sequence[str], pairs: Pairs
    ) -> tuple[IntArray, IntArray]:
        """Ids (p,) of texts; negative places of new ones, in a store that cannot be written."""
        try:
            return self.store.pair_ids(queries, items, pairs, add=True)
        except StoreFullError as error:
            self._warn(error)
            query, item = self.store.pair_ids(queries, items, pairs)
            return (
                np.where(query < 0, -2 - pairs.query, query),
                np.where(item < 0, -2 - pairs.item, item),
            )

    def _keep(self, queries: IntArray, items: IntArray, scores: FloatArray) -> None:
        """Keep scores; a search goes on where that cannot be: a score is worth more."""
        here = (queries >= 0) & (items >= 0)
        try:
            self.store.insert(self.fingerprint, queries[here], items[here], scores[here])
        except StoreFullError as error:
            self._warn(error)

    def _warn(self, error: StoreFullError) -> None:
        if not self._warned:
            logger.warning("%s", error)
        self._warned = True


class StoredStream(Iterator[tuple[IntArray, FloatArray]]):
    """The batches of one call, and how many of its pairs were really computed.

    A pair that is missing is claimed and looked up once more: two threads that want it at the same
    time cannot both find it missing. Axes: p pairs, u different ones.
    """

    def __init__(
        self,
        owner: StoredScorer,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        deadline: Deadline,
    ) -> None:
        self.computed = 0
        self._owner, self._deadline = owner, deadline
        self._pairs, self._queries, self._items = pairs, queries, items
        self._batches = self._run()

    def __next__(self) -> tuple[IntArray, FloatArray]:
        return next(self._batches)

    def close(self) -> None:
        """Compute no more; whatever other threads wait for is left to them."""
        self._batches.close()

    def _run(self) -> Generator[tuple[IntArray, FloatArray], None, None]:
        self._query, self._item = self._owner._ids(self._queries, self._items, self._pairs)
        key = (self._query << 32) + self._item
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        order = np.argsort(first)  # different pairs in the order they are asked in
        self._first, self._keys = first[order], key[first[order]]
        self._of = np.argsort(order)[inverse]  # the different pair of each (p,)
        everything = np.arange(len(order))
        try:
            missing = yield from self._known(everything)
            any_known = len(missing) < len(everything)
            mine, others = self._claim(missing)
            yield from self._compute((yield from self._known(mine)), any_known)
            if len(others):
                self._wait(others)
                yield from self._compute((yield from self._known(others)), True)
        finally:
            self._release(everything)

    def _known(self, which: IntArray) -> Generator[tuple[IntArray, FloatArray], None, IntArray]:
        """One batch of the different pairs `which` that are stored; returns the others."""
        owner, first = self._owner, self._first[which]
        found = owner.store.lookup(owner.fingerprint, self._query[first], self._item[first])
        known = ~np.isnan(found)
        if known.any():
            self._release(which[known])
            yield self._spread(which[known], found[known])
        return which[~known]

    def _compute(
        self, missing: IntArray, any_yielded: bool
    ) -> Generator[tuple[IntArray, FloatArray], None, None]:
        """Score what is missing, one place per pair, keeping every batch before passing it on."""
        if not len(missing) or self._deadline.over():
            return
        first, owner = self._first[missing], self._owner
        asked = self._pairs.take(first)
        stream = owner.scorer.score(asked, self._queries, self._items, **self._deadline.rest())
        try:
            for where, scores in stream:
                owner._keep(self._query[first[where]], self._item[first[where]], scores)
                self._release(missing[where])
                self.computed += len(where)
                any_yielded = True
                yield self._spread(missing[where], scores)
        except NothingScoredError as error:
            if not any_yielded:
                raise
            logger.warning("%s", error)
        finally:
            getattr(stream, "close", lambda: None)()

    def _claim(self, which: IntArray) -> tuple[IntArray, IntArray]:
        """Claim the pairs that no other thread is scoring; (those, the others)."""
        thread, claims = threading.get_ident(), self._owner._claims
        with self._owner._changed:
            keys = self._keys[which].tolist()
            # Two streams in one thread must not wait for each other.
            taken = np.array([claims.get(k, (0, thread))[1] != thread for k in keys], np.bool_)
            for key in self._keys[which[~taken]].tolist():
                claims.setdefault(key, (self, thread))
        return which[~taken], which[taken]

    def _wait(self, which: IntArray) -> None:
        """Wait until others have scored these pairs; whoever still holds a claim is too slow."""
        owner, until, keys = self._owner, time.monotonic() + _PATIENCE, self._keys[which].tolist()
        with owner._changed:
            while (
                any(key in owner._claims for key in keys)
                and not self._deadline.over()
                and time.monotonic() < until
            ):
                owner._changed.wait(self._deadline.pause())
            owner._claims.update(dict.fromkeys(keys, (self, threading.get_ident())))

    def _release(self, which: IntArray) -> None:
        claims = self._owner._claims
        with self._owner._changed:
            for key in self._keys[which].tolist():
                if claims.get(key, (None, 0))[0] is self:
                    del claims[key]
            self._owner._changed.notify_all()

    def _spread(self, which: IntArray, scores: FloatArray) -> tuple[IntArray, FloatArray]:
        """Scores of different pairs -> scores of all their places."""
        values = np.full(len(self._keys), np.nan, np.float32)
        values[which] = scores
        places = np.flatnonzero(np.isin(self._of, which))
        return places, values[self._of[places]]
