"""Scores that are paid for once: a persistent cache around any scorer."""

from __future__ import annotations

import logging
import threading
import time
from array import array
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

import numpy as np

from crossknn.errors import InputError
from crossknn.scorers._store import ScoreStore, text_hash
from crossknn.scorers.base import Scorer
from crossknn.scorers.streaming import Deadline, NothingScoredError
from crossknn.types import FloatArray, IntArray, Pairs

logger = logging.getLogger(__name__)

Key: TypeAlias = tuple[bytes, bytes]
"""(hash of the query text, hash of the item text)."""

_PATIENCE = 30.0
"""Seconds to wait for a pair that another thread is scoring, before scoring it here."""


class CachedScorer:
    """Asks `scorer` only for pairs whose score is not in the file `path`.

    Scores are kept under the scorer's fingerprint and hashes of the two texts, and committed
    batch by batch as they arrive. Query texts are kept once each unless `store_queries=False`:
    they are what an index can later be trained on. Many threads may share one object, many
    processes of one host the file.

    `hits` counts pairs answered without the scorer (stored ones, repeated ones, and ones that
    another thread was just scoring), `misses` pairs that the scorer computed.
    """

    def __init__(
        self,
        scorer: Scorer,
        path: str | Path,
        *,
        fingerprint: str | None = None,
        store_queries: bool = True,
    ) -> None:
        """Raises InputError without any fingerprint, or if `path` is not a score cache."""
        from crossknn.scorers.opening import as_scorer

        scorer = as_scorer(scorer)
        name = fingerprint or scorer.fingerprint
        if name is None:
            raise InputError(
                f"{type(scorer).__name__} has no fingerprint, so that its scores could be mistaken "
                f"for another model's: give fingerprint='a name you change with the model'"
            )
        self.scorer = scorer
        self._fingerprint = name
        self._store_queries = store_queries
        self._store = ScoreStore(path, name)
        self._in_flight: dict[Key, tuple[object, int]] = {}
        self._changed = threading.Condition()
        self._hits = self._misses = 0

    @property
    def fingerprint(self) -> str:
        """The scorer's fingerprint, or the one given instead."""
        return self._fingerprint

    @property
    def hits(self) -> int:
        """Pairs answered without the scorer so far."""
        return self._hits

    @property
    def misses(self) -> int:
        """Pairs the scorer computed so far."""
        return self._misses

    @property
    def truncated(self) -> int:
        """Pairs the scorer had to cut so far (0 if it does not say)."""
        return int(getattr(self.scorer, "truncated", 0))

    def query_texts(self) -> list[str]:
        """Every query text kept so far, of any model: material to train an index on."""
        return self._store.query_texts()

    def paid(self, items: Sequence[str]) -> tuple[list[str], Pairs, FloatArray]:
        """What searches left behind: query texts (q,), scores (e,) of pairs of them and `items`.

        Those of this fingerprint, of queries whose texts were kept. Items of equal texts have equal
        scores.
        """
        places: dict[bytes, list[int]] = {}
        for position, text in enumerate(items):
            places.setdefault(text_hash(text), []).append(position)
        queries: list[str] = []
        query, item, score = array("q"), array("q"), array("d")
        for text, key, value in self._store.pairs():
            found = places.get(key)
            if found is None:
                continue
            if not queries or queries[-1] != text:
                queries.append(text)
            for position in found:
                query.append(len(queries) - 1)
                item.append(position)
                score.append(value)
        pairs = Pairs(np.array(query, np.int64), np.array(item, np.int64))
        return queries, pairs, np.array(score, np.float32)

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def score(
        self,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        *,
        time_left: float | None = None,
        cancel: threading.Event | None = None,
    ) -> CachedStream:
        """Yields (positions (b,), scores (b,) float32): all known pairs first, at once.

        The stream's `computed` is the number of its pairs that the scorer computed so far.
        """
        return CachedStream(_Call(self, pairs, queries, items, Deadline(time_left, cancel)))

    def _count(self, hits: int, misses: int) -> None:
        with self._changed:
            self._hits += hits
            self._misses += misses


class CachedStream(Iterator[tuple[IntArray, FloatArray]]):
    """The batches of one call, and how many of its pairs were really computed."""

    def __init__(self, call: _Call) -> None:
        self._call = call
        self._batches = call.run()

    @property
    def computed(self) -> int:
        """Pairs the scorer computed for this call so far."""
        return self._call.n_computed

    def __next__(self) -> tuple[IntArray, FloatArray]:
        return next(self._batches)

    def close(self) -> None:
        """Compute no more; whatever other threads wait for is left to them."""
        self._batches.close()


class _Call:
    """One call: the places of each distinct pair, and which of them this call is to score.

    A pair that is missing is claimed and looked up once more: two threads that want it at the
    same time cannot both find it missing.
    """

    def __init__(
        self,
        cache: CachedScorer,
        pairs: Pairs,
        queries: Sequence[str],
        items: Sequence[str],
        deadline: Deadline,
    ) -> None:
        self.cache, self.pairs, self.queries, self.items = cache, pairs, queries, items
        self.deadline = deadline
        query_hash = {q: text_hash(str(queries[q])) for q in np.unique(pairs.query).tolist()}
        item_hash = {i: text_hash(str(items[i])) for i in np.unique(pairs.item).tolist()}
        self.places: dict[Key, list[int]] = {}
        rows = zip(pairs.query.tolist(), pairs.item.tolist(), strict=True)
        for place, (query, item) in enumerate(rows):
            self.places.setdefault((query_hash[query], item_hash[item]), []).append(place)
        self.claimed: set[Key] = set()
        self.awaited: list[Key] = []
        self.missing: list[Key] = []
        self.any_yielded = False
        self.n_computed = 0

    def run(self) -> Generator[tuple[IntArray, FloatArray], None, None]:
        try:
            yield from self.known(list(self.places))
            yield from self.known(self.claim(self.missing))
            yield from self.computed()
            yield from self.others()
        finally:
            self.release(self.claimed)

    def claim(self, keys: Sequence[Key]) -> list[Key]:
        """Claim what nobody is scoring; what another thread is scoring is left for later."""
        thread = threading.get_ident()
        in_flight = self.cache._in_flight
        mine: list[Key] = []
        with self.cache._changed:
            for key in keys:
                owner = in_flight.get(key)
                # Two streams in one thread must not wait for each other.
                if owner is not None and owner[1] != thread:
                    self.awaited.append(key)
                    continue
                if owner is None:
                    in_flight[key] = (self, thread)
                    self.claimed.add(key)
                mine.append(key)
        return mine

    def release(self, keys: Sequence[Key] | set[Key]) -> None:
        with self.cache._changed:
            for key in list(keys):
                if self.cache._in_flight.get(key, (None, 0))[0] is self:
                    del self.cache._in_flight[key]
                self.claimed.discard(key)
            self.cache._changed.notify_all()

    def known(self, keys: Sequence[Key]) -> Iterator[tuple[IntArray, FloatArray]]:
        """One batch of everything in `keys` that is stored; the rest is left to `computed`."""
        by_query: dict[bytes, list[bytes]] = {}
        for query, item in keys:
            by_query.setdefault(query, []).append(item)
        found: list[tuple[Key, float]] = []
        for query, items in by_query.items():
            scores = self.cache._store.get(query, items)
            found += [((query, item), score) for item, score in scores.items()]
        stored = {key for key, _ in found}
        self.missing = [key for key in keys if key not in stored]
        self.release([key for key, _ in found])
        if found:
            positions, values = self._spread(found)
            self.cache._count(hits=len(positions), misses=0)
            self.any_yielded = True
            yield positions, values

    def computed(self) -> Iterator[tuple[IntArray, FloatArray]]:
        """Score what is missing, one place per pair, keeping every batch before passing it on."""
        missing = self.missing
        if not missing or self.deadline.over():
            return
        asked = np.array([self.places[key][0] for key in missing], dtype=np.int64)
        stream = self.cache.scorer.score(
            self.pairs.take(asked), self.queries, self.items, **self.deadline.rest()
        )
        try:
            for positions, scores in stream:
                batch = [
                    (missing[p], float(score))
                    for p, score in zip(positions.tolist(), scores.tolist(), strict=True)
                ]
                self._keep(batch)
                self.release([key for key, _ in batch])
                places, values = self._spread(batch)
                self.n_computed += len(batch)
                self.cache._count(hits=len(places) - len(batch), misses=len(batch))
                self.any_yielded = True
                yield places, values
        except NothingScoredError as error:
            if not self.any_yielded:
                raise
            logger.warning("%s", error)
        finally:
            close = getattr(stream, "close", None)
            if close:
                close()
        self.release(missing)

    def others(self) -> Iterator[tuple[IntArray, FloatArray]]:
        """Take what other threads have scored meanwhile; score what they gave up."""
        if not self.awaited:
            return
        keys, self.awaited = self.awaited, []
        in_flight, changed = self.cache._in_flight, self.cache._changed
        with changed:
            until = time.monotonic() + _PATIENCE
            while (
                any(key in in_flight for key in keys)
                and not self.deadline.over()
                and time.monotonic() < until
            ):
                changed.wait(self.deadline.pause())
            for key in keys:  # whoever still holds a claim is too slow, or stopped reading
                in_flight[key] = (self, threading.get_ident())
                self.claimed.add(key)
        yield from self.known(keys)
        yield from self.computed()

    def _keep(self, batch: Sequence[tuple[Key, float]]) -> None:
        texts: dict[bytes, str] = {}
        if self.cache._store_queries:
            for key, _ in batch:
                texts[key[0]] = self.queries[int(self.pairs.query[self.places[key][0]])]
        self.cache._store.put(((q, i, s) for (q, i), s in batch), texts.items())

    def _spread(self, found: Sequence[tuple[Key, float]]) -> tuple[IntArray, FloatArray]:
        """Scores of distinct pairs -> scores of all their places."""
        places = [self.places[key] for key, _ in found]
        counts = [len(p) for p in places]
        positions = np.array([p for group in places for p in group], dtype=np.int64)
        scores = np.repeat(np.array([score for _, score in found], dtype=np.float32), counts)
        return positions, scores
