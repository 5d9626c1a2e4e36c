"""The SQLite file of exact scores: opened safely, shared between processes, and checked on reading.

1. A killed process loses no transaction that it finished (WAL), and many processes of one host may
   read and write the file at the same time.
2. A file of a stranger runs nothing: its tables must be those that crossknn makes, with no view
   or trigger beside them, before anything is read from them.
3. Every text and every block of scores has a CRC-32, which is checked whenever it is read.
4. Whatever goes wrong is one sentence: `StoredScoresError` where scores cannot be read,
   `StoreFullError` where they cannot be written.
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
from contextlib import closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from crossknn.errors import InputError
from crossknn.files import is_file
from crossknn.linalg import running, usable
from crossknn.types import FloatArray, IntArray

LARGEST_ID = 2**31 - 1
"""Upper bound of text ids, which blocks store in four bytes."""

_APPLICATION = 0x786B6E6E  # "xknn"
_FORMAT = 4
_BUSY_SECONDS = 30.0
_LONGEST_ROW = 2**27  # bytes: a block of 16 million scores
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
PRAGMA user_version = {_FORMAT};
CREATE TABLE IF NOT EXISTS scorers (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS texts (id INTEGER PRIMARY KEY, digest BLOB NOT NULL UNIQUE, text BLOB,
    crc INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS blocks (id INTEGER PRIMARY KEY, scorer INTEGER NOT NULL,
    query INTEGER NOT NULL, start INTEGER NOT NULL, items BLOB, scores BLOB NOT NULL,
    crc INTEGER NOT NULL);
CREATE INDEX IF NOT EXISTS blocks_of ON blocks (scorer, query);
CREATE TABLE IF NOT EXISTS days (day TEXT PRIMARY KEY NOT NULL, block INTEGER NOT NULL)"""


SIGN = "UPDATE texts SET crc = text_crc(id, digest, text) WHERE"
"""Updates the checksums of the texts that a condition selects."""


class StoredScoresError(InputError):
    """The file of scores cannot be read, or is damaged."""


class StoreFullError(StoredScoresError):
    """Scores cannot be written: the disk is full, read-only or gone."""


class ScoreFile:
    """A connection to a file of scores, which is created at the first write; with the path None, to
    a database in memory."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.lock = path, threading.RLock()
        self.replaced = False
        """Whether the path now names another file, so that this connection is closed for good."""
        self._connection: sqlite3.Connection | None = None
        self._inode = self._process = 0  # of the connection
        self._read_only = False  # the connection
        self._parents: list[sqlite3.Connection] = []  # a fork may not even close its parent's

    def select(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a statement; none if there is no file yet."""
        with running(), self.lock, self.errors(StoredScoresError, "cannot be read"):
            self._check_not_replaced()
            if self._connection is None and self.path is not None and not self._exists():
                if not self.path.absolute().parent.is_dir():
                    raise StoredScoresError(
                        f"there is no folder {self.path.parent} to keep scores in"
                    )
                return []
            return self._open().execute(statement, values).fetchall()

    def number(self, statement: str) -> int:
        """Return the number that a statement selects; 0 if there is no file yet."""
        rows = self.select(statement)
        return int(rows[0][0]) if rows else 0

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Hold a transaction, or join the one that this thread has begun."""
        with running(), self.lock, self.errors(StoreFullError, "cannot be kept"):
            self._check_not_replaced()
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
        with self.lock, self.errors(StoreFullError, "cannot be kept"):
            db = self._open(write=True)
            db.execute("VACUUM")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def used_bytes(self) -> int:
        """Return the bytes in use, in the file or in memory."""
        pages, free, size = (
            self.number(f"PRAGMA {name}") for name in ("page_count", "freelist_count", "page_size")
        )
        return (pages - free) * size

    def look(self) -> bool:
        """Check whether the path now names another file or none; if so, close this one."""
        with running(), self.lock:
            if self._connection is not None and not self._connection.in_transaction:
                self.replaced = self.replaced or self._moved()
            if self.replaced:
                self.close()
        return self.replaced

    def close(self) -> None:
        """Close the connection; the next statement opens it again."""
        with self.lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def damaged(self, what: object) -> StoredScoresError:
        """Make the error that describes the damage and how to go on."""
        why = " ".join(str(what).split())
        return StoredScoresError(
            f"the scores in {self.path} are damaged ({why}): remove what is damaged with  "
            "crossknn index verify --repair , or move the file away; it is scored again"
        )

    @contextmanager
    def errors(self, kind: type[InputError], what: str) -> Iterator[None]:
        """Turn SQLite's errors into one sentence: either damage, or that the scores cannot be read
        or kept."""
        try:
            yield
        except sqlite3.IntegrityError as error:  # no text has an id above `LARGEST_ID`
            raise StoreFullError(
                f"the scores in {self.path} cannot be kept: no ids are left for new texts; "
                "move the file away, and scores are computed again"
            ) from error
        except sqlite3.OperationalError as error:
            why = " ".join(str(error).split())  # SQLite's messages have several lines
            raise kind(f"the scores in {self.path} {what}: {why}") from error
        except OSError as error:
            raise kind(f"the scores in {self.path} {what}: {error.strerror or error}") from error
        except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
            raise self.damaged(error) from error

    def _moved(self) -> bool:
        """Whether the path no longer names the opened file."""
        try:
            return self.path is not None and self.path.stat().st_ino != self._inode
        except FileNotFoundError:
            return True
        except OSError:
            return False  # a file that cannot be looked at may still be there

    def _check_not_replaced(self) -> None:
        if self.replaced:
            raise StoredScoresError(
                f"the scores in {self.path} were removed or replaced during the operation: "
                "repeat it"
            )

    def _exists(self) -> bool:
        """Whether the file exists; an empty one, which a full disk leaves, does not count.

        Raises `InputError` if the file, or one of SQLite's files beside it, is not a regular file.
        """
        assert self.path is not None
        folder, name = self.path.absolute().parent, self.path.name
        for beside in ("-wal", "-shm", "-journal"):
            is_file(folder, name + beside)
        return is_file(folder, name) and self.path.stat().st_size > 0

    def _open(self, *, write: bool = False) -> sqlite3.Connection:
        """Return the connection, opened if necessary.

        Reading needs only the file itself, because a full disk or one without locks may refuse the
        files that SQLite would create beside it. Turning on WAL does not wait for other processes
        that are opening the file, so it is retried for a while.
        """
        if self._connection is not None and self._process != os.getpid():
            self._parents.append(self._connection)
            self._connection = None
        until, read_only = time.monotonic() + _BUSY_SECONDS, False
        if self._connection is None and self.path is not None:
            read_only = not _has_locks(self.path.absolute().parent)  # SQLite would wait for them
            if read_only and (write or not self._exists()):
                raise OSError(errno.ENOLCK, "its file system has no locks (No locks available)")
        while self._connection is None:
            db = self._connect(read_only)
            try:
                self._prepare(db)
                self._connection, self._process, self._read_only = db, os.getpid(), read_only
                self._inode = 0 if self.path is None else self.path.stat().st_ino
            except BaseException as error:
                db.close()
                locked = "locked" in str(error)
                if locked and time.monotonic() < until:
                    time.sleep(0.02)
                    continue
                refused = isinstance(error, sqlite3.OperationalError) and not locked
                if not refused or write or read_only or self.path is None or not self._exists():
                    raise
                read_only = True
        return self._connection

    def _connect(self, read_only: bool) -> sqlite3.Connection:
        name = "file::memory:"
        if self.path is not None:
            path = self.path.absolute()
            name = path.as_uri()
            exists = self._exists()
            if exists and not os.access(path, os.R_OK):  # closing it would drop its locks
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
            if exists and (read_only or not _may_change(path)):
                log = path.with_name(f"{path.name}-wal")
                unread = log.exists() and log.stat().st_size > 0
                name += "?mode=ro" if unread else "?immutable=1"
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False}
        db = sqlite3.connect(name, timeout=_BUSY_SECONDS, uri=True, **options)
        db.create_function("text_crc", 3, text_crc)
        db.create_function("block_crc", 5, _checked_crc)
        return db

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


def _may_change(path: Path) -> bool:
    """Whether this process may write the file and its folder, and the file has no hard links."""
    return path.stat().st_nlink == 1 and all(os.access(p, os.W_OK) for p in (path, path.parent))


def _distrust(db: sqlite3.Connection) -> None:
    """Apply the settings that SQLite recommends for files of strangers: the schema may call or
    change nothing."""
    for statement in ("trusted_schema = OFF", "cell_size_check = ON", "mmap_size = 0"):
        db.execute(f"PRAGMA {statement}")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_ROW)
    db.setlimit(sqlite3.SQLITE_LIMIT_SQL_LENGTH, 100_000)
    if (set_config := getattr(db, "setconfig", None)) is not None:  # from Python 3.12
        for name, on in (("DEFENSIVE", True), ("ENABLE_TRIGGER", False), ("ENABLE_VIEW", False)):
            set_config(getattr(sqlite3, f"SQLITE_DBCONFIG_{name}"), on)


def _tables(db: sqlite3.Connection) -> list[tuple[str, ...]]:
    """Return the definitions of all tables, indexes, views and triggers, with normalized
    spacing."""
    rows = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    return sorted(tuple(" ".join(str(value).split()) for value in row) for row in rows)


@cache
def _own_tables() -> list[tuple[str, ...]]:
    """Return the definitions that `_SCHEMA` creates."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(_SCHEMA)
        return _tables(db)


def parsed_block(start: Any, items: Any, scores: Any) -> tuple[IntArray, FloatArray] | None:
    """Parse a block: its ids (b,), ascending, and scores (b,); None if it is invalid."""
    try:
        values = np.frombuffer(scores, "<f4")
        if not 1 <= start <= LARGEST_ID - len(values) + 1:
            return None
        ids = start + np.arange(len(values))
        if items is not None:
            ids = np.frombuffer(items, "<i4").astype(np.int64)
            if len(ids) != len(values) or ids[0] != start or (np.diff(ids) < 1).any():
                return None
    except (TypeError, ValueError, LookupError):
        return None
    return (ids, values) if len(values) and usable(values).all() else None


def _checked_crc(fingerprint: Any, query: Any, start: Any, items: Any, scores: Any) -> int | None:
    """Compute `block_crc` of a valid block; None for an invalid one."""
    parsed = parsed_block(start, items, scores)
    with suppress(UnicodeDecodeError):
        return (
            None if parsed is None else block_crc(fingerprint.decode(), query, start, items, scores)
        )
    return None


def block_crc(
    fingerprint: str, query: int, start: int, items: bytes | None, scores: bytes
) -> int | None:
    """Compute the checksum of a block, including its fingerprint and query."""
    with suppress(TypeError, AttributeError, struct.error):  # damaged values have other types
        head = fingerprint.encode() + struct.pack("<qq?", query, start, items is None)
        return zlib.crc32(scores, zlib.crc32(items or b"", zlib.crc32(head)))
    return None


def text_crc(number: int, digest: bytes, text: bytes | None) -> int | None:
    """Compute the checksum of a text and its id; None if it is invalid."""
    with suppress(TypeError):
        if 1 <= number < LARGEST_ID and len(digest) == 16:
            return zlib.crc32(text or b"", zlib.crc32(digest, number & 0xFFFFFFFF))
    return None


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
