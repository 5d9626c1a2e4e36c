"""Maintain a store of scores: limit its size, drop old queries, and check for damaged rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress

import numpy as np

from crossknn.scores.database import LARGEST_ID, SIGN, ScoreFile
from crossknn.types import BoolArray

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


def prune(file: ScoreFile, keep: int | None, before: str | None, private: bool) -> int:
    """Drop the scores of old queries, and return their number; see `ScoreStore.prune`."""
    with file.writing() as db:
        db.execute("PRAGMA secure_delete = ON")
        rows = db.execute(
            "SELECT query, max(id) FROM blocks GROUP BY query ORDER BY max(id)"
        ).fetchall()
        excess = 0 if keep is None else max(0, len(rows) - keep)
        dropped = {query for query, _ in rows[:excess]}
        if before is not None:
            # The first block of each day: a query is older than a day if all its blocks are.
            days = db.execute(
                "SELECT day, block FROM days WHERE typeof(day) = 'text' "
                "AND typeof(block) = 'integer' ORDER BY day"
            ).fetchall()
            first = next((block for day, block in days if day >= before), rows[-1][1] + 1)
            dropped |= {query for query, newest in rows if newest < first}
        _drop(db, [*dropped])
        if private:
            db.execute("UPDATE texts SET text = NULL WHERE text IS NOT NULL")
            db.execute(f"{SIGN} 1")
    file.shrink()
    return len(dropped)


def _drop(db: sqlite3.Connection, queries: Sequence[int]) -> None:
    """Drop the scores of queries, and their texts unless they are also items of other scores."""
    scorers = [scorer for (scorer,) in db.execute("SELECT id FROM scorers").fetchall()]
    pairs = ((scorer, query) for query in queries for scorer in scorers)
    db.executemany("DELETE FROM blocks WHERE scorer = ? AND query = ?", pairs)
    # Keep the largest id in use: otherwise a new text would get an id that another process may
    # still use for the old text.
    (largest,) = db.execute("SELECT coalesce(max(id), 0) FROM texts").fetchone()
    ordered = np.sort(np.array([q for q in queries if isinstance(q, int)], np.int64))
    used: BoolArray = ordered == largest
    for start, items, size in db.execute("SELECT start, items, length(scores) FROM blocks"):
        with suppress(TypeError, ValueError, OverflowError):  # what is no block names no text
            if items is None:
                used |= (ordered >= start) & (ordered < start + size // 4)
            else:
                used |= np.isin(ordered, np.frombuffer(items, "<i4"))
    unused = [(query,) for query in ordered[~used].tolist()]
    db.executemany("DELETE FROM texts WHERE id = ?", unused)
    kept = [(query,) for query in ordered[used].tolist()]
    db.executemany("UPDATE texts SET text = NULL WHERE id = ?", kept)
    db.executemany(f"{SIGN} id = ?", kept)


def verify(file: ScoreFile, repair: bool) -> list[str]:
    """Check every row; see `ScoreStore.verify`."""
    for (said,) in file.select("PRAGMA quick_check"):
        if said != "ok":
            raise file.damaged(said)
    texts = file.select("SELECT id FROM texts WHERE crc IS NOT text_crc(id, digest, text)")
    blocks = file.select(
        "SELECT blocks.id FROM blocks LEFT JOIN scorers ON scorers.id = scorer "
        "LEFT JOIN texts ON texts.id = query WHERE fingerprint IS NULL "
        "OR texts.crc IS NOT text_crc(texts.id, digest, text) "
        "OR blocks.crc IS NOT block_crc(CAST(fingerprint AS BLOB), query, start, items, scores)"
    )
    if repair and (texts or blocks):
        with file.writing() as db:
            db.executemany("DELETE FROM blocks WHERE id = ?", blocks)
            db.execute(f"DELETE FROM texts WHERE id NOT BETWEEN 1 AND {LARGEST_ID - 1}")
            # Keep the row, because blocks may refer to the text's id.
            other = "UPDATE texts SET digest = randomblob(16), text = NULL WHERE id = ?"
            db.executemany(other, texts)
            db.executemany(f"{SIGN} id = ?", texts)
    damages = ("texts", texts), ("blocks", blocks)
    return [
        f"{len(rows)} of the {what} of scores in {file.path} are damaged"
        for what, rows in damages
        if rows
    ]
