"""One file of exact scores: whatever was scored anywhere is here, and is never scored again.

A score belongs to a cross-encoder (its fingerprint), a query and an item (their texts). Texts are
named by digests once, and by integers from then on. Scores lie in blocks of one query with many
items, each with a CRC-32 that is checked whenever the block is read (`docs/reference/formats.md`).

The file is SQLite's, in WAL mode: a kill loses no transaction, and many processes of one host may
share it. 10^8 pairs of 1,000 queries take 400 MB; they are written in 3 s and read in 1 s.

Axes: q queries, n items, p pairs, b scores of a block.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import cache, cached_property, wraps
from pathlib import Path
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.files import as_path, has_locks, is_file, text_digest
from crossknn.linalg import running, usable
from crossknn.types import BoolArray, FloatArray, IntArray, Pairs

_APPLICATION = 0x786B6E6E  # "xknn"
_FORMAT = 2
_BUSY_SECONDS = 30.0
_VARIABLES = 500
_SMALL, _MANY = 8_192, 32  # so many small blocks of a query become one
_LARGEST_ID = 2**31 - 1  # of a text
_LONGEST_ROW = 2**27  # bytes: a block of 16 million scores
_BESIDE = ("-wal", "-shm", "-journal")

_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_FORMAT};
CREATE TABLE IF NOT EXISTS scorers (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE,
    pairs INTEGER NOT NULL DEFAULT 0, seconds REAL NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS texts (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text BLOB,
    crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS blocks (id INTEGER PRIMARY KEY, scorer INTEGER NOT NULL,
    query INTEGER NOT NULL, start INTEGER NOT NULL, items BLOB, scores BLOB NOT NULL,
    crc INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS blocks_of ON blocks (scorer, query)"""
_DAYS = "CREATE TABLE IF NOT EXISTS days (day TEXT PRIMARY KEY NOT NULL, block INTEGER NOT NULL)"
"""The first block of each day on which scores were kept; older files have no such table."""

LIMIT = 2 * 2**30
"""Bytes that a store takes, at most: the queries whose scores are oldest make room for new ones.
`CROSSKNN_STORE_LIMIT` in the environment names another limit, in MB."""

_ROOM = 0.9  # of the limit, which what is kept fills after queries were dropped
_SIGN = "UPDATE texts SET crc = text_crc(id, digest, text) WHERE"
_SCORER = "(SELECT id FROM scorers WHERE fingerprint = ?)"


class StoredScoresError(InputError):
    """The file of scores cannot be read, or is damaged."""


class StoreFullError(StoredScoresError):
    """Scores cannot be written: the disk is full, read-only or gone."""


@dataclass(frozen=True, eq=False)
class SparseScores:
    """Scores of e pairs of q queries and n items, sorted by query, then item, each pair once.

    G, the sparse score matrix of AXN 2.1. `queries` are texts (q,), some perhaps without a score;
    `query` (e,) and `item` (e,) are positions, `score` (e,) raw logits (float32). `fingerprint`
    names the cross-encoder.
    """

    queries: Sequence[str]
    n: int
    query: IntArray
    item: IntArray
    score: FloatArray
    fingerprint: str | None = None

    @staticmethod
    def of(
        queries: Sequence[str],
        n: int,
        pairs: Pairs,
        score: FloatArray,
        fingerprint: str | None = None,
    ) -> SparseScores:
        """From different pairs in any order."""
        order = np.lexsort((pairs.item, pairs.query))
        values = np.asarray(score, np.float32)[order]
        return SparseScores(queries, n, pairs.query[order], pairs.item[order], values, fingerprint)

    def __len__(self) -> int:
        return len(self.score)

    @cached_property
    def by_query(self) -> IntArray:
        """Query r has the entries `by_query[r]:by_query[r + 1]`: (q + 1,)."""
        return np.searchsorted(self.query, np.arange(len(self.queries) + 1)).astype(np.int64)

    @property
    def scored_queries(self) -> IntArray:
        """Queries that have a score, in order."""
        return np.unique(self.query)

    def take(self, entries: IntArray | BoolArray) -> SparseScores:
        """The entries at ascending positions, or where a mask (e,) is true."""
        return replace(
            self, query=self.query[entries], item=self.item[entries], score=self.score[entries]
        )


class _Block(NamedTuple):
    """Scores (b,) of a query with the items of these ids (b,), ascending."""

    row: int
    ids: IntArray
    scores: FloatArray

    def find(self, wanted: IntArray, found: FloatArray) -> None:
        """Put the scores of the items with the ids `wanted` (p,) that are here into `found`."""
        at = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        here = self.ids[at] == wanted
        found[here] = self.scores[at[here]]


P = ParamSpec("P")
T = TypeVar("T")


def _of_the_file_now(
    method: Callable[Concatenate[ScoreStore, P], T],
) -> Callable[Concatenate[ScoreStore, P], T]:
    """A method that reads or writes the `current` file; the others go by the ids of theirs."""

    @wraps(method)
    def of_now(store: ScoreStore, /, *args: P.args, **options: P.kwargs) -> T:
        return method(store.current(), *args, **options)

    return of_now


class ScoreStore(AbstractContextManager["ScoreStore"]):
    """Exact scores by (fingerprint, query text, item text); in a file, or in memory.

    May be used from many threads and, each with its own object, from many processes of one host.

    Args:
        path: The file, made when the first score comes. None: a new store in memory.

    Raises:
        InputError: The file cannot be opened, is damaged, or is something else.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else as_path(path, "the file of scores")
        self.private = os.environ.get("CROSSKNN_PRIVATE", "0") not in ("", "0")
        """Whether of queries that are new only digests are kept, of which nothing is learned."""
        self.limit = _limit()
        self.unnamed: dict[int, object] = {}
        """Scorers without a fingerprint, which must live as long as their scores are here."""
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._file = self._process = 0  # of the connection
        self._only_read = False  # the connection
        self._parents: list[sqlite3.Connection] = []  # a fork may not even close its parent's
        self._successor: ScoreStore | None = None
        len(self)  # reads the file

    def current(self) -> ScoreStore:
        """This store, or, if its file was removed or replaced, one of the file that is there now or
        is made with the next score. The integers of texts differ between the two."""
        with running(), self._lock:
            db = self._connection
            if self._successor is None and not (db is None or db.in_transaction) and self._moved():
                self.close()
                self._successor = ScoreStore(self.path)
        return self if self._successor is None else self._successor.current()

    def _moved(self) -> bool:
        """Whether the path is not the opened file's any more."""
        try:
            return self.path is not None and self.path.stat().st_ino != self._file
        except FileNotFoundError:
            return True
        except OSError:
            return False  # what cannot be looked at may be there

    def _check_current(self) -> None:
        if self._successor is not None:
            raise StoredScoresError(
                f"the scores in {self.path} were removed or replaced meanwhile: do it again"
            )

    def close(self) -> None:
        """Close the file; it is opened again when the store is used again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def __exit__(self, *error: object) -> None:
        self.close()

    @_of_the_file_now
    def __len__(self) -> int:
        """Number of scores, of all cross-encoders."""
        found = self._select("SELECT coalesce(sum(length(scores)), 0) FROM blocks")
        return int(found[0][0]) // 4 if found else 0

    @_of_the_file_now
    def counts(self, fingerprint: str) -> IntArray:
        """How many scores the queries have whose texts are kept.

        Args:
            fingerprint: The cross-encoder's.

        Returns:
            The number of scores of each query that has any (q,).
        """
        of = (
            "SELECT coalesce(sum(length(scores)) / 4, 0) "
            "FROM blocks JOIN texts ON texts.id = query "
            f"WHERE scorer = {_SCORER} AND text IS NOT NULL GROUP BY query"
        )
        return np.array([count for (count,) in self._select(of, (fingerprint,))], np.int64)

    @_of_the_file_now
    def newest(self) -> int:
        """The integer of the latest text; 0 if there is none."""
        found = self._select("SELECT coalesce(max(id), 0) FROM texts")
        return int(found[0][0]) if found else 0

    @_of_the_file_now
    def queries(self, fingerprint: str, after: int = 0) -> list[str]:
        """Which queries have a score.

        Args:
            fingerprint: The cross-encoder's.
            after: Only queries whose text was added after the text of this integer (see `newest`).

        Returns:
            Their texts, oldest first.
        """
        chosen = f"SELECT DISTINCT query FROM blocks WHERE scorer = {_SCORER}"
        found = self._texts(f"id IN ({chosen}) AND id > ?", [fingerprint, after])
        with self._translated(StoredScoresError, "cannot be read"):
            return [text.decode("utf-8", "surrogatepass") for *_, text in found if text is not None]

    @_of_the_file_now
    def newest_queries(self, fingerprint: str, most: int, scores: int, below: int) -> list[str]:
        """The newest queries that have some scores, but not those of all items.

        Args:
            fingerprint: The cross-encoder's.
            most: How many queries, at most.
            scores: How many scores they have together, at most; one query has more, if need be.
            below: Only queries with fewer scores.

        Returns:
            Their texts, oldest first.
        """
        found = self._select(
            "SELECT query, coalesce(sum(length(scores)) / 4, 0) AS counted FROM blocks "
            f"JOIN texts ON texts.id = query WHERE scorer = {_SCORER} AND text IS NOT NULL "
            "GROUP BY query HAVING counted < ? ORDER BY query DESC LIMIT ?",
            (fingerprint, below, most),
        )
        within = np.cumsum([count for _, count in found]) <= scores
        chosen = [query for query, _ in found[: max(1, int(within.sum()))]]
        texts = [row for query in chosen[::-1] for row in self._texts("id = ?", [query])]
        with self._translated(StoredScoresError, "cannot be read"):
            return [text.decode("utf-8", "surrogatepass") for *_, text in texts if text is not None]

    @_of_the_file_now
    def put(
        self,
        fingerprint: str,
        queries: Sequence[str],
        items: Sequence[str],
        pairs: Pairs,
        scores: FloatArray,
    ) -> int:
        """Keep exact scores. A pair that has a score already keeps it.

        Args:
            fingerprint: The cross-encoder's.
            queries: Texts of queries.
            items: Texts of items.
            pairs: p pairs of positions in `queries` and `items`.
            scores: Their scores (p,), raw logits.

        Returns:
            How many pairs had no score before.

        Raises:
            ScorerError: A score is not finite.
            StoreFullError: The scores cannot be written.
        """
        with self._writing():
            ids = self.pair_ids(queries, items, pairs, add=True)
            return self.insert(fingerprint, *ids, scores)

    @_of_the_file_now
    def rows(self, fingerprint: str, queries: Sequence[str], items: Sequence[str]) -> FloatArray:
        """The known scores of all pairs of texts.

        Args:
            fingerprint: The cross-encoder's.
            queries: Texts of queries (q).
            items: Texts of items (n).

        Returns:
            Scores (q, n) float32, NaN where there is none.

        Raises:
            InputError: A block of scores is damaged; all that reads scores raises it.
        """
        ids, found = self.ids(items), np.full((len(queries), len(items)), np.nan, np.float32)
        for row, query in enumerate(self.ids(queries).tolist()):
            for block in self._blocks(fingerprint, query):
                block.find(ids, found[row])
        return found

    @_of_the_file_now
    def sparse_scores(
        self, fingerprint: str, items: Sequence[str], queries: Sequence[str] | None = None
    ) -> SparseScores:
        """All known scores with given items. Items of equal texts have equal scores.

        Args:
            fingerprint: The cross-encoder's.
            items: Texts of items (n).
            queries: Texts of queries; None: all that have a score.

        Returns:
            The scores, without those that are not known.
        """
        texts = sorted(self.queries(fingerprint)) if queries is None else list(queries)
        ids, none = self.ids(items), np.empty(0, np.int64)
        by_id = np.argsort(ids, kind="stable")
        ordered = ids[by_id]
        rows, columns, scores = [none], [none], [none.astype(np.float32)]
        for row, query in enumerate(self.ids(texts).tolist()):
            for block in self._blocks(fingerprint, query):
                first = np.searchsorted(ordered, block.ids)  # of the items with that text
                counts = np.searchsorted(ordered, block.ids, "right") - first
                starts = np.repeat(first - np.cumsum(counts) + counts, counts)
                columns.append(by_id[starts + np.arange(len(starts))])
                rows.append(np.full(len(starts), row))
                scores.append(np.repeat(block.scores, counts))
        pairs = Pairs(np.concatenate(rows), np.concatenate(columns))
        return SparseScores.of(texts, len(items), pairs, np.concatenate(scores), fingerprint)

    def ids(self, texts: Sequence[str], *, add: bool = False, keep: bool = False) -> IntArray:
        """The integers that stand for texts in this store.

        Args:
            texts: t texts.
            add: Add texts that are not known.
            keep: Keep the texts themselves, too, as those of queries are.

        Returns:
            Integers (t,); below 0 for a text that is not known and was not added.
        """
        kept = (text.encode("utf-8", "surrogatepass") if keep else None for text in texts)
        return self._ids(list(zip(map(text_digest, texts), kept, strict=True)), add)

    def pair_ids(
        self, queries: Sequence[str], items: Sequence[str], pairs: Pairs, *, add: bool = False
    ) -> tuple[IntArray, IntArray]:
        """The integers of the texts of pairs, as of `ids`.

        Args:
            queries: Texts of queries.
            items: Texts of items.
            pairs: p pairs of positions in `queries` and `items`.
            add: Add texts that are not known.

        Returns:
            Integers (p,) of the queries, and of the items.
        """
        chosen, query = np.unique(pairs.query, return_inverse=True)
        others, item = np.unique(pairs.item, return_inverse=True)
        known = self.ids(
            [str(queries[q]) for q in chosen.tolist()], add=add, keep=add and not self.private
        )
        return known[query], self.ids([str(items[i]) for i in others.tolist()], add=add)[item]

    def lookup(self, fingerprint: str, queries: IntArray, items: IntArray) -> FloatArray:
        """The known scores of pairs, by the integers of their texts.

        Args:
            fingerprint: The cross-encoder's.
            queries: Integers (p,) of the queries, as `pair_ids` gives them.
            items: Integers (p,) of the items.

        Returns:
            Scores (p,) float32, NaN where there is none.
        """
        found = np.full(len(queries), np.nan, np.float32)
        for query, places in _grouped(queries):
            part = found[places]
            for block in self._blocks(fingerprint, query):
                block.find(items[places], part)
            found[places] = part
        return found

    def insert(
        self, fingerprint: str, queries: IntArray, items: IntArray, scores: FloatArray
    ) -> int:
        """`put` by the integers of texts, in one transaction.

        Args:
            fingerprint: The cross-encoder's.
            queries: Integers (p,) of the queries, as `pair_ids` gives them.
            items: Integers (p,) of the items.
            scores: Scores (p,), raw logits.

        Returns:
            How many pairs had no score before.
        """
        values = np.asarray(scores, np.float32)
        if len(bad := values[~usable(values)]):
            raise ScorerError(f"a score is {bad[0]}: it cannot be kept")
        added = 0
        with self._writing() as db:
            db.execute("INSERT OR IGNORE INTO scorers (fingerprint) VALUES (?)", (fingerprint,))
            db.execute(_DAYS)
            newest = "SELECT ?, coalesce(max(id), 0) + 1 FROM blocks"
            db.execute(f"INSERT OR IGNORE INTO days {newest}", (date.today().isoformat(),))
            for query, places in _grouped(queries):
                ids, first = np.unique(items[places], return_index=True)
                known, blocks = np.full(len(ids), np.nan), list(self._blocks(fingerprint, query))
                for block in blocks:
                    block.find(ids, known)
                new = np.isnan(known)
                added += int(new.sum())
                if new.any():
                    self._add(db, fingerprint, query, blocks, ids[new], values[places][first[new]])
            if added:
                self._make_room(db)
        return added

    def used_bytes(self) -> int:
        """How many bytes of the file, or of the memory, are in use."""
        names = "page_count", "freelist_count", "page_size"
        found = [self._select(f"PRAGMA {name}") for name in names]
        pages, free, size = (int(rows[0][0]) if rows else 0 for rows in found)
        return (pages - free) * size

    def n_queries(self) -> tuple[int, int]:
        """How many queries have scores, and of how many of them the texts are kept."""
        found = self._select(
            "SELECT count(*), count(text) FROM texts WHERE id IN (SELECT query FROM blocks)"
        )
        return (int(found[0][0]), int(found[0][1])) if found else (0, 0)

    @_of_the_file_now
    def prune(
        self, *, keep: int | None = None, before: str | None = None, private: bool = False
    ) -> int:
        """Drop the scores of old queries, by when a score of them was last kept, and give the room
        back.

        Args:
            keep: Keep the newest queries, so many.
            before: Drop queries whose scores were all kept before this day, such as "2026-11-30".
                What was kept before days were noted stays.
            private: Drop the texts of all queries, too, and keep their digests.

        Returns:
            How many queries were dropped.

        Raises:
            StoreFullError: The file cannot be written.
        """
        if not len(self):
            return 0
        with self._writing() as db:
            db.execute("PRAGMA secure_delete = ON")
            rows = db.execute(
                "SELECT query, max(id) FROM blocks GROUP BY query ORDER BY max(id)"
            ).fetchall()
            excess = 0 if keep is None else max(0, len(rows) - keep)
            dropped = {query for query, _ in rows[:excess]}
            if before is not None and _tables(db) == _own_tables(days=True):
                noted = db.execute(
                    "SELECT day, block FROM days WHERE typeof(day) = 'text' "
                    "AND typeof(block) = 'integer' ORDER BY day"
                ).fetchall()
                later = (block for day, block in noted if day >= before)
                first = next(later, rows[-1][1] + 1) if noted and before >= noted[0][0] else 0
                dropped |= {query for query, newest in rows if newest < first}
            self._drop(db, [*dropped])
            if private:
                db.execute("UPDATE texts SET text = NULL WHERE text IS NOT NULL")
                db.execute(f"{_SIGN} 1")
        with self._lock, self._translated(StoreFullError, "cannot be kept"):
            db = self._opened(write=True)
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return len(dropped)

    def _make_room(self, db: sqlite3.Connection) -> None:
        """Drop the queries whose scores are oldest if the store is larger than its limit."""
        if (excess := self.used_bytes() - self.limit) <= 0:
            return
        excess += int((1 - _ROOM) * self.limit)
        oldest = db.execute(
            "SELECT query, sum(coalesce(length(scores), 0) + coalesce(length(items), 0)) "
            "FROM blocks GROUP BY query ORDER BY max(id)"
        ).fetchall()
        sizes = np.cumsum([size for _, size in oldest])
        count = min(int((sizes < excess).sum()) + 1, len(oldest) - 1)
        self._drop(db, [query for query, _ in oldest[:count]])

    def _drop(self, db: sqlite3.Connection, queries: Sequence[int]) -> None:
        """Drop the scores of queries, and their texts where no score names them as items."""
        scorers = [scorer for (scorer,) in db.execute("SELECT id FROM scorers").fetchall()]
        pairs = ((scorer, query) for query in queries for scorer in scorers)
        db.executemany("DELETE FROM blocks WHERE scorer = ? AND query = ?", pairs)
        # The largest id stays taken: a new text would get it, and others may have it in hand.
        (most,) = db.execute("SELECT coalesce(max(id), 0) FROM texts").fetchone()
        ordered = np.sort(np.array([q for q in queries if isinstance(q, int)], np.int64))
        used: BoolArray = ordered == most
        for start, items, size in db.execute("SELECT start, items, length(scores) FROM blocks"):
            with suppress(TypeError, ValueError, OverflowError):  # what is no block names no text
                if items is None:
                    used |= (ordered >= start) & (ordered < start + size // 4)
                else:
                    used |= np.isin(ordered, np.frombuffer(items, "<i4"))
        gone = [(query,) for query in ordered[~used].tolist()]
        db.executemany("DELETE FROM texts WHERE id = ?", gone)
        kept = [(query,) for query in ordered[used].tolist()]
        db.executemany("UPDATE texts SET text = NULL WHERE id = ?", kept)
        db.executemany(f"{_SIGN} id = ?", kept)

    def add_all(self, other: ScoreStore) -> None:
        """Take over all scores of another store.

        Args:
            other: That store.
        """
        texts = list(other._texts("TRUE", []))
        theirs = np.array([number for number, *_ in texts], np.int64)
        own = self._ids([(digest, text) for _, digest, text in texts], add=True)
        scorers = other._select("SELECT id, fingerprint, pairs, seconds FROM scorers")
        for scorer, fingerprint, pairs, seconds in scorers:
            self.record_time(fingerprint, pairs, seconds)
            found = other._select("SELECT DISTINCT query FROM blocks WHERE scorer = ?", (scorer,))
            for (query,) in found:
                for block in other._blocks(fingerprint, query):
                    named = np.append(query, block.ids)
                    at = np.minimum(np.searchsorted(theirs, named), len(theirs) - 1)
                    if not np.array_equal(theirs[at], named):
                        raise other._damaged("a block names a text that is not there")
                    queries = np.full(len(block.scores), own[at[0]])
                    self.insert(fingerprint, queries, own[at[1:]], block.scores)

    @_of_the_file_now
    def record_time(self, fingerprint: str, pairs: int, seconds: float) -> None:
        """Note how long scoring took, by however many workers.

        Args:
            fingerprint: The cross-encoder's.
            pairs: Number of pairs that were scored.
            seconds: How long it took.
        """
        if pairs:
            with self._writing() as db:
                db.execute(
                    "INSERT INTO scorers (fingerprint, pairs, seconds) VALUES (?, ?, ?) "
                    "ON CONFLICT DO UPDATE SET pairs = pairs + excluded.pairs, "
                    "seconds = seconds + excluded.seconds",
                    (fingerprint, pairs, seconds),
                )

    @_of_the_file_now
    def seconds_per_pair(self, fingerprint: str) -> float:
        """How long a pair has taken in all collections so far.

        Args:
            fingerprint: The cross-encoder's.

        Returns:
            Seconds for a pair; 0.0 before there was a collection.
        """
        rate = "SELECT CAST(seconds AS REAL) / pairs FROM scorers WHERE pairs > 0 AND seconds > 0"
        found = self._select(f"{rate} AND fingerprint = ?", (fingerprint,))
        return next((seconds for (seconds,) in found if seconds is not None), 0.0)

    def verify(self, *, repair: bool = False) -> list[str]:
        """Check every row of the file.

        Args:
            repair: Remove what is damaged, so that it is scored again.

        Returns:
            A sentence for each kind of damage; none if all is well.

        Raises:
            InputError: The file itself is damaged.
        """
        for (said,) in self._select("PRAGMA quick_check"):
            if said != "ok":
                raise self._damaged(said)
        texts = self._select("SELECT id FROM texts WHERE crc IS NOT text_crc(id, digest, text)")
        blocks = self._select(
            "SELECT blocks.id FROM blocks LEFT JOIN scorers ON scorers.id = scorer "
            "LEFT JOIN texts ON texts.id = query WHERE fingerprint IS NULL "
            "OR texts.crc IS NOT text_crc(texts.id, digest, text) "
            "OR blocks.crc IS NOT block_crc(CAST(fingerprint AS BLOB), query, start, items, scores)"
        )
        if repair and (texts or blocks):
            with self._writing() as db:
                db.executemany("DELETE FROM blocks WHERE id = ?", blocks)
                db.execute(f"DELETE FROM texts WHERE id NOT BETWEEN 1 AND {_LARGEST_ID - 1}")
                # The id of a text stays taken: blocks may name it.
                other = "UPDATE texts SET digest = randomblob(16), text = NULL WHERE id = ?"
                db.executemany(other, texts)
                db.executemany(f"{_SIGN} id = ?", texts)
        found = ("texts", texts), ("blocks", blocks)
        said = "{} of the {} of scores in {} are damaged"
        return [said.format(len(rows), what, self.path) for what, rows in found if rows]

    def _ids(self, texts: Sequence[tuple[bytes, bytes | None]], add: bool) -> IntArray:
        """`ids` of (digest, text to be kept or None)."""
        found = self._find(texts)
        lacking = [row for row in texts if row[0] not in found]
        if add and lacking:
            with self._writing() as db:
                db.executemany(
                    "INSERT INTO texts (digest, text, crc) VALUES (?, ?, 0) "
                    "ON CONFLICT DO UPDATE SET text = coalesce(text, excluded.text)",
                    lacking,
                )
                db.executemany(f"{_SIGN} digest = ?", [row[:1] for row in lacking])
                found |= self._find(lacking)
        known = {digest: -1 - place for place, (digest, _) in enumerate(texts)} | found
        return np.array([known[digest] for digest, _ in texts], dtype=np.int64)

    def _add(
        self,
        db: sqlite3.Connection,
        fingerprint: str,
        query: int,
        blocks: Sequence[_Block],
        ids: IntArray,
        scores: FloatArray,
    ) -> None:
        """Add a block of scores (b,) of new items to those of a query; many small ones join it."""
        small = [block for block in blocks if len(block.scores) < _SMALL]
        if len(small) >= _MANY:
            ids = np.concatenate([ids, *(block.ids for block in small)])
            scores = np.concatenate([scores, *(block.scores for block in small)])
            db.executemany("DELETE FROM blocks WHERE id = ?", [(block.row,) for block in small])
        order = np.argsort(ids)
        ids, start = ids[order], int(ids.min())
        dense = int(ids[-1]) - start + 1 == len(ids)
        items = None if dense else ids.astype("<i4").tobytes()
        row = query, start, items, scores[order].astype("<f4").tobytes()
        db.execute(
            "INSERT INTO blocks (scorer, query, start, items, scores, crc) "
            f"VALUES ({_SCORER}, ?, ?, ?, ?, ?)",
            (fingerprint, *row, _crc(fingerprint, *row)),
        )

    def _blocks(self, fingerprint: str, query: int) -> Iterator[_Block]:
        """The blocks of a query, checked."""
        if not isinstance(query, int):
            raise self._damaged("a block has no query")
        if query < 0:
            return
        for number, start, items, scores, crc in self._select(
            "SELECT id, start, items, scores, crc FROM blocks "
            f"WHERE scorer = {_SCORER} AND query = ? ORDER BY id",
            (fingerprint, query),
        ):
            if _crc(fingerprint, query, start, items, scores) != crc:
                raise self._damaged("a block of scores has another checksum")
            if (found := _parsed(start, items, scores)) is None:
                raise self._damaged("a block of scores is none")
            yield _Block(number, *found)

    def _find(self, texts: Sequence[tuple[bytes, bytes | None]]) -> dict[bytes, int]:
        """The ids of texts by digest; of one to be kept, only if it is."""
        found: dict[bytes, int] = {}
        for start in range(0, len(texts), _VARIABLES):
            part = dict(texts[start : start + _VARIABLES])
            rows = self._texts(f"digest IN ({','.join('?' * len(part))})", list(part))
            wanted = (row for row in rows if row[2] is not None or part.get(row[1]) is None)
            found |= {digest: number for number, digest, _ in wanted}
        return found

    def _texts(
        self, where: str, values: Sequence[Any]
    ) -> Iterator[tuple[int, bytes, bytes | None]]:
        """(id, digest, text if it is kept) of the texts that a condition chooses, checked."""
        for *row, crc in self._select(
            f"SELECT id, digest, text, crc FROM texts WHERE {where} ORDER BY id", values
        ):
            if _text_crc(*row) != crc:
                raise self._damaged("a text has another checksum")
            yield row[0], row[1], row[2]

    def _select(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """All rows; none if there is no file yet."""
        with running(), self._lock, self._translated(StoredScoresError, "cannot be read"):
            self._check_current()
            if self._connection is None and self.path is not None and not self._is_there():
                if not self.path.absolute().parent.is_dir():
                    raise StoredScoresError(
                        f"there is no folder {self.path.parent} to keep scores in"
                    )
                return []
            return self._opened().execute(statement, values).fetchall()

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction, or a part of that under way in this thread."""
        with running(), self._lock, self._translated(StoreFullError, "cannot be kept"):
            self._check_current()
            if self._only_read:
                self.close()
            db = self._opened(write=True)
            if db.in_transaction:
                yield db
                return
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:
                    db.execute("ROLLBACK")
                raise

    @contextmanager
    def _translated(self, kind: type[InputError], what: str) -> Iterator[None]:
        """SQLite's errors as one sentence: damage, or what cannot be done."""
        try:
            yield
        except sqlite3.IntegrityError as error:  # no text has a number above `_LARGEST_ID`
            raise StoreFullError(
                f"the scores in {self.path} cannot be kept: no numbers are left for new texts; "
                "move the file away, and scores are computed again"
            ) from error
        except sqlite3.OperationalError as error:
            why = " ".join(str(error).split())  # SQLite's messages have several lines
            raise kind(f"the scores in {self.path} {what}: {why}") from error
        except OSError as error:
            raise kind(f"the scores in {self.path} {what}: {error.strerror or error}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self._damaged(error) from error

    def _is_there(self) -> bool:
        """Whether there is a file; one without a byte, as a full disk leaves it, is none.

        Raises `InputError` if it, or what SQLite keeps beside it, is no regular file.
        """
        assert self.path is not None
        folder, name = self.path.absolute().parent, self.path.name
        for end in _BESIDE:
            is_file(folder, name + end)
        return is_file(folder, name) and self.path.stat().st_size > 0

    def _opened(self, *, write: bool = False) -> sqlite3.Connection:
        """The connection; turning WAL on does not wait for other processes that open the file.

        To read, the file is enough: a full disk or one without locks may refuse what SQLite wants
        to keep beside it.
        """
        if self._connection is not None and self._process != os.getpid():
            self._parents.append(self._connection)
            self._connection = None
        until, only_read = time.monotonic() + _BUSY_SECONDS, False
        if self._connection is None and self.path is not None:
            only_read = not has_locks(self.path.absolute().parent)  # SQLite would wait for them
            if only_read and (write or not self._is_there()):
                raise OSError(errno.ENOLCK, "its file system has no locks (No locks available)")
        while self._connection is None:
            db = self._connect(only_read)
            try:
                self._prepare(db)
                self._connection, self._process, self._only_read = db, os.getpid(), only_read
                self._file = 0 if self.path is None else self.path.stat().st_ino
            except BaseException as error:
                db.close()
                if "locked" in str(error) and time.monotonic() < until:
                    time.sleep(0.02)
                    continue
                refused = isinstance(error, sqlite3.OperationalError) and "locked" not in str(error)
                if not refused or write or only_read or self.path is None or not self._is_there():
                    raise
                only_read = True
        return self._connection

    def _connect(self, only_read: bool = False) -> sqlite3.Connection:
        name = "file::memory:"
        if self.path is not None:
            path = self.path.absolute()
            name = path.as_uri()
            there = self._is_there()
            if there and not os.access(path, os.R_OK):  # never opened: closing would drop its locks
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            if there and (only_read or not _may_change(path)):
                log = path.with_name(f"{path.name}-wal")
                unread = log.exists() and log.stat().st_size > 0
                name += "?mode=ro" if unread else "?immutable=1"
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
        db = sqlite3.connect(name, timeout=_BUSY_SECONDS, uri=True, **options)
        db.create_function("text_crc", 3, _text_crc)
        db.create_function("block_crc", 5, _block_crc)
        return db

    def _prepare(self, db: sqlite3.Connection) -> None:
        _distrust(db)
        db.execute("BEGIN")  # other processes may be making the tables
        asked = "PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master"
        known = [db.execute(statement).fetchone()[0] for statement in asked]
        tables = _tables(db)
        db.execute("COMMIT")
        if not any(known):
            db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                db.execute(statement)
            db.execute("COMMIT")
            db.execute("PRAGMA journal_mode = WAL")
        elif known[:2] != [_APPLICATION, _FORMAT]:
            raise InputError(
                f"{self.path} is a database, but holds no scores of crossknn in the format "
                f"{_FORMAT}: name another file"
            )
        elif tables not in (_own_tables(), _own_tables(days=True)):
            raise StoredScoresError(
                f"{self.path} has other tables, views or triggers than crossknn makes: it is not "
                "opened; move the file away, and scores are computed again"
            )
        # In WAL mode, NORMAL loses nothing when a process dies.
        db.execute("PRAGMA synchronous = NORMAL")

    def _damaged(self, what: object) -> StoredScoresError:
        why = " ".join(str(what).split())
        return StoredScoresError(
            f"the scores in {self.path} are damaged ({why}): remove what is damaged with  "
            "crossknn index verify --repair , or move the file away; it is scored again"
        )


def _grouped(queries: IntArray) -> Iterator[tuple[int, IntArray]]:
    """(query, places) of each different query, its places in order."""
    order = np.argsort(queries, kind="stable")
    different, first = np.unique(queries[order], return_index=True)
    if len(order):
        yield from zip(different.tolist(), np.split(order, first[1:]), strict=True)


def _may_change(path: Path) -> bool:
    """Whether this process may write the file and beside it, and no other name shares its bytes."""
    return path.stat().st_nlink == 1 and all(os.access(p, os.W_OK) for p in (path, path.parent))


def _distrust(db: sqlite3.Connection) -> None:
    """What SQLite advises for files of strangers: nothing in the schema may call or change it."""
    for statement in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        db.execute(f"PRAGMA {statement}")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_ROW)
    db.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000)
    if (set_config := getattr(db, "setconfig", None)) is not None:  # from Python 3.12
        for name, on in (("DEFENSIVE", True), ("ENABLE_TRIGGER", False), ("ENABLE_VIEW", False)):
            set_config(getattr(sqlite3, f"SQLITE_DBCONFIG_{name}"), on)


def _tables(db: sqlite3.Connection) -> list[tuple[str, ...]]:
    """What a database says that it is made of, but for the spaces."""
    found = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    return sorted(tuple(" ".join(str(value).split()) for value in row) for row in found)


def _limit() -> int:
    """`LIMIT`, or that of the environment."""
    given = os.environ.get("CROSSKNN_STORE_LIMIT")
    if given is None:
        return LIMIT
    if not given.isdecimal() or not int(given):
        raise InputError(f"CROSSKNN_STORE_LIMIT is {given!r}; give a number of MB, 1 or more")
    return int(given) * 2**20


@cache
def _own_tables(days: bool = False) -> list[tuple[str, ...]]:
    """What `_SCHEMA` makes, and `_DAYS`."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA + (f";{_DAYS}" if days else ""))
        return _tables(db)


def _parsed(start: Any, items: Any, scores: Any) -> tuple[IntArray, FloatArray] | None:
    """The ids (b,) of a block, ascending, and its scores (b,); None for what is no block."""
    try:
        found = np.frombuffer(scores, "<f4")
        if not 1 <= start <= _LARGEST_ID - len(found) + 1:
            return None
        ids = start + np.arange(len(found))
        if items is not None:
            ids = np.frombuffer(items, "<i4").astype(np.int64)
            if len(ids) != len(found) or ids[0] != start or (np.diff(ids) < 1).any():
                return None
    except (TypeError, ValueError, LookupError):
        return None
    return (ids, found) if len(found) and usable(found).all() else None


def _block_crc(fingerprint: Any, query: Any, start: Any, items: Any, scores: Any) -> int | None:
    """`_crc` of what is a block; None for what is none."""
    parsed = _parsed(start, items, scores)
    with suppress(UnicodeDecodeError):
        return None if parsed is None else _crc(fingerprint.decode(), query, start, items, scores)
    return None


def _crc(
    fingerprint: str, query: int, start: int, items: bytes | None, scores: bytes
) -> int | None:
    """The checksum of a block, and of whose scores it holds."""
    with suppress(TypeError, AttributeError, struct.error):  # what is damaged has other types
        head = fingerprint.encode() + struct.pack("<qq?", query, start, items is None)
        return zlib.crc32(scores, zlib.crc32(items or b"", zlib.crc32(head)))
    return None


def _text_crc(number: int, digest: bytes, text: bytes | None) -> int | None:
    with suppress(TypeError):
        if 1 <= number < _LARGEST_ID and len(digest) == 16:
            return zlib.crc32(text or b"", zlib.crc32(digest, number & 0xFFFFFFFF))
    return None
