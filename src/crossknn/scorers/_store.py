"""The SQLite file behind the score cache."""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from crossknn.checks import as_path
from crossknn.errors import InputError

logger = logging.getLogger(__name__)

_APPLICATION = 0x786B6E6E  # "xknn"
_FORMAT = 1
_BUSY_SECONDS = 30.0
_VARIABLES = 500

_SCHEMA = """
CREATE TABLE IF NOT EXISTS models (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS queries (hash BLOB PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS scores (
    model INTEGER NOT NULL, query BLOB NOT NULL, item BLOB NOT NULL, score REAL NOT NULL,
    PRIMARY KEY (model, query, item)
) WITHOUT ROWID;
"""


def text_hash(text: str) -> bytes:
    """16 bytes that stand for a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


class ScoreStore:
    """Scores by (fingerprint, query hash, item hash), in one SQLite file in WAL mode.

    May be used from many threads and, each with its own object, from many processes of one host.
    """

    def __init__(self, path: str | Path, fingerprint: str) -> None:
        """Raises InputError if the file cannot be opened, is damaged or is something else."""
        self.path = as_path(path, "the file of the cache")
        self._fingerprint = fingerprint
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._warned = False
        self._parents: sqlite3.Connection | None = None
        self._db: sqlite3.Connection | None = self._open()
        self._model = self._model_id()

    def close(self) -> None:
        """Close the file. The store opens it again if it is used again."""
        with self._lock:
            if self._db is not None and self._process == os.getpid():
                self._db.close()
            self._db = None

    def get(self, query: bytes, items: Sequence[bytes]) -> dict[bytes, float]:
        """Known scores of a query's items, by item hash."""
        found: dict[bytes, float] = {}
        with self._lock:
            db = self._connection()
            try:
                for start in range(0, len(items), _VARIABLES):
                    part = items[start : start + _VARIABLES]
                    marks = ",".join("?" * len(part))
                    found.update(
                        db.execute(
                            f"SELECT item, score FROM scores WHERE model = ? AND query = ? "
                            f"AND item IN ({marks})",
                            (self._model, query, *part),
                        )
                    )
            except sqlite3.DatabaseError as error:
                raise self._damaged(error) from error
        return found

    def put(
        self, scores: Iterable[tuple[bytes, bytes, float]], queries: Iterable[tuple[bytes, str]]
    ) -> None:
        """Write (query hash, item hash, score) and (query hash, text) in one transaction.

        A score is worth more than its place in the cache: a full disk or a lock that does not
        go away is logged once, and the search goes on.
        """
        with self._lock:
            db = self._connection()
            try:
                db.execute("BEGIN IMMEDIATE")
                try:
                    db.executemany(
                        "INSERT OR REPLACE INTO scores VALUES (?, ?, ?, ?)",
                        ((self._model, *row) for row in scores),
                    )
                    db.executemany("INSERT OR IGNORE INTO queries VALUES (?, ?)", queries)
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:
                        db.execute("ROLLBACK")
                    raise
            except sqlite3.OperationalError as error:
                if not self._warned:
                    logger.warning("scores are not being kept in %s: %s", self.path, error)
                self._warned = True
            except sqlite3.DatabaseError as error:
                raise self._damaged(error) from error

    def pairs(self) -> Iterator[tuple[str, bytes, float]]:
        """(query text, item hash, score) of every pair whose query's text was kept, in an order
        that what was put when does not change."""
        with self._lock:
            try:
                yield from self._connection().execute(
                    "SELECT text, item, score FROM scores JOIN queries ON hash = query "
                    "WHERE model = ? ORDER BY query, item",
                    (self._model,),
                )
            except sqlite3.DatabaseError as error:
                raise self._damaged(error) from error

    def query_texts(self) -> list[str]:
        """Every query text kept so far, of all models."""
        with self._lock:
            rows = self._connection().execute("SELECT text FROM queries").fetchall()
        return [text for (text,) in rows]

    def _connection(self) -> sqlite3.Connection:
        if self._process != os.getpid():
            # After a fork the connection belongs to the parent: not to be used, nor closed, here.
            self._parents = self._db
            self._process, self._db = os.getpid(), None
        if self._db is None:
            self._db = self._open()
        return self._db

    def _open(self) -> sqlite3.Connection:
        deadline = time.monotonic() + _BUSY_SECONDS
        while True:
            db = None
            try:
                db = sqlite3.connect(
                    self.path,
                    timeout=_BUSY_SECONDS,
                    isolation_level=None,
                    check_same_thread=False,
                )
                self._prepare(db)
                return db
            except (sqlite3.Error, InputError) as error:
                if db is not None:
                    db.close()
                if isinstance(error, InputError):
                    raise
                # Turning WAL on does not wait for other processes that are opening the file.
                if "locked" in str(error) and time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                if isinstance(error, sqlite3.OperationalError):
                    raise InputError(f"cannot open the score cache {self.path}: {error}") from error
                raise self._damaged(error) from error

    def _prepare(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        try:
            (application,) = db.execute("PRAGMA application_id").fetchone()
            (version,) = db.execute("PRAGMA user_version").fetchone()
            (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
            if application != _APPLICATION and (tables or application or version):
                raise InputError(f"{self.path} is a database, but not a crossknn score cache")
            if version > _FORMAT:
                raise InputError(
                    f"the score cache {self.path} has format {version}; this version of crossknn "
                    f"reads up to {_FORMAT}: upgrade crossknn"
                )
            if not tables:
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
                db.execute(f"PRAGMA application_id = {_APPLICATION}")
                db.execute(f"PRAGMA user_version = {_FORMAT}")
        finally:
            db.execute("COMMIT")
        db.execute("PRAGMA journal_mode = WAL")
        # In WAL mode, NORMAL loses nothing when a process dies.
        db.execute("PRAGMA synchronous = NORMAL")

    def _model_id(self) -> int:
        with self._lock:
            db = self._connection()
            find = "SELECT id FROM models WHERE fingerprint = ?"
            try:
                row = db.execute(find, (self._fingerprint,)).fetchone()
                if row is None:
                    add = "INSERT OR IGNORE INTO models (fingerprint) VALUES (?)"
                    db.execute(add, (self._fingerprint,))
                    row = db.execute(find, (self._fingerprint,)).fetchone()
            except sqlite3.DatabaseError as error:
                raise self._damaged(error) from error
        return int(row[0])

    def _damaged(self, error: Exception) -> InputError:
        return InputError(
            f"{self.path} is not a readable score cache ({error}): move it away or name another"
        )
