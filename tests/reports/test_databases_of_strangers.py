"""A `scores.db` of somebody else: what is no store of ours is refused before anything in it runs."""

import os
import sqlite3
import struct
import time
import zlib
from contextlib import suppress

import numpy as np
import pytest

import crossknn as ck
from crossknn.extend import Pairs, ScoreStore
from crossknn.scores.database import StoredScoresError

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"


@pytest.fixture
def path(tmp_path):
    with ScoreStore(tmp_path / "scores.db") as store:
        store.put("ce", ["q"], ["a", "b"], Pairs(np.zeros(2, int), np.arange(2)), [1.0, 2.0])
    return tmp_path / "scores.db"


def changed(path, *statements):
    with sqlite3.connect(path) as db:
        for statement in statements:
            db.execute(*([statement] if isinstance(statement, str) else statement))
    db.close()


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE blocks", f"CREATE VIEW blocks AS {ENDLESS}"],
        [
            "CREATE TRIGGER grow AFTER INSERT ON blocks BEGIN "
            "INSERT INTO items (digest, text, crc) VALUES (zeroblob(9), zeroblob(800000000), 0); END"
        ],
        ["CREATE VIEW more AS SELECT 1"],
        ["CREATE TABLE more (x)"],
        ["CREATE INDEX more ON items (text_crc(id, digest, text))"],
        ["DROP INDEX blocks_of"],
        [
            "DROP TABLE scorers",
            "CREATE TABLE scorers (id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE, "
            "pairs INTEGER NOT NULL DEFAULT 0, seconds REAL AS (pairs * 2))",
        ],
    ],
)
def test_a_schema_that_is_not_ours(path, statements):
    """A recursive view hung the opening; a trigger grew a write of one score to 859 MB."""
    with sqlite3.connect(path) as db:
        db.create_function("text_crc", 3, lambda *_: 0, deterministic=True)
        for statement in statements:
            db.execute(statement)
    db.close()
    began, size = time.perf_counter(), path.stat().st_size
    with pytest.raises(
        ck.InputError, match=r"has other tables, views or triggers|malformed database schema"
    ):
        ScoreStore(path)
    assert time.perf_counter() - began < 5
    assert path.stat().st_size == size


def block(start, items, scores, query=1, fingerprint="ce"):
    """A block with the right checksum, as somebody makes it who knows how."""
    head = fingerprint.encode() + struct.pack("<qq?", query, start, items is None)
    crc = zlib.crc32(scores, zlib.crc32(items or b"", zlib.crc32(head)))
    row = 1, query, start, items, scores, crc
    names = "scorer, query, day, start, items, scores, crc"
    return f"INSERT INTO blocks ({names}) VALUES (?, ?, 1, ?, ?, ?, ?)", row


ONE, TWO = struct.pack("<f", 1), struct.pack("<ff", 1, 2)


@pytest.mark.parametrize(
    "row",
    [
        block(-5, None, TWO),
        block(0, None, ONE),
        block(2**62, None, TWO),
        block(2**31 - 1, None, TWO),
        block(2, struct.pack("<ii", 2, -7), TWO),
        block(2, struct.pack("<ii", 2, 2), TWO),
        block(2, struct.pack("<i", 2), TWO),
        block(9, struct.pack("<ii", 2, 3), TWO),
        block(2, None, b"abc"),
        block(2, None, b""),
        block(2, None, struct.pack("<f", np.nan)),
        block(2, None, struct.pack("<f", 3e38)),
        ("UPDATE blocks SET start = 'x', crc = -1", ()),
        ("UPDATE blocks SET scores = 'text', crc = -1", ()),
        ("UPDATE blocks SET scores = 7, crc = -1", ()),
        ("UPDATE queries SET digest = 'text', crc = -1", ()),
        ("UPDATE blocks SET query = 'x', crc = -1", ()),
    ],
)
def test_a_crafted_block(path, row):
    """Negative and huge ids ended in a traceback, or took all memory."""
    changed(path, row)
    store = ScoreStore(path)
    reads = (
        lambda: store.rows("ce", ["q"], ["a", "b"]),
        lambda: store.sparse_scores("ce", ["a", "b"], ["q"]),
    )
    for read in reads:
        with suppress(StoredScoresError):
            read()
    assert any("damaged" in said for said in store.verify(repair=True))
    assert store.verify() == []
    for read in reads:
        read()


def test_ids_that_no_text_has(path):
    changed(path, block(2**30, None, TWO))
    store = ScoreStore(path)
    assert store.sparse_scores("ce", ["b", "a", "b"]).score.tolist() == [2, 1, 2]


def test_other_databases_and_files_stay_as_they_are(tmp_path):
    path = tmp_path / "mine.db"
    changed(path, "CREATE TABLE bank (x)")
    (tmp_path / "thesis.txt").write_bytes(b"precious " * 100)
    for name, said in (("mine.db", "holds no scores of crossknn"), ("thesis.txt", "are damaged")):
        before = (tmp_path / name).read_bytes()
        with pytest.raises(ck.InputError, match=said):
            ScoreStore(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def test_a_cut_or_altered_file_is_one_sentence(path):
    data = bytearray(path.read_bytes())
    random = np.random.default_rng(0)
    for trial in range(60):
        wrong = bytearray(data)
        if trial % 3:
            for at in random.integers(0, len(data), 20).tolist():
                wrong[at] = random.integers(256)
        else:
            del wrong[int(random.integers(1, len(data))) :]
        for beside in path.parent.iterdir():
            os.unlink(beside)
        path.write_bytes(wrong)
        with suppress(ck.InputError):
            store = ScoreStore(path)
            store.rows("ce", ["q"], ["a", "b"])
            store.put("ce", ["q"], ["c"], Pairs([0], [0]), [1.0])
            store.close()
