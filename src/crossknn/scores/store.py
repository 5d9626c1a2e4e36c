"""A file of exact scores, so that no pair of texts is scored twice by the same cross-encoder.

A score belongs to a cross-encoder (its fingerprint), a query and an item (their texts). Texts are
stored once by digest and referred to by ids. A block holds the scores of one query with many items
(format: `docs/reference/formats.md`). 10^8 pairs of 1,000 queries take 400 MB, 3 s to write and 1 s
to read.

Axes: q queries, n items, t texts, p pairs, b scores of a block.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from crossknn.errors import InputError, ScorerError
from crossknn.files import as_path, text_digest
from crossknn.linalg import usable
from crossknn.scores.database import (
    SIGN,
    ScoreFile,
    StoredScoresError,
    block_crc,
    parsed_block,
    text_crc,
)
from crossknn.scores.sparse import SparseScores
from crossknn.scores.upkeep import make_room, prune, verify
from crossknn.types import FloatArray, IntArray, Pairs

LIMIT = 2 * 2**30
"""Maximum size of a store in bytes; when it is full, the queries with the oldest scores are
dropped. `CROSSKNN_STORE_LIMIT` in the environment sets another limit, in MB."""

_SCORER = "(SELECT id FROM scorers WHERE fingerprint = ?)"
_VARIABLES = 500  # of one statement
_SMALL, _MANY = 8_192, 32  # this many blocks of a query with fewer scores become one


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


class ScoreTable:
    """The texts and blocks of scores in a file, or in memory if the path is None."""

    def __init__(self, path: Path | None) -> None:
        self.limit = _size_limit()
        self.file = ScoreFile(path)

    def ids(self, texts: Sequence[str], *, add: bool = False, keep: bool = False) -> IntArray:
        """Return the ids (t,) of texts; negative for a text that has none.

        Args:
            texts: t texts.
            add: Assign ids to texts that have none.
            keep: Store the texts as well as digests, as for queries.
        """
        kept = (text.encode("utf-8", "surrogatepass") if keep else None for text in texts)
        return self.digest_ids(list(zip(map(text_digest, texts), kept, strict=True)), add)

    def pair_ids(
        self,
        queries: Sequence[str],
        items: Sequence[str],
        pairs: Pairs,
        add: bool = False,
        keep: bool = False,
    ) -> tuple[IntArray, IntArray]:
        """Return the ids (p,) of the queries and of the items of p pairs, as from `ids`; `keep`
        stores the queries' texts."""
        query_rows, query = np.unique(pairs.query, return_inverse=True)
        item_rows, item = np.unique(pairs.item, return_inverse=True)
        query_ids = self.ids([str(queries[q]) for q in query_rows.tolist()], add=add, keep=keep)
        return query_ids[query], self.ids([str(items[i]) for i in item_rows.tolist()], add=add)[
            item
        ]

    def digest_ids(self, texts: Sequence[tuple[bytes, bytes | None]], add: bool) -> IntArray:
        """Return ids, as `ids` does, for pairs (digest, text to store or None)."""
        ids = self._find(texts)
        lacking = [row for row in texts if row[0] not in ids]
        if add and lacking:
            with self.file.writing() as db:
                db.executemany(
                    "INSERT INTO texts (digest, text, crc) VALUES (?, ?, 0) "
                    "ON CONFLICT DO UPDATE SET text = coalesce(text, excluded.text)",
                    lacking,
                )
                db.executemany(f"{SIGN} digest = ?", [row[:1] for row in lacking])
                ids |= self._find(lacking)
        numbers = {digest: -1 - place for place, (digest, _) in enumerate(texts)} | ids
        return np.array([numbers[digest] for digest, _ in texts], dtype=np.int64)

    def lookup(self, fingerprint: str, queries: IntArray, items: IntArray) -> FloatArray:
        """Look up exact scores (p,) by the ids (p,) of their texts, NaN if there is none.

        Args:
            fingerprint: The cross-encoder's fingerprint.
            queries, items: Ids from `pair_ids`.
        """
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
        """Store scores in one transaction, and return the number of new pairs.

        Existing scores are kept. If the store is full, the queries with the oldest are dropped.

        Args:
            fingerprint: The cross-encoder's fingerprint.
            queries, items: Ids (p,) from `pair_ids`.
            scores: Raw logits (p,).
        """
        values = np.asarray(scores, np.float32)
        if len(bad := values[~usable(values)]):
            raise ScorerError(f"a score is {bad[0]}: it cannot be kept")
        added = 0
        with self.file.writing() as db:
            db.execute("INSERT OR IGNORE INTO scorers (fingerprint) VALUES (?)", (fingerprint,))
            newest = "SELECT ?, coalesce(max(id), 0) + 1 FROM blocks"
            db.execute(f"INSERT OR IGNORE INTO days {newest}", (date.today().isoformat(),))
            for query, places in _grouped(queries):
                ids, first = np.unique(items[places], return_index=True)
                before, blocks = np.full(len(ids), np.nan), list(self.blocks(fingerprint, query))
                for block in blocks:
                    block.find(ids, before)
                new = np.isnan(before)
                added += int(new.sum())
                if new.any():
                    self._add(db, fingerprint, query, blocks, ids[new], values[places][first[new]])
            if added and self.file.used_bytes() > self.limit:
                make_room(self.file, db, self.limit)
        return added

    def blocks(self, fingerprint: str, query: int) -> Iterator[Block]:
        """Read the blocks of a query and check them."""
        if not isinstance(query, int):
            raise self.file.damaged("a block has no query")
        if query < 0:
            return
        for row, start, items, scores, crc in self.file.select(
            "SELECT id, start, items, scores, crc FROM blocks "
            f"WHERE scorer = {_SCORER} AND query = ? ORDER BY id",
            (fingerprint, query),
        ):
            if block_crc(fingerprint, query, start, items, scores) != crc:
                raise self.file.damaged("checksum mismatch in a block of scores")
            if (parsed := parsed_block(start, items, scores)) is None:
                raise self.file.damaged("a block of scores has impossible contents")
            yield Block(row, *parsed)

    def texts(self, where: str, values: Sequence[Any]) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Read and check (id, digest, stored text or None) of texts that a condition selects."""
        for *row, crc in self.file.select(
            f"SELECT id, digest, text, crc FROM texts WHERE {where} ORDER BY id", values
        ):
            if text_crc(*row) != crc:
                raise self.file.damaged("checksum mismatch in a text")
            yield row[0], row[1], row[2]

    def _add(
        self,
        db: sqlite3.Connection,
        fingerprint: str,
        query: int,
        blocks: Sequence[Block],
        ids: IntArray,
        scores: FloatArray,
    ) -> None:
        """Add a block of scores (b,) of new items of a query, merging many small blocks."""
        small = [block for block in blocks if len(block.scores) < _SMALL]
        if len(small) >= _MANY:
            ids = np.concatenate([ids, *(block.ids for block in small)])
            scores = np.concatenate([scores, *(block.scores for block in small)])
            db.executemany("DELETE FROM blocks WHERE id = ?", [(block.row,) for block in small])
        order = np.argsort(ids)
        ids, start = ids[order], int(ids.min())
        dense = int(ids[-1]) - start + 1 == len(ids)  # then the ids need not be kept
        items = None if dense else ids.astype("<i4").tobytes()
        row = query, start, items, scores[order].astype("<f4").tobytes()
        db.execute(
            "INSERT INTO blocks (scorer, query, start, items, scores, crc) "
            f"VALUES ({_SCORER}, ?, ?, ?, ?, ?)",
            (fingerprint, *row, block_crc(fingerprint, *row)),
        )

    def _find(self, texts: Sequence[tuple[bytes, bytes | None]]) -> dict[bytes, int]:
        """Find the ids of texts by digest; a text that should be stored is found only if it is."""
        ids: dict[bytes, int] = {}
        for start in range(0, len(texts), _VARIABLES):
            asked = dict(texts[start : start + _VARIABLES])
            rows = self.texts(f"digest IN ({','.join('?' * len(asked))})", list(asked))
            wanted = (row for row in rows if row[2] is not None or asked.get(row[1]) is None)
            ids |= {digest: number for number, digest, _ in wanted}
        return ids


class ScoreStore(AbstractContextManager["ScoreStore"]):
    """Exact scores by (fingerprint, query text, item text), in a file or in memory.

    Many threads may share one object, and many processes of one host the same file. Reading raises
    `InputError` for a damaged file; writing raises `StoreFullError` if the disk is full.

    Args:
        path: The file, created with the first score. None: a new store in memory.

    Raises:
        InputError: The file cannot be opened, is damaged, or is something else.
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
            if self._table.file.look():
                self._table = ScoreTable(self.path)
            return self._table

    def close(self) -> None:
        """Close the file; it is opened again when the store is used again."""
        self._table.file.close()

    def __exit__(self, *error: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of scores, of all cross-encoders."""
        size = "SELECT coalesce(sum(length(scores)), 0) FROM blocks"
        return self.table().file.number(size) // 4

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
            queries, items: Texts.
            pairs: p pairs of positions in `queries` and `items`.
            scores: Their scores (p,), raw logits.
        """
        table = self.table()
        with table.file.writing():
            ids = table.pair_ids(queries, items, pairs, add=True, keep=not self.private)
            return table.insert(fingerprint, *ids, scores)

    def pair_scores(
        self, fingerprint: str, queries: Sequence[str], items: Sequence[str], pairs: Pairs
    ) -> FloatArray:
        """Look up the exact scores (p,) of pairs, NaN if there is none.

        Args:
            fingerprint: The cross-encoder's fingerprint.
            queries, items: Texts.
            pairs: p pairs of positions in `queries` and `items`.
        """
        table = self.table()
        return table.lookup(fingerprint, *table.pair_ids(queries, items, pairs))

    def rows(self, fingerprint: str, queries: Sequence[str], items: Sequence[str]) -> FloatArray:
        """Look up the exact scores (q, n) float32 of all pairs of texts, NaN if there is none.

        Args:
            fingerprint: The cross-encoder's fingerprint.
            queries, items: Texts (q) and (n).
        """
        table = self.table()
        ids, scores = table.ids(items), np.full((len(queries), len(items)), np.nan, np.float32)
        for row, query in enumerate(table.ids(queries).tolist()):
            for block in table.blocks(fingerprint, query):
                block.find(ids, scores[row])
        return scores

    def sparse_scores(
        self, fingerprint: str, items: Sequence[str], queries: Sequence[str] | None = None
    ) -> SparseScores:
        """Return all exact scores of the given items. Items with equal texts have equal scores.

        Args:
            fingerprint: The cross-encoder's fingerprint.
            items: Texts of items (n).
            queries: Texts of queries; None: all queries that have a score.
        """
        texts = sorted(self.queries(fingerprint)) if queries is None else list(queries)
        table = self.table()
        ids, none = table.ids(items), np.empty(0, np.int64)
        by_id = np.argsort(ids, kind="stable")
        ordered = ids[by_id]
        rows, columns, scores = [none], [none], [none.astype(np.float32)]
        for row, query in enumerate(table.ids(texts).tolist()):
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
        rows = self.table().file.select(
            "SELECT query, coalesce(sum(length(scores)) / 4, 0) FROM blocks JOIN texts "
            f"ON texts.id = query WHERE scorer = {_SCORER} AND text IS NOT NULL "
            "GROUP BY query ORDER BY query",
            (fingerprint,),
        )
        ids, counts = np.array(rows, np.int64).reshape(-1, 2).T
        return ids, counts

    def query_texts(self, ids: IntArray) -> list[str]:
        """Return the texts of queries, by ids from `query_counts`."""
        table = self.table()
        texts = [text for query in ids.tolist() for *_, text in table.texts("id = ?", [query])]
        with table.file.errors(StoredScoresError, "cannot be read"):
            return [text.decode("utf-8", "surrogatepass") for text in texts if text is not None]

    def queries(self, fingerprint: str) -> list[str]:
        """Return the texts of queries that have scores and stored texts, oldest first."""
        return self.query_texts(self.query_counts(fingerprint)[0])

    def prune(
        self, *, keep: int | None = None, before: str | None = None, private: bool = False
    ) -> int:
        """Drop the scores of old queries, return their number, and shrink the file.

        Args:
            keep: Number of queries to keep, those with the newest scores.
            before: Drop queries whose scores were all stored before this day, such as "2026-11-30".
            private: Drop the texts of all queries, too, and keep their digests.
        """
        table = self.table()
        return prune(table.file, keep, before, private) if len(self) else 0

    def add_all(self, other: ScoreStore) -> None:
        """Copy all scores of another store into this one."""
        table, source = self.table(), other.table()
        texts = list(source.texts("TRUE", []))
        theirs = np.array([number for number, *_ in texts], np.int64)
        own = table.digest_ids([(digest, text) for _, digest, text in texts], add=True)
        for scorer, fingerprint in source.file.select("SELECT id, fingerprint FROM scorers"):
            scored = "SELECT DISTINCT query FROM blocks WHERE scorer = ?"
            for (query,) in source.file.select(scored, (scorer,)):
                for block in source.blocks(fingerprint, query):
                    named = np.append(query, block.ids)
                    at = np.minimum(np.searchsorted(theirs, named), len(theirs) - 1)
                    if not np.array_equal(theirs[at], named):
                        raise source.file.damaged("a block refers to a text that does not exist")
                    queries = np.full(len(block.scores), own[at[0]])
                    table.insert(fingerprint, queries, own[at[1:]], block.scores)

    def sizes(self) -> dict[str, int]:
        """Return the numbers of `scores`, of `queries` with scores, of stored `texts` of these
        queries, the `bytes` in use, and the `limit` of bytes."""
        file, scored = self.table().file, "FROM texts WHERE id IN (SELECT query FROM blocks)"
        return {
            "scores": len(self),
            "queries": file.number(f"SELECT count(*) {scored}"),
            "texts": file.number(f"SELECT count(text) {scored}"),
            "bytes": file.used_bytes(),
            "limit": self._table.limit,
        }

    def verify(self, *, repair: bool = False) -> list[str]:
        """Check every row, and return one sentence per kind of damage. `repair` removes damaged
        rows, so that they are scored again; `InputError` if the file itself is damaged."""
        return verify(self.table().file, repair)


def _size_limit() -> int:
    """Return `LIMIT`, or the limit set in the environment."""
    given = os.environ.get("CROSSKNN_STORE_LIMIT")
    if given is None:
        return LIMIT
    if not given.isdecimal() or not int(given):
        raise InputError(f"CROSSKNN_STORE_LIMIT is {given!r}; give a number of MB, 1 or more")
    return int(given) * 2**20


def _grouped(queries: IntArray) -> Iterator[tuple[int, IntArray]]:
    """Yield (query, places) for each distinct query, places in order."""
    order = np.argsort(queries, kind="stable")
    different, first = np.unique(queries[order], return_index=True)
    if len(order):
        yield from zip(different.tolist(), np.split(order, first[1:]), strict=True)
