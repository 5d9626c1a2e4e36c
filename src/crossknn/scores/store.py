"""A file of exact scores, so that no pair of texts is scored twice by the same cross-encoder.

A score belongs to a cross-encoder (its fingerprint), a query and an item (their texts). A text is
stored once, as a digest with an id; a block holds the scores of one query with many items (format:
`docs/reference/formats.md`). 10^8 pairs of 1,000 queries take 400 MB, 3 s to write and 1 s to read.
Axes: q queries, n items, t texts, p pairs, b scores of a block.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.files import as_path, text_digest
from crossknn.linalg import usable
from crossknn.scores.database import (
    LARGEST_ID,
    ScoreFile,
    StoreFullError,
    block_crc,
    is_whole_text,
    parsed_block,
    text_crc,
)
from crossknn.scores.sparse import SparseScores
from crossknn.types import FloatArray, IntArray, Pairs

LIMIT = 2 * 2**30
"""Maximum size of a store in bytes; when it is full, the queries with the oldest scores are
dropped. `CROSSKNN_STORE_LIMIT` in the environment sets another limit, in MB."""

TextTable = Literal["queries", "items"]
_SCORER = "(SELECT id FROM scorers WHERE fingerprint = ?)"
_VARIABLES = 500  # of one statement
_FILLED = 0.9  # share of the limit that stays in use when the oldest scores are dropped
_LARGER, _LARGEST = 4, 2**20
"""New scores are merged with the query's last blocks of up to so many times their number."""


class Block(NamedTuple):
    """Scores (b,) of a query with the items of these ids (b,), ascending."""

    row: int
    ids: IntArray
    scores: FloatArray

    def find(self, wanted: IntArray, into: FloatArray) -> None:
        """Copy the scores of the `wanted` items (p,) in this block to the array `into` (p,)."""
        at = np.minimum(np.searchsorted(self.ids, wanted), len(self.ids) - 1)
        here = self.ids[at] == wanted
        into[here] = self.scores[at[here]]


class ScoreTable(ScoreFile):
    """The texts and blocks of scores in an opened file. Ids belong to this file: after it was
    replaced by another, reading and writing raise `StoredScoresError`."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path)
        megabytes = os.environ.get("CROSSKNN_STORE_LIMIT", str(LIMIT >> 20))
        if not megabytes.isdecimal() or not int(megabytes):
            raise InputError(f"CROSSKNN_STORE_LIMIT is {megabytes!r}; give a number of MB above 0")
        self.limit = int(megabytes) << 20

    def ids(
        self, table: TextTable, texts: Sequence[str], *, add: bool = False, keep: bool = False
    ) -> IntArray:
        """Return the ids (t,) of texts, negative for a text without an id; `add` gives new texts
        ids, and `keep` stores the new texts as well as their digests."""
        digests = list(map(text_digest, texts))
        ids = self._find(table, digests)
        if add and any(digest not in ids for digest in digests):
            with self.writing() as db:
                ids = self._find(table, digests)  # another process may have added some
                (largest,) = db.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchone()
                new = {d: text for d, text in zip(digests, texts, strict=True) if d not in ids}
                if largest + len(new) >= LARGEST_ID:
                    raise StoreFullError(
                        f"the scores in {self.path} cannot be kept: no ids are left for new texts; "
                        "move the file away, and scores are computed again"
                    )
                ids |= {digest: number for number, digest in enumerate(new, largest + 1)}
                kept = (t.encode("utf-8", "surrogatepass") if keep else None for t in new.values())
                rows = ((ids[d], d, t, text_crc(ids[d], d)) for d, t in zip(new, kept, strict=True))
                db.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?)", rows)
        numbers = {digest: -1 - place for place, digest in enumerate(digests)} | ids
        return np.array([numbers[digest] for digest in digests], np.int64)

    def pair_ids(
        self,
        queries: Sequence[str],
        items: Sequence[str],
        pairs: Pairs,
        *,
        add: bool = False,
        keep: bool = False,
    ) -> tuple[IntArray, IntArray]:
        """Return the ids (p,) of the queries and of the items of p pairs, as from `ids`; `keep`
        stores the queries' texts."""
        rows, query = np.unique(pairs.query, return_inverse=True)
        asked = [str(queries[q]) for q in rows.tolist()]
        rows, item = np.unique(pairs.item, return_inverse=True)
        item_ids = self.ids("items", [str(items[i]) for i in rows.tolist()], add=add)
        return self.ids("queries", asked, add=add, keep=keep)[query], item_ids[item]

    def lookup(self, fingerprint: str, queries: IntArray, items: IntArray) -> FloatArray:
        """Look up exact scores (p,) by the ids (p,) of their texts, NaN if there is none."""
        scores = np.full(len(queries), np.nan, np.float32)
        for query, places in _grouped(queries):
            row = scores[places]
            for block in self.blocks(fingerprint, query):
                block.find(items[places], row)
            scores[places] = row
        return scores

    def insert(
        self, fingerprint: str, queries: IntArray, items: IntArray, scores: FloatArray
    ) -> int:
        """Store scores (p,) by the ids (p,) of their texts in one transaction, and return the
        number of new pairs. Existing scores are kept."""
        values = np.asarray(scores, np.float32)
        if len(bad := values[~usable(values)]):
            raise ScorerError(f"a score is {bad[0]}: it cannot be stored")
        added = 0
        with self.writing() as db:
            db.execute("INSERT OR IGNORE INTO scorers (fingerprint) VALUES (?)", (fingerprint,))
            for query, places in _grouped(queries):
                ids, first = np.unique(items[places], return_index=True)
                before, blocks = np.full(len(ids), np.nan), list(self.blocks(fingerprint, query))
                for block in blocks:
                    block.find(ids, before)
                if not (new := np.isnan(before)).any():
                    continue
                added += int(new.sum())
                ids, new_scores = ids[new], values[places][first[new]]
                while blocks and len(blocks[-1].ids) <= min(_LARGER * len(ids), _LARGEST):
                    last = blocks.pop()
                    ids = np.concatenate([ids, last.ids])
                    new_scores = np.concatenate([new_scores, last.scores])
                    db.execute("DELETE FROM blocks WHERE id = ?", (last.row,))
                order = np.argsort(ids)
                ids, start = ids[order], int(ids.min())
                dense = int(ids[-1]) - start + 1 == len(ids)  # then the ids need not be stored
                stored_ids = None if dense else ids.astype("<i4").tobytes()
                row = start, stored_ids, new_scores[order].astype("<f4").tobytes()
                crc = block_crc(fingerprint.encode(), query, *row)
                db.execute(
                    "INSERT INTO blocks (scorer, query, start, items, scores, crc) "
                    f"VALUES ({_SCORER}, ?, ?, ?, ?, ?)",
                    (fingerprint, query, *row, crc),
                )
            if added and self.used_bytes() > self.limit:
                self._make_room(db)
        return added

    def blocks(self, fingerprint: str, query: int) -> Iterator[Block]:
        """Read the blocks of a query and check them."""
        if not isinstance(query, int):
            raise self.damaged("a block has no query")
        rows = self.select(
            "SELECT id, start, items, scores, crc FROM blocks "
            f"WHERE scorer = {_SCORER} AND query = ? ORDER BY id",
            (fingerprint, query),
        )
        for row, *stored in rows if query > 0 else ():
            if (parsed := parsed_block(fingerprint.encode(), query, *stored)) is None:
                raise self.damaged("checksum mismatch in a block of scores")
            yield Block(row, *parsed)

    def texts(
        self, statement: str, values: Sequence[Any]
    ) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Yield (id, digest, text or None) of the texts whose rows a statement selects; check the
        rows (id, digest, text, crc)."""
        for row in self.select(statement, values):
            if not is_whole_text(*row):
                raise self.damaged("checksum mismatch in a text")
            yield row[:3]

    def _make_room(self, db: sqlite3.Connection) -> None:
        excess = self.used_bytes() - int(_FILLED * self.limit)
        oldest = db.execute(
            "SELECT query, sum(coalesce(length(scores), 0) + coalesce(length(items), 0)) "
            "FROM blocks GROUP BY query ORDER BY max(id)"
        ).fetchall()
        sizes = np.cumsum([size for _, size in oldest])
        count = min(int((sizes < excess).sum()) + 1, len(oldest) - 1)
        self.drop([query for query, _ in oldest[:count]])

    def drop(self, queries: Sequence[int]) -> None:
        """Drop the scores and texts of queries."""
        rows = [(query,) for query in queries]
        with self.writing() as db:
            db.executemany("DELETE FROM blocks WHERE query = ?", rows)
            # Keep the largest id: otherwise a new query would get an id that another process may
            # still use for the old one.
            last = "(SELECT max(id) FROM queries)"
            db.executemany(f"DELETE FROM queries WHERE id = ? AND id < {last}", rows)
            db.executemany("UPDATE queries SET text = NULL WHERE id = ?", rows)

    def is_whole_block(self, block: int) -> bool:
        """Whether a block of scores and the text of its query are undamaged, or not there."""
        rows = self.select(
            "SELECT CAST(fingerprint AS BLOB), query, start, items, scores, blocks.crc, "
            "queries.id, digest, text, queries.crc FROM blocks "
            "LEFT JOIN scorers ON scorers.id = scorer LEFT JOIN queries ON queries.id = query "
            "WHERE blocks.id = ?",
            [block],
        )
        return all(parsed_block(*row[:6]) and is_whole_text(*row[6:]) for row in rows)

    def _find(self, table: TextTable, digests: Sequence[bytes]) -> dict[bytes, int]:
        ids: dict[bytes, int] = {}
        for start in range(0, len(digests), _VARIABLES):
            asked = digests[start : start + _VARIABLES]
            places = ",".join("?" * len(asked))
            statement = f"SELECT id, digest, NULL, crc FROM {table} WHERE digest IN ({places})"
            ids |= {digest: number for number, digest, _ in self.texts(statement, asked)}
        return ids


class ScoreStore(AbstractContextManager["ScoreStore"]):
    """Exact scores by (fingerprint, query text, item text), in the file `path`, which is created
    with the first score, or in memory.

    Many threads may share one object, and many processes of one host the same file. Reading raises
    `InputError` for a damaged or foreign file; writing raises `StoreFullError` if the disk is full.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        self.path = None if path is None else as_path(path, "the file of scores")
        self.private = os.environ.get("CROSSKNN_PRIVATE", "0") not in ("", "0")
        """Whether new queries are stored only as digests, from which fits cannot learn."""
        self.unnamed: dict[int, object] = {}
        """Scorers without a fingerprint, kept alive as long as their scores are in memory."""
        self._lock, self._table = threading.Lock(), ScoreTable(self.path)
        len(self)  # reads the file

    def table(self) -> ScoreTable:
        """The table of the file that is now at the path, or will be created with the next score."""
        with self._lock:
            if self._table.is_replaced():
                self._table = ScoreTable(self.path)
            return self._table

    def close(self) -> None:
        """Close the file; it is opened again when the store is used again."""
        self._table.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of scores, of all cross-encoders."""
        return self.table().number("SELECT coalesce(sum(length(scores)), 0) FROM blocks") // 4

    def put(
        self,
        fingerprint: str,
        queries: Sequence[str],
        items: Sequence[str],
        pairs: Pairs,
        scores: FloatArray,
    ) -> int:
        """Store exact scores, and return the number of new pairs; existing scores are unchanged.

        Args:
            fingerprint: The cross-encoder's fingerprint.
            queries, items, pairs: Texts, and p pairs of positions in them.
            scores: Their scores (p,), raw logits.
        """
        table = self.table()
        with table.writing():
            ids = table.pair_ids(queries, items, pairs, add=True, keep=not self.private)
            return table.insert(fingerprint, *ids, scores)

    def rows(self, fingerprint: str, queries: Sequence[str], items: Sequence[str]) -> FloatArray:
        """Look up the exact scores (q, n) float32 of all pairs of texts, NaN if there is none.

        Args:
            fingerprint: The cross-encoder's fingerprint.
            queries, items: Texts (q) and (n).
        """
        table = self.table()
        ids = table.ids("items", items)
        scores = np.full((len(queries), len(items)), np.nan, np.float32)
        for row, query in enumerate(table.ids("queries", queries).tolist()):
            for block in table.blocks(fingerprint, query):
                block.find(ids, scores[row])
        return scores

    def sparse_scores(
        self, fingerprint: str, items: Sequence[str], queries: Sequence[str] | None = None
    ) -> SparseScores:
        """All exact scores by a cross-encoder of the items with these texts (n), and of these
        queries, by default all that have a score. Items with equal texts have equal scores.

        Args:
            fingerprint: The cross-encoder's fingerprint.
            items, queries: Texts.
        """
        texts = sorted(self.queries(fingerprint)) if queries is None else list(queries)
        table = self.table()
        ids, none = table.ids("items", items), np.empty(0, np.int64)
        by_id = np.argsort(ids, kind="stable")
        ordered = ids[by_id]
        rows, columns, scores = [none], [none], [none.astype(np.float32)]
        for row, query in enumerate(table.ids("queries", texts).tolist()):
            for block in table.blocks(fingerprint, query):
                # Items `by_id[first:first + count]` have the same text as an entry of the block.
                first = np.searchsorted(ordered, block.ids)
                counts = np.searchsorted(ordered, block.ids, "right") - first
                starts = np.repeat(first - np.cumsum(counts) + counts, counts)
                columns.append(by_id[starts + np.arange(len(starts))])
                rows.append(np.full(len(starts), row))
                scores.append(np.repeat(block.scores, counts))
        pairs = Pairs(np.concatenate(rows), np.concatenate(columns))
        return SparseScores.of(texts, len(items), pairs, np.concatenate(scores), fingerprint)

    def query_counts(self, fingerprint: str) -> tuple[IntArray, IntArray]:
        """Return the ids (q,) of scored queries whose texts are stored, oldest first, and each
        one's number of scores (q,)."""
        rows = self.table().select(
            "SELECT query, coalesce(sum(length(scores)) / 4, 0) FROM blocks JOIN queries "
            f"ON queries.id = query WHERE scorer = {_SCORER} AND text IS NOT NULL "
            "GROUP BY query ORDER BY query",
            (fingerprint,),
        )
        ids, counts = np.array(rows, np.int64).reshape(-1, 2).T
        return ids, counts

    def query_texts(self, ids: IntArray) -> list[str]:
        """Return the texts of queries, by ids from `query_counts`."""
        statement, table = "SELECT id, digest, text, crc FROM queries WHERE id = ?", self.table()
        rows = (row for query in ids.tolist() for row in table.texts(statement, [query]))
        return [text.decode("utf-8", "surrogatepass") for *_, text in rows if text is not None]

    def queries(self, fingerprint: str) -> list[str]:
        """Return the texts of queries that have scores and stored texts, oldest first."""
        return self.query_texts(self.query_counts(fingerprint)[0])

    def prune(self, *, keep: int | None = None, private: bool = False) -> int:
        """Drop the scores of all queries but the `keep` with the newest scores, return the number
        of queries, and shrink the file. `private` drops the texts of all queries, too, and keeps
        their digests."""
        if not len(self):
            return 0
        table = self.table()
        with table.writing() as db:
            db.execute("PRAGMA secure_delete = ON")
            rows = db.execute("SELECT query FROM blocks GROUP BY query ORDER BY max(id)").fetchall()
            dropped = rows[: 0 if keep is None else max(0, len(rows) - keep)]
            table.drop([query for (query,) in dropped])
            if private:
                db.execute("UPDATE queries SET text = NULL WHERE text IS NOT NULL")
        table.shrink()
        return len(dropped)

    def copy_to(self, path: Path) -> None:
        """Copy all scores to a file that does not exist."""
        self.table().copy_to(path)

    def sizes(self) -> dict[str, int]:
        """Return the numbers of `scores`, of `queries` with scores, of stored `texts` of these
        queries, the `bytes` in use, and the `limit` of bytes."""
        table, scored = self.table(), "FROM queries WHERE id IN (SELECT query FROM blocks)"
        return {
            "scores": len(self),
            "queries": table.number(f"SELECT count(*) {scored}"),
            "texts": table.number(f"SELECT count(text) {scored}"),
            "bytes": table.used_bytes(),
            "limit": table.limit,
        }

    def verify(self, *, repair: bool = False) -> list[str]:
        """Check every row, and return one sentence per kind of damage. `repair` removes damaged
        rows, so that they are scored again; `InputError` if the file itself is damaged."""
        file = self.table()
        for (problem,) in file.select("PRAGMA quick_check"):
            if problem != "ok":
                raise file.damaged(problem)
        damaged: dict[str, list[int]] = {}
        for table in ("queries", "items"):
            rows = file.select(f"SELECT id, digest, text, crc FROM {table}")
            damaged[table] = [row[0] for row in rows if not is_whole_text(*row)]
        blocks = [row for (row,) in file.select("SELECT id FROM blocks")]
        damaged["blocks"] = [row for row in blocks if not file.is_whole_block(row)]
        if repair and any(damaged.values()):
            with file.writing() as db:
                db.executemany("DELETE FROM blocks WHERE id = ?", [(r,) for r in damaged["blocks"]])
                for table in ("queries", "items"):
                    db.execute(f"DELETE FROM {table} WHERE id NOT BETWEEN 1 AND {LARGEST_ID - 1}")
                    for row in damaged[table]:  # keep the row, because blocks may refer to its id
                        digest = os.urandom(16)
                        change = f"UPDATE {table} SET digest = ?, text = NULL, crc = ? WHERE id = ?"
                        db.execute(change, (digest, text_crc(row, digest), row))
        return [
            f"{len(rows)} of the {table} of scores in {file.path} are damaged"
            for table, rows in damaged.items()
            if rows
        ]


def _grouped(queries: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield (query, places) for each distinct query, places in order."""
    order = np.argsort(queries, kind="stable")
    different, first = np.unique(queries[order], return_index=True)
    if len(order):
        yield from zip(different.tolist(), np.split(order, first[1:]), strict=True)
