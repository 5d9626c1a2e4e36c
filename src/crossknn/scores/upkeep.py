"""Maintain a store of scores: limit its size, drop old queries, and check for damaged rows."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence

import numpy as np

from crossknn.scores.database import (
    LARGEST_ID,
    ScoreFile,
    is_whole_text,
    parsed_block,
    text_crc,
)

_FILLED = 0.9


def make_room(file: ScoreFile, db: sqlite3.Connection, limit: int) -> None:
    """Drop the queries with the oldest scores, so that a tenth of the limit becomes free."""
    excess = file.used_bytes() - int(_FILLED * limit)
    oldest = db.execute(
        "SELECT query, sum(coalesce(length(scores), 0) + coalesce(length(items), 0)) "
        "FROM blocks GROUP BY query ORDER BY max(id)"
    ).fetchall()
    sizes = np.cumsum([size for _, size in oldest])
    count = min(int((sizes < excess).sum()) + 1, len(oldest) - 1)
    _drop(db, [query for query, _ in oldest[:count]])


def prune(file: ScoreFile, keep: int | None, private: bool) -> int:
    """Drop the scores of old queries, and return the number of queries; see `ScoreStore.prune`."""
    with file.writing() as db:
        db.execute("PRAGMA secure_delete = ON")
        rows = db.execute("SELECT query FROM blocks GROUP BY query ORDER BY max(id)").fetchall()
        dropped = [] if keep is None else [query for (query,) in rows[: max(0, len(rows) - keep)]]
        _drop(db, dropped)
        if private:
            db.execute("UPDATE queries SET text = NULL WHERE text IS NOT NULL")
    file.shrink()
    return len(dropped)


def _drop(db: sqlite3.Connection, queries: Sequence[int]) -> None:
    rows = [(query,) for query in queries]
    db.executemany("DELETE FROM blocks WHERE query = ?", rows)
    # Keep the largest id: otherwise a new query would get an id that another process may still use
    # for the old one.
    last = "(SELECT max(id) FROM queries)"
    db.executemany(f"DELETE FROM queries WHERE id = ? AND id < {last}", rows)
    db.executemany("UPDATE queries SET text = NULL WHERE id = ?", rows)


def verify(file: ScoreFile, repair: bool) -> list[str]:
    """Check every row; see `ScoreStore.verify`."""
    for (problem,) in file.select("PRAGMA quick_check"):
        if problem != "ok":
            raise file.damaged(problem)
    damaged: dict[str, list[int]] = {}
    for table in ("queries", "items"):
        rows = file.select(f"SELECT id, digest, text, crc FROM {table}")
        damaged[table] = [row[0] for row in rows if not is_whole_text(*row)]
    blocks = [row for (row,) in file.select("SELECT id FROM blocks")]
    damaged["blocks"] = [row for row in blocks if not _is_whole_block(file, row)]
    if repair and any(damaged.values()):
        with file.writing() as db:
            db.executemany("DELETE FROM blocks WHERE id = ?", [(r,) for r in damaged["blocks"]])
            for table in ("queries", "items"):
                db.execute(f"DELETE FROM {table} WHERE id NOT BETWEEN 1 AND {LARGEST_ID - 1}")
                for row in damaged[table]:  # keep the row, because blocks may refer to its id
                    digest = os.urandom(16)
                    changed = f"UPDATE {table} SET digest = ?, text = NULL, crc = ? WHERE id = ?"
                    db.execute(changed, (digest, text_crc(row, digest), row))
    return [
        f"{len(rows)} of the {table} of scores in {file.path} are damaged"
        for table, rows in damaged.items()
        if rows
    ]


def _is_whole_block(file: ScoreFile, block: int) -> bool:
    [row] = file.select(
        "SELECT CAST(fingerprint AS BLOB), query, start, items, scores, blocks.crc, "
        "queries.id, digest, text, queries.crc FROM blocks "
        "LEFT JOIN scorers ON scorers.id = scorer LEFT JOIN queries ON queries.id = query "
        "WHERE blocks.id = ?",
        [block],
    )
    return parsed_block(*row[:6]) is not None and is_whole_text(*row[6:])
