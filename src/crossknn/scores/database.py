"""The SQLite file of exact scores: opened safely, shared between processes, and checked on reading.

1. A killed process loses no finished transaction (WAL), and many processes of one host share the
file.
2. A stranger's file executes no code: before anything is read, a file is refused unless it has
exactly the tables that crossknn makes, and no view or trigger.
3. Every text and every block of scores has a CRC-32, which is checked whenever it is read.
4. Every fault is a `StoredScoresError` where scores cannot be read, a `StoreFullError` where they
cannot be written.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.files import is_file, text_digest
from crossknn.linalg import running, usable
from crossknn.types import FloatArray, IntArray

LARGEST_ID = 2**31 - 1
"""Upper bound of the ids of texts, which blocks store in four bytes."""

_APPLICATION = 0x786B6E6E  # "xknn"
_FORMAT = 6
_BUSY_SECONDS = 30.0
_LONGEST_ROW = 2**27  # bytes: a block of 16 million scores
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_FORMAT};
CREATE TABLE scorers (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE);
CREATE TABLE queries (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text BLOB,
    crc INTEGER NOT NULL);
CREATE TABLE items (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text BLOB,
    crc INTEGER NOT NULL);
CREATE TABLE blocks (id INTEGER PRIMARY KEY, scorer INTEGER NOT NULL, query INTEGER NOT NULL,
    start INTEGER NOT NULL, items BLOB, scores BLOB NOT NULL,
    crc INTEGER NOT NULL);
CREATE INDEX blocks_of ON blocks (query, scorer)"""


class StoredScoresError(InputError):
    """The file of scores cannot be read, or is damaged."""


class StoreFullError(StoredScoresError):
    """Scores cannot be written: the disk is full, read-only or gone."""


class ScoreFile:
    """A connection to a file of scores, which is created at the first write; with the path None, to
    a database in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.replaced = path, False
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = self._process = 0  # of the connection
        self._read_only = False  # the connection
        self._parents: list[sqlite3.Connection] = []  # a fork may not even close its parent's

    def select(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows that a statement selects; [] if there is no file yet."""
        with self._using(StoredScoresError, "cannot be read"):
            if self._connection is None and self.path is not None and not self._exists():
                if not self.path.absolute().parent.is_dir():
                    raise StoredScoresError(f"there is no folder {self.path.parent} for scores")
                return []
            return self._open().execute(statement, values).fetchall()

    def number(self, statement: str) -> int:
        """Return the number that a statement selects; 0 if there is no file yet."""
        rows = self.select(statement)
        return int(rows[0][0]) if rows else 0

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold a transaction, or join the one that this thread has begun."""
        with self._using(StoreFullError, "cannot be kept"):
            if self._read_only:
                self.close()
            db = self._open(write=True)
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

    def shrink(self) -> None:
        """Return the space of deleted rows to the disk."""
        with self._using(StoreFullError, "cannot be kept"):
            db = self._open(write=True)
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def copy_to(self, path: Path) -> None:
        """Copy everything to a file that does not exist."""
        with self._using(StoredScoresError, "cannot be read"):
            other = ScoreFile(path)
            with other._using(StoreFullError, "cannot be kept"):
                self._open().backup(other._open(write=True))
                other.close()

    def used_bytes(self) -> int:
        """Return the bytes in use, in the file or in memory."""
        pages, free, size = (
            self.number(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def is_replaced(self) -> bool:
        """Whether the path now names another file or none; if so, this one is closed for good."""
        with running(), self._lock:
            if self._connection is not None and not self._connection.in_transaction:
                try:
                    moved = self.path is not None and self.path.stat().st_ino != self._inode
                except OSError as error:  # a file that cannot be looked at may still be there
                    moved = isinstance(error, FileNotFoundError)
                self.replaced = self.replaced or moved
            if self.replaced:
                self.close()
        return self.replaced

    def close(self) -> None:
        """Close the connection; the next statement opens it again."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def damaged(self, why: object) -> StoredScoresError:
        """Make the error that describes the damage and how to go on."""
        return StoredScoresError(
            f"the scores in {self.path} are damaged ({_line(why)}): remove what is damaged with  "
            "crossknn index verify --repair , or move the file away; lost scores are computed again"
        )

    @contextmanager
    def _using(self, kind: type[InputError], what: str) -> Iterator[None]:
        """Hold the lock, and turn SQLite's errors into a sentence."""
        try:
            with running(), self._lock:
                if self.replaced:
                    raise StoredScoresError(
                        f"the scores in {self.path} were removed or replaced during the "
                        "operation: repeat it"
                    )
                yield
        except (sqlite3.OperationalError, OSError) as error:
            why = getattr(error, "strerror", None) or _line(error)
            raise kind(f"the scores in {self.path} {what}: {why}") from error
        except sqlite3.DatabaseError as error:
            raise self.damaged(error) from error

    def _exists(self) -> bool:
        """Whether the file exists; an empty file, which a full disk leaves, counts as missing."""
        assert self.path is not None
        folder, name = self.path.absolute().parent, self.path.name
        for beside in ("-wal", "-shm", "-journal"):
            is_file(folder, name + beside)  # InputError for a link
        return is_file(folder, name) and self.path.stat().st_size > 0

    def _open(self, *, write: bool = False) -> sqlite3.Connection:
        """Return the connection, opened if necessary.

        Reading needs only the file itself, because a full disk or one without locks may refuse the
        files that SQLite would create beside it.
        """
        if self._connection is not None and self._process != os.getpid():
            self._parents.append(self._connection)
            self._connection = None
        if self._connection is None:
            # Where there are no locks, SQLite would wait for them.
            read_only = self.path is not None and not _has_locks(self.path.absolute().parent)
            if read_only and (write or not self._exists()):
                raise OSError(errno.ENOLCK, "its file system has no locks (No locks available)")
            try:
                self._connection = self._connected(read_only)
            except sqlite3.OperationalError:
                if write or read_only or self.path is None or not self._exists():
                    raise
                read_only = True
                self._connection = self._connected(read_only)
            self._process, self._read_only = os.getpid(), read_only
            self._inode = 0 if self.path is None else self.path.stat().st_ino
        return self._connection

    def _connected(self, read_only: bool) -> sqlite3.Connection:
        """Connect. Turning on WAL does not wait for other processes that open the file, so it is
        retried for a while."""
        until = time.monotonic() + _BUSY_SECONDS
        while True:
            db = self._connect(read_only)
            try:
                self._prepare(db)
                return db
            except BaseException as error:
                db.close()
                if "locked" not in str(error) or time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def _connect(self, read_only: bool) -> sqlite3.Connection:
        name = "file::memory:"
        if self.path is not None:
            path = self.path.absolute()
            name = path.as_uri()
            exists = self._exists()
            if exists and not os.access(path, os.R_OK):  # closing it would drop its locks
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            may_write = all(os.access(place, os.W_OK) for place in (path, path.parent))
            if exists and (read_only or not may_write or path.stat().st_nlink > 1):
                log = path.with_name(f"{path.name}-wal")
                unread = log.exists() and log.stat().st_size > 0
                name += "?mode=ro" if unread else "?immutable=1"
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
        return sqlite3.connect(name, timeout=_BUSY_SECONDS, uri=True, **options)

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Create the tables of a new file; `InputError` if an existing file has other tables."""
        _distrust(db)
        db.execute("BEGIN")  # other processes may be making the tables
        asked = "PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master"
        signs = [db.execute(statement).fetchone()[0] for statement in asked]
        tables = _tables(db)
        db.execute("COMMIT")
        if not any(signs):
            db.execute("BEGIN IMMEDIATE")
            if not _tables(db):
                for statement in _SCHEMA.split(";"):
                    db.execute(statement)
            db.execute("COMMIT")
            db.execute("PRAGMA journal_mode = WAL")
        elif signs[:2] != [_APPLICATION, _FORMAT]:
            raise InputError(
                f"{self.path} is a database, but holds no scores of crossknn in the format "
                f"{_FORMAT}: name another file"
            )
        elif tables != _own_tables():
            raise StoredScoresError(
                f"{self.path} has other tables, views or triggers than crossknn makes: it is not "
                "opened; move the file away, and scores are computed again"
            )
        # In WAL mode, NORMAL loses no finished transaction when a process dies.
        db.execute("PRAGMA synchronous = NORMAL")


def _line(error: object) -> str:
    """Join the lines of a message from SQLite."""
    return " ".join(str(error).split())


def _distrust(db: sqlite3.Connection) -> None:
    """Apply the settings that SQLite recommends for files from strangers: the file's schema may
    neither call functions nor change anything."""
    for statement in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        db.execute(f"PRAGMA {statement}")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_ROW)
    db.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000)
    if (set_config := getattr(db, "setconfig", None)) is not None:  # from Python 3.12
        for name, on in (("DEFENSIVE", True), ("ENABLE_TRIGGER", False), ("ENABLE_VIEW", False)):
            set_config(getattr(sqlite3, f"SQLITE_DBCONFIG_{name}"), on)


def _tables(db: sqlite3.Connection) -> list[tuple[str, ...]]:
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    return sorted(tuple(_line(value) for value in row) for row in rows)


@cache
def _own_tables() -> list[tuple[str, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA)
        return _tables(db)


def parsed_block(
    fingerprint: bytes, query: Any, start: Any, items: Any, scores: Any, crc: Any
) -> tuple[IntArray, FloatArray] | None:
    """Parse a block: ids (b,) of items, ascending, and scores (b,); None if it is damaged."""
    try:
        values, ids = np.frombuffer(scores, "<f4"), np.empty(0, np.int64)
        if items is not None:
            ids = np.frombuffer(items, "<i4").astype(np.int64)
        elif 1 <= start <= LARGEST_ID - len(values) + 1:
            ids = start + np.arange(len(values))
        whole = (
            block_crc(fingerprint, query, start, items, scores) == crc
            and len(ids) == len(values) > 0
            and start == ids[0] >= 1
            and (items is None or (np.diff(ids) >= 1).all())
            and usable(values).all()
        )
    except (TypeError, ValueError, struct.error):  # damaged values have other types
        return None
    return (ids, values) if whole else None


def block_crc(
    fingerprint: bytes, query: int, start: int, items: bytes | None, scores: bytes
) -> int:
    """Compute the checksum of a block, including its fingerprint and query."""
    head = fingerprint + struct.pack("<qq?", query, start, items is None)
    return zlib.crc32(scores, zlib.crc32(items or b"", zlib.crc32(head)))


def text_crc(number: int, digest: bytes) -> int:
    """Compute the checksum of a text's id and digest."""
    return zlib.crc32(digest, number)


def is_whole_text(number: int, digest: Any, text: Any, crc: Any) -> bool:
    """Whether the row of a text is undamaged: a stored text must match the digest in the row."""
    try:
        known = text is None or text_digest(text.decode("utf-8", "surrogatepass")) == digest
        return known and 1 <= number < LARGEST_ID and text_crc(number, digest) == crc
    except (TypeError, AttributeError, UnicodeDecodeError):  # damaged values have other types
        return False


def _has_locks(folder: Path) -> bool:
    """Whether a folder's file system supports locks; some network file systems do not."""
    if os.name == "nt":
        return True
    import fcntl

    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_UN)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
